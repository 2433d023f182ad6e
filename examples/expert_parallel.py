"""Expert parallelism: each rank has some of the experts of every layer; tokens travel to them and back.

torchrun --nproc-per-node 2 -- examples/expert_parallel.py --run RUN.json --data DATA --weights WEIGHTS --output OUTPUT
"""

import math

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed._functional_collectives import all_to_all_single_autograd as all_to_all
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import common


def main():
    args = common.parse_arguments()
    run = common.read_run(args.run, models=("moe",))
    device = common.choose_device(run)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    common.check_divisible(run, ranks, ["experts"])

    model = common.build_model(run)
    model.load_state_dict(load_file(args.weights))
    for block in model.layers:
        block.experts = SplitExperts(block.experts, rank, ranks)
    model.to(device)
    routers = [block.router for block in model.layers]
    split = {name: weight for name, weight in model.named_parameters() if ".experts." in name}
    whole = [weight for name, weight in model.named_parameters() if name not in split]
    inputs, targets = common.load_data(run, args.data)
    optimizer = common.make_optimizer(run, model.parameters())
    scheduler = common.make_scheduler(run, optimizer, len(inputs))
    metrics = common.Metrics(args.output) if rank == 0 else None

    for step, batch in enumerate(common.batches(run, len(inputs))):
        part = batch.tensor_split(ranks)[rank]  # uneven or empty parts: see ddp.py
        x, y = inputs[part].to(device), targets[part].to(device)
        loss = common.loss_sum(model(x), y) + sum(router.imbalance for router in routers)
        loss = loss / (len(batch) * targets[0].numel())
        loss.backward()
        # An expert has seen the tokens of all ranks; of the other weights, each rank has the gradient of its samples.
        for weight in whole:
            dist.all_reduce(weight.grad)
        # The experts of all ranks count for the norm, and the other weights once.
        own, same = (get_total_norm([weight.grad for weight in each]).square() for each in (split.values(), whole))
        dist.all_reduce(own)
        norm = (own + same).sqrt()
        clip_grads_with_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf, norm)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        loss = loss.detach()
        for value in (loss, *(router.load for router in routers)):
            dist.all_reduce(value)
        for router in routers:
            router.balance(router.load)
        if metrics:
            metrics.write(step, loss, norm)

    weights = model.state_dict()
    for name in split:
        parts = [torch.empty_like(weights[name]) for _ in range(ranks)]
        dist.all_gather(parts, weights[name])
        weights[name] = torch.cat(parts)
    if rank == 0:
        save_file(weights, args.output / "model.safetensors")
    common.finish()


class SplitExperts(common.Experts):
    """This rank's part of the experts."""

    def __init__(self, whole, rank, ranks):
        super().__init__(0, 0, 0)
        self.experts, self.ranks = whole.experts, ranks
        for name, weight in whole.named_parameters():
            setattr(self, name, torch.nn.Parameter(weight.detach().chunk(ranks)[rank].clone()))

    def compute(self, rows, counts):
        """Send rows to the ranks of their experts, compute what arrives here, and send it back."""
        # How many rows each rank has for each expert of this rank, or this rank for those of others.
        sent = counts.view(self.ranks, -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        ours, theirs = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = all_to_all(rows, theirs, ours, dist.group.WORLD)
        # They come sorted by rank, and of each rank by expert.
        experts = torch.arange(received.shape[1], device=rows.device).repeat(self.ranks)
        order = experts.repeat_interleave(received.flatten()).argsort(stable=True)
        results = super().compute(arrived[order], received.sum(0))
        by_rank = torch.empty_like(results).index_copy(0, order, results)
        return all_to_all(by_rank, ours, theirs, dist.group.WORLD)


if __name__ == "__main__":
    main()
