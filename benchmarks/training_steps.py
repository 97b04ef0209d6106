"""Training steps beside Transformers: forward, backward and AdamW on the same batch, dropout as the family has it.

Masked steps compute logits only where a token was masked, ELECTRA's joint step samples from them there, and GPT-2's
computes them in chunks. Both sides get full rows, so nothing here comes from padding.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import etymon
from benchmarks.harness import Comparison, alternate, peak_memory, peak_resident, record_memory
from etymon.families.companions import generator_for
from etymon.nn.batch import Batch
from etymon.objectives.causal import Causal, CausalPrepared
from etymon.objectives.masked import Masked, MaskedPrepared
from etymon.objectives.objective import weighted_loss
from etymon.objectives.replaced import Replaced, ReplacedPrepared
from etymon.training.optimisers import OptimiserChoice, build_optimiser
from etymon.training.unit import TrainingUnit

RATE = 1e-4
MASK = 103


def masked_batch(vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids `[16, 128]` with masks put in, the masked places, and the tokens there: 15%, 80/10/10."""
    draw = np.random.default_rng(0)
    ids = draw.integers(1000, vocabulary, (16, 128))
    places = np.stack([np.sort(draw.choice(np.arange(1, 127), 19, replace=False)) for _ in ids])
    targets = np.take_along_axis(ids, places, 1)
    shown, dice = ids.copy(), draw.random(places.shape)
    changed = np.where(
        dice < 0.8, MASK, np.where(dice < 0.9, targets, draw.integers(0, vocabulary, places.shape))
    )
    np.put_along_axis(shown, places, changed, 1)
    return shown, places, targets


def flat(places: np.ndarray, length: int) -> torch.Tensor:
    return torch.from_numpy((np.arange(len(places))[:, None] * length + places).ravel())


def their_batch(vocabulary: int) -> dict[str, torch.Tensor]:
    shown, places, targets = masked_batch(vocabulary)
    labels = np.full_like(shown, -100)
    np.put_along_axis(labels, places, targets, 1)
    return {"input_ids": torch.from_numpy(shown), "labels": torch.from_numpy(labels)}


def our_step(unit: TrainingUnit, prepared: Any) -> Callable[[], float]:
    optimiser = build_optimiser(unit, OptimiserChoice(learning_rate=RATE))
    unit.train()

    def step() -> float:
        loss = weighted_loss(unit(prepared), prepared.counts)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def their_step(
    compute: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    model: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
) -> Callable[[], float]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()

    def step() -> float:
        loss = compute(inputs)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


MINI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
OURS = {"dim": 256, "layers": 4, "heads": 4, "inner_dim": 1024}
VOCABULARIES = {"bert": 30522, "roberta": 50265, "albert": 30000, "electra": 30522}


def masked_ours(family: str) -> Callable[[], float]:
    shown, places, targets = masked_batch(VOCABULARIES[family])
    shape = {**OURS, "vocabulary": VOCABULARIES[family]}
    if family == "albert":
        shape |= {"embedding_dim": 128, "dropout": 0.0, "attention_dropout": 0.0}
    model = etymon.build(family, "base", heads=["vocabulary"], shape=shape)
    at = flat(places, shown.shape[1])
    prepared = MaskedPrepared(
        counts={"masked": len(at)}, tokens=shown.size, bytes=0.0, batch=Batch.of(list(shown)), at=at,
        targets=torch.from_numpy(targets.ravel()),
    )  # fmt: skip
    # Only its loss is wanted: the batch is made here.
    return our_step(TrainingUnit(model, Masked.__new__(Masked)), prepared)


def masked_theirs(family: str) -> Callable[[], float]:
    import transformers

    title = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert"}[family]
    extra = {"embedding_size": 128} if family == "albert" else {}
    config = getattr(transformers, f"{title}Config")(
        vocab_size=VOCABULARIES[family], attn_implementation="sdpa", **MINI, **extra
    )
    model = getattr(transformers, f"{title}ForMaskedLM")(config)
    return their_step(lambda batch: model(**batch).loss, model, their_batch(config.vocab_size))


def electra_ours() -> Callable[[], float]:
    shown, places, targets = masked_batch(30522)
    model = etymon.build("electra", "small", heads=["replaced"], shape={**OURS, "embedding_dim": 128})
    objective = Replaced.__new__(Replaced)
    objective.weight, objective.temperature = 50.0, 1.0
    at = flat(places, shown.shape[1])
    prepared = ReplacedPrepared(
        counts={"generator": len(at), "discriminator": shown.size}, tokens=shown.size, bytes=0.0,
        batch=Batch.of(list(shown)), at=at, targets=torch.from_numpy(targets.ravel()),
uniforms=torch.rand(len(at)),
    )  # fmt: skip
    return our_step(TrainingUnit(model, objective, {"generator": generator_for(model, {}, 0)}), prepared)


def electra_theirs() -> Callable[[], float]:
    """The plain way to put Transformers' two classes together: full logits, a sample from Gumbel's noise."""
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    common = {"vocab_size": 30522, "embedding_size": 128, "attn_implementation": "sdpa"}
    small = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 1, "intermediate_size": 256}
    model = torch.nn.ModuleDict(
        {
            "generator": ElectraForMaskedLM(ElectraConfig(**common, **small)),
            "discriminator": ElectraForPreTraining(ElectraConfig(**common, **MINI)),
        }
    )
    generator, discriminator = model["generator"], model["discriminator"]
    discriminator.electra.embeddings = generator.electra.embeddings

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        guessed = generator(**batch)
        hidden = batch["labels"] != -100
        with torch.no_grad():
            noise = -torch.empty_like(guessed.logits[hidden]).exponential_().log()
            drawn = (guessed.logits[hidden] + noise).argmax(-1)
        original = torch.where(hidden, batch["labels"], batch["input_ids"])
        ids = original.clone()
        ids[hidden] = drawn
        found = discriminator(input_ids=ids, labels=(ids != original).long())
        return guessed.loss + 50 * found.loss

    return their_step(loss, model, their_batch(30522))


def gpt2_ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50257, (8, 257))


def gpt2_ours() -> Callable[[], float]:
    ids = gpt2_ids()
    model = etymon.build("gpt2", "small", heads=["vocabulary"], shape={"layers": 4})
    targets = ids[:, 1:].ravel()
    prepared = CausalPrepared(
        counts={"loss": targets.size}, tokens=targets.size, bytes=0.0,
        batch=Batch.of(list(ids[:, :-1])), targets=torch.from_numpy(targets), at=None,
    )  # fmt: skip
    return our_step(TrainingUnit(model, Causal.__new__(Causal)), prepared)


def gpt2_theirs() -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.from_numpy(gpt2_ids()[:, :-1])
    config = GPT2Config(n_layer=4, attn_implementation="sdpa", use_cache=False)
    model = GPT2LMHeadModel(config)
    return their_step(lambda batch: model(**batch).loss, model, {"input_ids": ids, "labels": ids})


SIDES: dict[str, tuple[Callable[[], Callable[[], float]], Callable[[], Callable[[], float]]]] = {
    **{
        family: (partial(masked_ours, family), partial(masked_theirs, family))
        for family in ("bert", "roberta", "albert")
    },
    "electra": (electra_ours, electra_theirs),
    "gpt2": (gpt2_ours, gpt2_theirs),
}
WANTED = {
    "bert": ("BERT-mini (4 layers, 256, vocabulary 30,522) masked step, 16 x 128", 2.6),
    "roberta": ("RoBERTa (4 layers, 256, vocabulary 50,265) masked step, 16 x 128", 2.3),
    "albert": ("ALBERT (4 layers, 256, embeddings 128, vocabulary 30,000) masked step, 16 x 128", 2.3),
    "electra": (
        "ELECTRA (4 layers, 256, embeddings 128, generator 64 wide, 30,522) joint step, 16 x 128",
        2.0,
    ),
    "gpt2": ("GPT-2 (4 layers, 768, vocabulary 50,257) step, 8 x 256", 1.15),
}


def run() -> list[Comparison]:
    results = []
    for name, (what, target) in WANTED.items():
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
