"""What peft and transformers compute from an exported adapter."""

import peft
import torch
import transformers
from safetensors.torch import load_file

from helpers.common import build
from shardlab.models import export
from shardlab.models.weights import materialize


def distances(run, weights, folder):
    """Export a run's weights; return how far the logits are from ours: peft's, the merged model's, and without adapter.

    Relative to the largest, on random tokens.
    """
    model = build(run)
    materialize(model, weights, torch.device("cpu"))
    export.write(run, weights, folder, folder / "exported")
    tokens = torch.randint(0, run.model.args["vocab_size"], (2, 16))
    kind, adapter = transformers.AutoModelForCausalLM, folder / "exported" / "adapter"
    with torch.no_grad():
        ours = model(tokens)
        merged = kind.from_pretrained(folder / "exported", dtype=torch.float64)
        base = kind.from_pretrained(adapter / "base", dtype=torch.float64)
        before = base(tokens).logits
        read = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).double()
        logits = [read(tokens).logits, merged(tokens).logits, before]
    assert {*load_file(adapter / "adapter_model.safetensors")} == {
        *peft.get_peft_model_state_dict(read, save_embedding_layers=False)
    }
    return [float((each - ours).abs().max() / ours.abs().max()) for each in logits]
