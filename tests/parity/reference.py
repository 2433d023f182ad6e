"""A plain PyTorch training, written from the recipe and the format of the prepared data alone.

It imports nothing of the project but the plain models: what every strategy shares (the batches' order, the division
by the targets, the schedule, the optimizer's arguments, the splits) is written down here a second time.
"""

import copy
import math
import re
from functools import partial
from importlib import import_module
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.utils import clip_grad_norm_


def train(settings, folder, initial):
    """Train as run.json (a dict) says; records of each step and validation, test losses, the trained network."""
    model = settings["model"]
    network = import_module(f"shardlab.models.{model['name']}").Model(**model["args"])
    in_precision(network, getattr(torch, settings["recipe"]["dtype"]))
    weights = load_file(initial)
    network.load_state_dict({name: value for name, value in weights.items() if "lora_" not in name})
    if settings["recipe"]["adapter"]:
        adapt(network, weights, settings["recipe"]["adapter"])
    return train_network(network, settings, folder)


def train_network(network, settings, folder):
    """Train a network that has its weights; see ``train``."""
    recipe, model = settings["recipe"], settings["model"]
    dtype = getattr(torch, recipe["dtype"])
    splits = {name: load_file(folder / f"{name}.safetensors") for name in ("train", "validation", "test")}
    for block in getattr(network, "layers", []) if "experts" in model["args"] else []:
        block.forward = partial(experts_block, block, model["args"])
    for name, value in network.named_parameters():
        frozen = any(names(pattern, name) for pattern in recipe["freeze"])
        if frozen or (recipe["adapter"] and "lora_" not in name):
            value.requires_grad_(False)
    optimizer = make_optimizer(recipe["optimizer"], [*groups(recipe, network)])
    loss_of, length = TASKS[settings["task"]]
    smoothed = loss_of if settings["task"] == "regression" else partial(loss_of, smoothing=recipe["label_smoothing"])
    count = length(splits["train"])
    per_epoch = math.ceil(count / recipe["global_batch_size"])
    total = min(recipe["epochs"] * per_epoch, recipe["max_steps"] or math.inf)
    steps, validations, best = [], [], math.nan
    average = {name: value.detach().clone() for name, value in network.named_parameters() if value.requires_grad}
    network.train()
    loads = []
    network.register_forward_hook(lambda *call: loads.append(call[2][1]) if isinstance(call[2], tuple) else None)
    for number in range(total):
        epoch, place = divmod(number, per_epoch)
        order = np.random.default_rng((settings["seed"], epoch)).permutation(count)
        batch = order[place * recipe["global_batch_size"] :][: recipe["global_batch_size"]]
        loss, targets = smoothed(network, splits["train"], batch, dtype)
        optimizer.zero_grad()
        (loss / targets).backward()  # at once: accumulation must change nothing
        norm = clip_grad_norm_(network.parameters(), recipe["max_grad_norm"] or math.inf)
        rate = recipe["optimizer"]["learning_rate"] * factor(recipe["lr_schedule"], number, total, epoch)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        optimizer.step()
        for name, value in average.items():
            decay = recipe["ema_decay"] or 0.0
            average[name] = decay * value + (1 - decay) * network.get_parameter(name).detach()
        if loads:
            move_biases(network, loads.pop(), model["args"]["bias_rate"])
        steps.append({"loss": loss.item() / targets, "grad_norm": float(norm), "learning_rate": rate})
        steps[-1] |= {"samples": len(batch), "targets": targets, "epoch": epoch}
        if place == per_epoch - 1 or number == total - 1:
            validations.append(mean_loss(network, loss_of, splits["validation"], length, dtype))
            if validations[-1] == min(validations):
                best = mean_loss(network, loss_of, splits["test"], length, dtype)
    test = mean_loss(network, loss_of, splits["test"], length, dtype)
    averaged = copy.deepcopy(network)
    averaged.load_state_dict(average, strict=False)
    ema = mean_loss(averaged, loss_of, splits["test"], length, dtype)
    return {"steps": steps, "validations": validations, "test": test, "best": best, "ema": ema, "network": network}


def adapt(network, weights, adapter):
    """Factors beside the layers for which the initial weights have some."""
    for name in [name for name in weights if name.endswith("lora_A")]:
        layer = network.get_submodule(name.removesuffix(".lora_A"))
        layer.lora_A = torch.nn.Parameter(weights[name])
        layer.lora_B = torch.nn.Parameter(weights[name.removesuffix("A") + "B"])
        factor = adapter["alpha"] / adapter["rank"]
        layer.forward = partial(adapted, layer, factor)


def adapted(layer, factor, x):
    return F.linear(x, layer.weight + factor * layer.lora_B @ layer.lora_A, layer.bias)


def in_precision(network, dtype):
    """Float32, which constructors make unless told otherwise, becomes the training's; others stay."""
    for value in (*network.parameters(), *network.buffers()):
        if value.dtype == torch.float32:
            value.data = value.data.to(dtype)


def mean_loss(network, loss_of, split, length, dtype):
    """Loss per target over a split, one sample at a time."""
    network.eval()
    with torch.no_grad():
        each = [loss_of(network, split, np.array([index]), dtype) for index in range(length(split))]
    network.train()
    return sum(float(loss) for loss, _ in each) / sum(targets for _, targets in each)


def move_biases(network, load, rate):
    """Experts with more tokens than the mean are chosen less often from now on (DeepSeek-V3)."""
    for layer, tokens in zip(network.layers, load[..., :-1].double().sum(0), strict=True):
        layer.router.bias -= rate * torch.sign(tokens - tokens.mean())


def experts_block(block, args, x):
    """A block in which every expert computes every token; what is not chosen has a weight of 0."""
    angles = block.rotary.angles(x.shape[1], like=x)
    x = x + block.attention(block.attention_norm(x), causal=True, rotary=angles)
    states = block.mlp_norm(x)
    logits = states @ block.router.weight.T
    scores = logits.sigmoid() if args["scores"] == "sigmoid" else logits.softmax(-1)
    chosen = torch.zeros_like(scores)
    for expert in (scores + block.router.bias).argsort(-1, descending=True)[..., : args["top_k"]].unbind(-1):
        chosen = chosen + F.one_hot(expert, args["experts"])
    gates = args["scale"] * chosen * scores / (chosen * scores).sum(-1, keepdim=True)
    mixed = sum(gates[..., [number]] * swiglu(block.experts, number, states) for number in range(args["experts"]))
    mixed = mixed + sum(swiglu(block.shared, number, states) for number in range(args["shared"]))
    # DeepSeek-V3, equations 17 to 20.
    frequency = chosen.mean(1) * args["experts"] / args["top_k"]
    imbalance = (frequency * (scores / scores.sum(-1, keepdim=True)).mean(1)).sum(-1)
    return x + mixed, F.pad(chosen.sum(1), (0, 1)), imbalance


def swiglu(experts, number, states):
    gate, up, down = (matrix[number] for matrix in (experts.gate, experts.up, experts.down))
    return (F.silu(states @ gate.T) * (states @ up.T)) @ down.T


def names(pattern, name):
    """A pattern names a parameter, or a module with its parameters."""
    return re.match(pattern.replace(".", r"\.").replace("*", r"[^.]*") + r"(\.|$)", name)


def groups(recipe, network):
    """A group per parameter, with its own rate and decay."""
    tables = {id(module.weight) for module in network.modules() if isinstance(module, torch.nn.Embedding)}
    for name, value in network.named_parameters():
        spared = recipe["decay"] == "matrices" and (value.dim() < 2 or id(value) in tables)
        own = {"learning_rate_factor": 1.0, "weight_decay": None, "optimizer": None}
        for pattern, settings in recipe["groups"].items():
            if names(pattern, name):
                own = settings
        decay = 0.0 if spared else recipe["optimizer"]["weight_decay"]
        decay = decay if own["weight_decay"] is None else own["weight_decay"]
        matrix = value.dim() > 1 and id(value) not in tables and own["optimizer"] is None
        yield {"params": [value], "weight_decay": decay, "factor": own["learning_rate_factor"], "matrix": matrix}


def make_optimizer(settings, parameters):
    """PyTorch's own, with every argument by name."""
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    if settings["name"] == "sgd":
        nesterov = bool(settings["nesterov"])
        return torch.optim.SGD(parameters, rate, settings["momentum"], weight_decay=decay, nesterov=nesterov)
    if settings["name"] == "adadelta":
        return torch.optim.Adadelta(parameters, lr=rate, weight_decay=decay, eps=settings["eps"] or 1e-6)
    if settings["name"] == "muon":
        parameters = [group | {"momentum": settings["momentum"] or 0.95} for group in parameters]
        return Muon(parameters, settings)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings["name"]]
    betas, eps = tuple(settings["betas"]), settings["eps"] or 1e-8
    return kind(parameters, lr=rate, betas=betas, weight_decay=decay, eps=eps)


class Muon(torch.optim.AdamW):
    """AdamW whose matrices are taken out of its step: their singular values go through Muon's polynomial.

    Computed from a singular value decomposition, which shares nothing with products of matrices.
    """

    def __init__(self, groups, settings):
        super().__init__(groups, lr=settings["learning_rate"], betas=settings["betas"] or (0.9, 0.999))
        self.buffers = {}

    def step(self):
        for group in self.param_groups:
            if group["matrix"]:
                (value,) = group["params"]
                buffer = self.buffers.get(value, 0) * group["momentum"] + (1 - group["momentum"]) * value.grad
                self.buffers[value] = buffer
                update = group["momentum"] * buffer + (1 - group["momentum"]) * value.grad
                rows, columns = value.shape[-2:]
                u, s, v = torch.linalg.svd(update, full_matrices=False)
                s = s / (s * s).sum(-1, keepdim=True).sqrt()
                for _ in range(5):
                    s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
                value.data *= 1 - group["lr"] * group["weight_decay"]
                value.data -= group["lr"] * max(1, rows / columns) ** 0.5 * (u * s[..., None, :]) @ v
                value.grad = None
        super().step()


def factor(schedule, number, total, epoch):
    """Factor of the learning rate at a step."""
    warmup = schedule["warmup_steps"]
    if number < warmup:
        return (number + 1) / (warmup + 1)
    done = (number - warmup) / (total - warmup)
    down = 1 - schedule["end"]
    return {
        "constant": 1.0,
        "step": schedule["gamma"] ** epoch,
        "linear": 1 - down * done,
        "cosine": schedule["end"] + down * (1 + math.cos(math.pi * done)) / 2,
    }[schedule["name"]]


def regression(network, split, batch, dtype):
    x, y = (split[name][batch].to(dtype) for name in ("x", "y"))
    return ((network(x) - y) ** 2).sum(), y.numel()


def entropy(chances, wanted, smoothing):
    """Of logarithms of probabilities (..., classes) and numbers of classes: a part of each target is all classes."""
    of_targets = chances.gather(-1, wanted[..., None].long()).sum()
    return -(1 - smoothing) * of_targets - smoothing * chances.mean(-1).sum()


def classification(network, split, batch, dtype, smoothing=0.0):
    images = split["images"][batch].to(dtype) / 127.5 - 1  # bytes to [-1, 1]
    return entropy(network(images).log_softmax(-1), split["labels"][batch], smoothing), len(batch)


def language_modelling(network, split, batch, dtype, smoothing=0.0):
    tokens = split["tokens"][batch].long()
    outputs = network(tokens[:, :-1])
    logits, _, auxiliary = outputs if isinstance(outputs, tuple) else (outputs, None, torch.zeros(1))
    loss = entropy(logits.log_softmax(-1), tokens[:, 1:], smoothing)
    return loss + auxiliary.sum(), tokens[:, 1:].numel()


def summarization(network, split, batch, dtype, smoothing=0.0):
    """One sample at a time, so that there is no padding."""
    total, targets = 0.0, 0
    for index in batch:
        document, summary = (
            split[name][split[f"{name}_offsets"][index] : split[f"{name}_offsets"][index + 1]].long()[None]
            for name in ("document", "summary")
        )
        mask = torch.ones_like(document, dtype=torch.bool)
        chances = network(document, summary[:, :-1], mask=mask).log_softmax(-1)
        total = total + entropy(chances, summary[:, 1:], smoothing)
        targets += summary.shape[1] - 1
    return total, targets


def instruction_tuning(network, split, batch, dtype, smoothing=0.0):
    """One document at a time, so that nothing is packed or padded."""
    total, targets = 0.0, 0
    for index in batch:
        begins = [*torch.nonzero(split["positions"][index] == 0).flatten().tolist(), split["positions"].shape[1]]
        for begin, end in pairwise(begins):
            inputs, wanted = (split[name][index, begin:end].long() for name in ("inputs", "targets"))
            counts = wanted != -100
            if not counts.any():
                continue
            chances = network(inputs[None])[0].log_softmax(-1)
            total = total + entropy(chances[counts], wanted[counts], smoothing)
            targets += int(counts.sum())
    return total, targets


def rows(name):
    return lambda split: len(split[name])


TASKS = {
    "regression": (regression, rows("x")),
    "classification": (classification, rows("labels")),
    "language_modelling": (language_modelling, rows("tokens")),
    "instruction_tuning": (instruction_tuning, rows("inputs")),
    "summarization": (summarization, lambda split: len(split["summary_offsets"]) - 1),
}
