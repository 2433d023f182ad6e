"""Tensor parallelism: each rank has a part of every layer and computes with it on whole batches.

torchrun --nproc-per-node 2 -- examples/tensor_parallel.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

from collections import defaultdict

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import common

# Pairs of layers: the first one is split by its outputs, the second by its inputs, so that what is between them stays
# split, and only the second layer's outputs are added up over the ranks (Megatron-LM, arXiv:1909.08053).
PLANS = {
    "mlp": {"hidden": ColwiseParallel(), "output": RowwiseParallel()},
    "cnn": {"dense1": ColwiseParallel(), "dense2": RowwiseParallel()},
    "llama": {
        # Each rank has a part of the vocabulary, and 0 for the other tokens until they are added up.
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        # Some of the heads, some of the hidden units.
        "layers.*.attention.query": ColwiseParallel(),
        "layers.*.attention.key": ColwiseParallel(),
        "layers.*.attention.value": ColwiseParallel(),
        "layers.*.attention.output": RowwiseParallel(),
        "layers.*.gate": ColwiseParallel(),
        "layers.*.up": ColwiseParallel(),
        "layers.*.down": RowwiseParallel(),
        # No second layer follows: the logits are gathered.
        "output": ColwiseParallel(output_layouts=Replicate()),
    },
}


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run)
    device = common.choose_device(run)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("tp",))
    common.check_divisible(run, ranks)

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    model.to(device)
    # Replaces the weights of these layers by DTensors with this rank's part; others stay whole on every rank.
    parallelize_module(model, mesh, PLANS[run.model.name])
    inputs, targets = common.load_data(run, args.data)
    # One call for all weights, the default on GPUs (foreach), does not take split and whole ones together.
    optimizer = common.make_optimizer(run, model.parameters(), foreach=False)
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    for step, batch in enumerate(common.batches(run, len(inputs))):
        # All ranks have the same samples and compute the same loss: nothing is divided by the ranks or added up.
        x, y = inputs[batch].to(device), targets[batch].to(device)
        loss = common.loss_sum(model(x), y) / y.numel()
        loss.backward()
        norm = gradient_norm(model)
        if run.recipe.max_grad_norm:
            clip_grads_with_norm_(model.parameters(), run.recipe.max_grad_norm, norm, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if metrics:
            metrics.write(step, loss, norm)

    # Gathers the split weights; all ranks take part.
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        save_file(weights, args.output / "model.safetensors")
    common.finish()


def gradient_norm(model):
    """Split weights count with the parts of all ranks, whole ones once; torch's functions do not take both together."""
    gradients = defaultdict(list)
    for parameter in model.parameters():
        gradients[getattr(parameter, "device_mesh", None)].append(parameter.grad)
    norms = [get_total_norm(each) for each in gradients.values()]
    return torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]).norm()


if __name__ == "__main__":
    main()
