"""DeepSpeed ZeRO, stages 1 to 3 (Rajbhandari et al., 2020, arXiv:1910.02054)."""

import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from shardlab import optimizers
from shardlab.distributed import World
from shardlab.settings import Run

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.utils import safe_get_full_grad


class ZeroEngine:
    """DeepSpeed's engine, with the recipe's optimizer, behind the common interface."""

    def __init__(self, run: Run, model: nn.Module, world: World) -> None:
        # On a CPU, DeepSpeed would compile a shared-memory all-reduce (half a minute, a C++ compiler)
        # that only its inference uses.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        model = model.to(world.device)
        self.plain = model
        self.world = world
        self.model, self.optimizer, _, _ = deepspeed.initialize(
            model=model,
            optimizer=optimizers.build(run.recipe, model.parameters()),
            config=dict(run.engine_config or {}),
        )

    def backward(self, loss: Tensor) -> None:
        """See Engine."""
        self.model.backward(loss)

    def step(self, learning_rate: float) -> float:
        """See Engine."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.model.step()
        return float(self.model.get_global_grad_norm())

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """See Engine."""
        for name, parameter in self.plain.named_parameters():
            yield name, safe_get_full_grad(parameter)

    def weights(self) -> dict[str, Tensor]:
        """See Engine."""
        weights = {}
        for name, value in self.plain.state_dict(keep_vars=True).items():
            with deepspeed.zero.GatheredParameters([value], enabled=hasattr(value, "ds_id")):
                if self.world.main:
                    weights[name] = value.detach().cpu().clone()
        return weights
