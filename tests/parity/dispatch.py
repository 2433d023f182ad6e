"""Experts split over ranks: outputs and gradients of a rank, written to compare them with one process."""

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from shardlab.models._experts import Experts
from shardlab.models.weights import allocate, assign
from shardlab.parallel import experts as ours
from shardlab.parallel import library_experts

EXPERTS, TOP_K, DIM, HIDDEN = 8, 2, 4, 6
LENGTHS = (3, 0, 5, 1)
"""Tokens of each rank: one has none."""
IDLE = (0, 4, 5)
"""Experts without tokens: with four ranks all that the third one has, with two one on each."""


def inputs():
    """Parameters by name, and of each rank tokens, routing weights, choices, and the gradient of the output."""
    torch.manual_seed(0)
    real = {"dtype": torch.float64}
    shapes = {"gate": (HIDDEN, DIM), "up": (HIDDEN, DIM), "down": (DIM, HIDDEN)}
    parameters = {name: torch.randn(EXPERTS, *shape, **real) for name, shape in shapes.items()}
    busy = torch.tensor([expert for expert in range(EXPERTS) if expert not in IDLE])
    parts = []
    for length in LENGTHS:
        ids = busy[torch.rand(1, length, len(busy)).argsort(-1)[..., :TOP_K]]
        tokens = [torch.randn(1, length, size, **real) for size in (DIM, TOP_K, DIM)]
        parts.append((tokens[0], tokens[1], ids, tokens[2]))
    return parameters, parts


def built(library):
    """Our experts, or those of the library."""
    if not library:
        return Experts(DIM, HIDDEN, EXPERTS).double()
    config = MixtralConfig(
        hidden_size=DIM, intermediate_size=HIDDEN, num_local_experts=EXPERTS, experts_implementation="eager"
    )
    return MixtralExperts(config).double()


def named(parameters, library):
    """The parameters by their names."""
    if not library:
        return parameters
    gate_up = torch.cat([parameters["gate"], parameters["up"]], 1)
    return {"gate_up_proj": gate_up, "down_proj": parameters["down"]}


def expected(ranks, library):
    """Outputs and gradients of each rank, and the mean over the ranks of the parameters' gradients, in one process."""
    parameters, parts = inputs()
    experts = built(library)
    experts.load_state_dict(named(parameters, library))
    found = {}
    for rank, part in enumerate(parts[:ranks]):
        found |= _passed(experts, part, rank)
    return found | {name: parameter.grad / ranks for name, parameter in experts.named_parameters()}


def of_rank(case):
    """Compute this rank's part, and write it."""
    library = case["dispatch"] == "library"
    parameters, parts = inputs()
    with torch.device("meta"):
        experts = built(library)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))
    (library_experts if library else ours).split([experts], mesh)
    allocate(experts, torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in experts.named_parameters():
            assign(parameter, named(parameters, library)[name])
    rank = dist.get_rank()
    found = _passed(experts, parts[rank], rank)
    for name, parameter in experts.named_parameters():
        if parameter.grad is not None:
            found[f"{name}-{rank}"] = parameter.grad.to_local()
    save_file(found, Path(case["output"]) / f"rank-{rank}.safetensors")


def _passed(experts, part, rank):
    tokens, weights, ids, gradient = part
    tokens, weights = (value.clone().requires_grad_() for value in (tokens, weights))
    if isinstance(experts, MixtralExperts):
        output, computed = experts(tokens[0], ids[0], weights[0])[None], None
    else:
        output, computed = experts(tokens, weights, ids)
    if output.requires_grad:  # the library's, in one process, does not without tokens
        output.backward(gradient)
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in (tokens, weights)]
    values = {"output": output.detach(), "computed": computed, "tokens": gradients[0], "weights": gradients[1]}
    return {f"{name}-of-{rank}": value for name, value in values.items() if value is not None}
