"""Memory, permutation and adaptive softmax, each beside its peer: `make bench-recurrent`.

- Evaluation at attention length 800: segments with a memory against a window that is computed anew for every token.
- A training step of Transformer-XL beside the last Transformers that had it, which runs in a process of its own (`make .venv-peer`).
- The adaptive softmax alone beside a plain one, with the memory of both.
- A pretraining step of XLNet beside Transformers' two-stream forward.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import etymon
from benchmarks.harness import (
    THREADS,
    TOY,
    Comparison,
    Process,
    alternate,
    peak_memory,
    peak_resident,
    record_memory,
    sized,
)
from benchmarks.training_steps import RATE, our_step, tokenizer_of
from etymon.nn.adaptive import AdaptiveEmbedding, AdaptiveVocabulary
from etymon.nn.batch import Batch
from etymon.objectives.permutation import Permutation, PermutationBatch, PermutationOptions
from etymon.objectives.recurrent import Recurrent, RecurrentBatch, RecurrentOptions
from etymon.training.unit import TrainingUnit

PEER = Path(os.environ.get("ETYMON_PEER", Path(__file__).parents[1] / ".venv-peer")) / "bin" / "python"


# --- evaluation


ATTENDED = sized(
    {"length": 800, "segment": 100, "text": 4001, "windows": 8},
    {"length": 24, "segment": 8, "text": 65, "windows": 2},
)


def evaluation(rounds: int = sized(5, 1)) -> Iterable[Comparison]:
    """Seconds a token. The window's cost is the same for every token, so a few tell it."""
    length, segment, windows = ATTENDED["length"], ATTENDED["segment"], ATTENDED["windows"]
    model = etymon.build("transformer-xl", "pocket", heads=["vocabulary"], shape={"memory": length}).eval()
    text = torch.randint(
        0, model.shape.vocabulary, (ATTENDED["text"],), generator=torch.Generator().manual_seed(0)
    )
    head, at = model.heads["vocabulary"], torch.tensor([length - 1])

    def with_memory() -> float:
        state, total = model.remember(1), 0.0
        for first in range(0, len(text) - 1, segment):
            targets = text[first + 1 : first + 1 + segment]
            hidden, state = model.hidden(Batch.of([text[first : first + len(targets)].numpy()]), state)
            total += float(head.target_log_probs(hidden, None, targets).sum())
        return total

    def window() -> float:
        total = 0.0
        for first in range(windows):
            hidden, _ = model.hidden(Batch.of([text[first : first + length].numpy()]))
            total += float(head.target_log_probs(hidden, at, text[first + length : first + length + 1]).sum())
        return total

    with torch.inference_mode():
        ours, theirs = alternate(with_memory, window, rounds, 1)
    yield Comparison(
        "recurrent-evaluation", [one / (len(text) - 1) for one in ours], [one / windows for one in theirs],
        peer="a window computed for every token", target=200.0,
        what=f"Transformer-XL pocket, seconds a token at attention length {length}, segments of {segment}",
    )  # fmt: skip


# --- Transformer-XL's training step

STEP = sized({"batch": 8, "length": 150, "memory": 150}, {"batch": 2, "length": 8, "memory": 8})
SHAPE: dict[str, Any] = {
    "vocabulary": 50_000, "dim": 410, "layers": 6, "heads": 10, "head_dim": 41, "inner_dim": 2100,
    "cutoffs": (10_000, 25_000), "divisor": 1, "memory": STEP["memory"], "same_length": False, "clamp": 0,
    "own_biases": True, "zero_start": True, "dropout": 0.1, "attention_dropout": 0.0,
    **sized({}, {"vocabulary": 400, "dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "inner_dim": 64, "cutoffs": (100, 200)}),
}  # fmt: skip


def xl_step() -> Callable[[], float]:
    model = etymon.build("transformer-xl", "wt103-base", heads=["vocabulary"], shape=SHAPE)
    draw = np.random.default_rng(0)
    ids = draw.integers(0, SHAPE["vocabulary"], (STEP["batch"], STEP["length"] + 1))
    batch, targets = Batch.of(list(ids[:, :-1])), torch.from_numpy(ids[:, 1:].ravel().copy())
    prepared = RecurrentBatch(
        counts={"loss": len(targets)}, tokens=len(targets), bytes=0.0, batch=batch, targets=targets, at=None,
        streams=tuple(range(STEP["batch"])), fresh=(False,) * STEP["batch"],
    )  # fmt: skip
    memory = STEP["memory"]
    options = RecurrentOptions(memory=memory, validation_memory=memory)
    objective = Recurrent(tokenizer_of("transformer-xl"), STEP["length"], options)
    return our_step(TrainingUnit(model, objective), prepared)


def xl_peer() -> Process:
    config = {
        "vocab_size": SHAPE["vocabulary"], "cutoffs": list(SHAPE["cutoffs"]), "d_model": SHAPE["dim"],
        "d_embed": SHAPE["dim"], "n_head": SHAPE["heads"], "d_head": SHAPE["head_dim"],
        "d_inner": SHAPE["inner_dim"], "div_val": 1, "n_layer": SHAPE["layers"], "mem_len": SHAPE["memory"],
        "clamp_len": -1, "same_length": False, "dropout": 0.1, "dropatt": 0.0, "tie_projs": [False, True, True],
    }  # fmt: skip
    peer = Process([str(PEER), "benchmarks/peers/transfo_xl.py"])
    peer.say(json.dumps({"config": config, "threads": THREADS, "rate": RATE, **STEP}))
    peer.hear()
    return peer


def transformer_xl(rounds: int = sized(9, 1), warmup: int = sized(3, 0)) -> Iterable[Comparison]:
    """At toy size our step stands beside itself: the peer has an environment of its own, which need not be there."""
    if TOY:
        ours, theirs = alternate(xl_step(), xl_step(), rounds, warmup)
    elif not PEER.is_file():
        print(f"Transformer-XL's step is left out: there is no {PEER} (make bench-recurrent)")
        return
    else:
        peer = xl_peer()
        try:
            ours, theirs = alternate(xl_step(), peer.ask, rounds, warmup)
        finally:
            peer.end()
    yield Comparison(
        "training-step-transformer-xl", ours, theirs, peer="Transformers 4.37.2", target=1.5,
        what=f"6 layers x 410, 50,000 words in three bins, batch {STEP['batch']}, segment and memory 150, AdamW",
    )  # fmt: skip


# --- the adaptive softmax

HEAD: dict[str, Any] = sized(
    {"tokens": 2048, "dim": 512, "words": 200_000, "cutoffs": (20_000, 60_000), "divisor": 4},
    {"tokens": 16, "dim": 16, "words": 200, "cutoffs": (20, 60), "divisor": 2},
)


def zipf() -> torch.Tensor:
    ranks = np.arange(1, HEAD["words"] + 1)
    drawn = np.random.default_rng(0).choice(len(ranks), HEAD["tokens"], p=1 / ranks / (1 / ranks).sum())
    return torch.from_numpy(drawn)


def head_step(side: str) -> tuple[Callable[[], None], list[torch.nn.Parameter]]:
    """Forward and backward of the head alone; the gradients go to the weights and to the hidden states."""
    targets, hidden = zipf(), torch.randn(HEAD["tokens"], HEAD["dim"])
    hidden = hidden.requires_grad_()
    if side == "ours":
        words = AdaptiveEmbedding(HEAD["words"], HEAD["dim"], HEAD["cutoffs"], divisor=HEAD["divisor"])
        head = AdaptiveVocabulary(words, HEAD["cutoffs"], tied=False)
        parameters = [*head.parameters()]
    else:
        parameters = [torch.nn.Parameter(torch.empty(HEAD["words"], HEAD["dim"]))]
    for parameter in parameters:
        torch.nn.init.normal_(parameter, std=0.02)

    def step() -> None:
        for tensor in (*parameters, hidden):
            tensor.grad = None
        if side == "ours":
            loss = head.loss(hidden, None, targets) / len(targets)
        else:
            loss = F.cross_entropy(hidden @ parameters[0].T, targets)
        loss.backward()

    return step, parameters


def resident() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return 1024 * float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def beyond_imports(side: str) -> float:
    """What a step needs beyond the parameters and their gradients."""
    torch.set_num_threads(THREADS)
    step, parameters = head_step(side)
    before = resident()
    step()
    gradients = sum(parameter.numel() * 4 for parameter in parameters)
    return max(1.0, peak_resident() - before - gradients)


def adaptive_softmax(rounds: int = sized(5, 1)) -> Iterable[Comparison]:
    ours, theirs = head_step("ours")[0], head_step("theirs")[0]
    times = alternate(ours, theirs, rounds, 1)
    memory = {side: peak_memory("benchmarks.recurrent", side) for side in ("ours", "theirs")}
    yield Comparison(
        "adaptive-softmax", *times, peer="a plain softmax", target=3.0,
        what="2,048 tokens, width 512, 200,000 words cut at 20,000 and 60,000, divisor 4, Zipf's targets",
        details=record_memory(memory, 0.25),
    )  # fmt: skip


# --- XLNet's pretraining step

PERMUTED = sized(
    {"rows": 8, "length": 128, "asked": 21, "memory": 128, "vocabulary": 32_000},
    {"rows": 2, "length": 16, "asked": 3, "memory": 16, "vocabulary": 400},
)
XLNET = sized(
    {"dim": 256, "layers": 4, "heads": 4, "inner_dim": 1024},
    {"dim": 32, "layers": 1, "heads": 2, "inner_dim": 64},
)


def permuted() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, factorisation orders (0: not asked, seen by all) and asked places, `[rows, ...]`."""
    draw, rows, length = np.random.default_rng(0), PERMUTED["rows"], PERMUTED["length"]
    ids = draw.integers(10, PERMUTED["vocabulary"], (rows, length))
    places = np.stack([np.sort(draw.choice(length, PERMUTED["asked"], replace=False)) for _ in ids])
    order = np.zeros((rows, length), np.int64)
    for row, asked in zip(order, places, strict=True):
        row[asked] = 1 + draw.permutation(len(asked))
    return ids, order, places


def xlnet_ours() -> Callable[[], float]:
    ids, order, places = permuted()
    shape = {**XLNET, "vocabulary": PERMUTED["vocabulary"], "memory": PERMUTED["memory"]}
    model = etymon.build("xlnet", "base", heads=["vocabulary"], shape=shape)
    at = (np.arange(len(ids))[:, None] * ids.shape[1] + places).ravel()
    batch = Batch.of(list(ids))
    batch.order = torch.from_numpy(order.ravel())
    prepared = PermutationBatch(
        counts={"permuted": len(at)}, tokens=ids.size, bytes=0.0, streams=tuple(range(len(ids))),
        fresh=(False,) * len(ids), batch=batch, at=torch.from_numpy(at),
        target_counts=(PERMUTED["asked"],) * len(ids), targets=torch.from_numpy(ids.ravel()[at].copy()),
    )  # fmt: skip
    memory, length = PERMUTED["memory"], PERMUTED["length"]
    # All of a row is remembered, as the peer does; the two pieces behind it, which a row of the library has, are not there.
    options = PermutationOptions(reuse=length, memory=memory, validation_memory=memory)
    objective = Permutation(tokenizer_of("xlnet"), 2 * length, options)
    return our_step(TrainingUnit(model, objective), prepared)


def xlnet_theirs() -> Callable[[], float]:
    from transformers import XLNetConfig, XLNetLMHeadModel

    ids, order, places = permuted()
    config = XLNetConfig(
        vocab_size=PERMUTED["vocabulary"], d_model=XLNET["dim"], n_layer=XLNET["layers"], n_head=XLNET["heads"],
        d_inner=XLNET["inner_dim"], mem_len=PERMUTED["memory"], use_mems_train=True,
    )  # fmt: skip
    model = XLNetLMHeadModel(config).train()
    hidden_from = (order[:, None, :] > 0) & (order[:, None, :] >= order[:, :, None])
    mapping = np.eye(PERMUTED["length"])[places]
    inputs = {
        "input_ids": torch.from_numpy(ids), "perm_mask": torch.from_numpy(hidden_from).float(),
        "target_mapping": torch.from_numpy(mapping).float(), "use_mems": True,
        "labels": torch.from_numpy(np.take_along_axis(ids, places, 1)),
    }  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    kept: dict[str, Any] = {}

    def step() -> float:
        output = model(**inputs, **kept)
        kept["mems"] = output.mems
        output.loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(output.loss.detach())

    return step


def xlnet(rounds: int = sized(9, 1), warmup: int = sized(3, 0)) -> Iterable[Comparison]:
    yield Comparison(
        "training-step-xlnet", *alternate(xlnet_ours(), xlnet_theirs(), rounds, warmup),
        peer="Transformers' two streams", target=1.5,
        what="4 layers x 256, 32,000 tokens, 8 rows of 128, 21 asked, memory 128, dropout 0.1, AdamW",
    )  # fmt: skip


RUNS = [evaluation, transformer_xl, adaptive_softmax, xlnet]
