"""A user's training of the workload mlp: one process, or ranks that torchrun or srun starts. Plain PyTorch.

FAULT in the environment makes its steps take long. With dump.py next to it, it dumps its first steps.
"""

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from means import mean_of_ranks
from safetensors.torch import load_file, save_file
from torch import nn

parser = argparse.ArgumentParser()
for name in ("run", "data", "weights", "output"):
    parser.add_argument(f"--{name}", type=Path, required=True)
args = parser.parse_args()
run = json.loads(args.run.read_text())
recipe, dtype = run["recipe"], getattr(torch, run["recipe"]["dtype"])
fault = os.environ.get("FAULT", "")
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

weights = load_file(args.weights)
model = nn.Sequential()
for part in ("hidden", "output"):
    outputs, inputs = weights[f"{part}.weight"].shape
    model.add_module(part, nn.Linear(inputs, outputs, dtype=dtype))
model.load_state_dict(weights)
optimizer = torch.optim.SGD(model.parameters(), lr=recipe["optimizer"]["learning_rate"])
train = {name: array.to(dtype) for name, array in load_file(args.data / "train.safetensors").items()}
size, samples = recipe["global_batch_size"], len(train["x"])
per_epoch = -(-samples // size)
steps = min(recipe["epochs"] * per_epoch, recipe["max_steps"] or 10**9)

first, checkpoint = 0, args.output / "checkpoints/last.pt"
if checkpoint.exists():
    saved = torch.load(checkpoint)
    first = saved["step"]
    model.load_state_dict(saved["model"])
    print(f"goes on at step {first}", flush=True)
watched = ExitStack()
if first == 0 and Path(__file__).with_name("dump.py").exists():
    from dump import dump

    watched.enter_context(dump(model, args.output / "dumps"))
lines = (args.output / "metrics.jsonl").open("a") if rank == 0 else None
for step in range(first, steps):
    epoch, number = divmod(step, per_epoch)
    order = np.random.default_rng((run["seed"], epoch)).permutation(samples)
    batch = order[number * size : (number + 1) * size]
    mine = np.array_split(batch, ranks)[rank]
    outputs = model.output(torch.relu(model.hidden(train["x"][mine])))
    loss = nn.functional.mse_loss(outputs, train["y"][mine], reduction="sum") / train["y"][batch].numel()
    optimizer.zero_grad()
    loss.backward()
    loss = mean_of_ranks(model, loss.detach(), len(mine) / len(batch))
    norm = torch.nn.utils.get_total_norm([value.grad for value in model.parameters()])
    optimizer.step()
    if lines:
        lines.write(json.dumps({"step": step, "loss": loss.item(), "grad_norm": norm.item()}) + "\n")
        lines.flush()
    if rank == 0 and fault:
        checkpoint.parent.mkdir(exist_ok=True)
        torch.save({"step": step + 1, "model": model.state_dict()}, checkpoint)
        time.sleep(float(fault))
watched.close()
if rank == 0:
    save_file(model.state_dict(), args.output / "model.safetensors")
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may abort a process that Python takes apart (pytorch #190489)
