"""Training steps beside Transformers: forward, backward and AdamW on the same batch, dropout on.

BERT-mini's masked step computes logits only where a token was masked; GPT-2's computes them in chunks. Both sides get
full rows, so nothing here comes from padding.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import etymon
from benchmarks.harness import Comparison, alternate, peak_memory, peak_resident, record_memory
from etymon.nn.batch import Batch
from etymon.objectives.causal import Causal, CausalPrepared
from etymon.objectives.masked import Masked, MaskedPrepared
from etymon.objectives.objective import weighted_loss
from etymon.training.optimisers import OptimiserChoice, build_optimiser
from etymon.training.unit import TrainingUnit

RATE = 1e-4
MASK = 103


def bert_batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids `[16, 128]` with masks put in, the masked places, and the tokens there: 15%, 80/10/10."""
    draw = np.random.default_rng(0)
    ids = draw.integers(1000, 30522, (16, 128))
    places = np.stack([np.sort(draw.choice(np.arange(1, 127), 19, replace=False)) for _ in ids])
    targets = np.take_along_axis(ids, places, 1)
    shown, dice = ids.copy(), draw.random(places.shape)
    changed = np.where(dice < 0.8, MASK, np.where(dice < 0.9, targets, draw.integers(0, 30522, places.shape)))
    np.put_along_axis(shown, places, changed, 1)
    return shown, places, targets


def our_step(unit: TrainingUnit, prepared: Any) -> Callable[[], float]:
    optimiser = build_optimiser(unit.model, OptimiserChoice(learning_rate=RATE))
    unit.train()

    def step() -> float:
        loss = weighted_loss(unit(prepared), prepared.counts)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def their_step(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], float]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()

    def step() -> float:
        loss = model(**inputs).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def bert_ours() -> Callable[[], float]:
    shown, places, targets = bert_batch()
    model = etymon.build("bert", "mini", heads=["vocabulary"])
    objective = Masked.__new__(Masked)  # only its loss is wanted: the batch is made here
    at = (np.arange(len(shown))[:, None] * shown.shape[1] + places).ravel()
    prepared = MaskedPrepared(
        counts={"masked": at.size, "masked_accuracy": at.size}, tokens=shown.size, bytes=0.0,
        batch=Batch.of(list(shown)), at=torch.from_numpy(at), targets=torch.from_numpy(targets.ravel()),
        random_next=torch.zeros(len(shown), dtype=torch.long),
    )  # fmt: skip
    return our_step(TrainingUnit(model, objective), prepared)


def bert_theirs() -> Callable[[], float]:
    from transformers import BertConfig, BertForMaskedLM

    shown, places, targets = bert_batch()
    labels = np.full_like(shown, -100)
    np.put_along_axis(labels, places, targets, 1)
    config = BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        attn_implementation="sdpa",
    )
    inputs = {"input_ids": torch.from_numpy(shown), "labels": torch.from_numpy(labels)}
    return their_step(BertForMaskedLM(config), inputs)


def gpt2_ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50257, (8, 257))


def gpt2_ours() -> Callable[[], float]:
    ids = gpt2_ids()
    model = etymon.build("gpt2", "small", heads=["vocabulary"], shape={"layers": 4})
    targets = ids[:, 1:].ravel()
    prepared = CausalPrepared(
        counts={"loss": targets.size}, tokens=targets.size, bytes=0.0,
        batch=Batch.of(list(ids[:, :-1])), targets=torch.from_numpy(targets),
    )  # fmt: skip
    return our_step(TrainingUnit(model, Causal.__new__(Causal)), prepared)


def gpt2_theirs() -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.from_numpy(gpt2_ids()[:, :-1])
    config = GPT2Config(n_layer=4, attn_implementation="sdpa", use_cache=False)
    return their_step(GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids})


SIDES = {"bert": (bert_ours, bert_theirs), "gpt2": (gpt2_ours, gpt2_theirs)}


def run() -> list[Comparison]:
    results = []
    for name, what, target in (
        ("bert", "BERT-mini (4 layers, 256, vocabulary 30,522) masked step, 16 x 128", 2.6),
        ("gpt2", "GPT-2 (4 layers, 768, vocabulary 50,257) step, 8 x 256", 1.15),
    ):
        ours, theirs = (make() for make in SIDES[name])
        times = alternate(ours, theirs, rounds=7, warmup=3)
        memory = {side: peak_memory("benchmarks.training_steps", name, side) for side in ("ours", "theirs")}
        results.append(
            Comparison(
                f"training-step-{name}",
                *times,
                peer="Transformers",
                what=what,
                target=target,
                details=record_memory(memory, target=0.6 if name == "gpt2" else None),
            )
        )
    return results


def main() -> None:
    """In a fresh process: prints the memory that three steps of one side need beyond the imports."""
    import psutil
    import transformers  # noqa: F401 - both sides have imported the same

    torch.set_num_threads(2)
    name, side = sys.argv[1:3]
    process = psutil.Process()
    before = process.memory_info().rss
    step = SIDES[name][0 if side == "ours" else 1]()
    for _ in range(3):
        step()
    print(json.dumps({"beyond_imports": peak_resident() - before}))


if __name__ == "__main__":
    main()
