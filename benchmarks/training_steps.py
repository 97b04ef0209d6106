"""Training steps beside Transformers: forward, backward and AdamW on the same batch, dropout as the family has it.

Each side in float32 and in bfloat16 (Transformers under `torch.autocast`), all in turn: float32 is compared with float32, the best of ours with
the best of theirs, and our bfloat16 with our float32.

Masked steps compute logits only where a token was masked, ELECTRA's joint step samples from them there, and GPT-2's
computes them in chunks. Both sides get full rows, so nothing here comes from padding.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch

import etymon
from benchmarks.harness import (
    THREADS,
    Comparison,
    in_turn,
    peak_memory,
    peak_resident,
    record_memory,
    sized,
)
from etymon.families import get_family
from etymon.families.surgery import generator_for
from etymon.nn.batch import Batch
from etymon.nn.precision import Precision, set_precision
from etymon.objectives.causal import CausalBatch, CausalLM
from etymon.objectives.masked import MaskedExample, MaskedLM
from etymon.objectives.objective import weighted_loss
from etymon.objectives.replaced import Replaced
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from etymon.training.optimisers import OptimiserChoice, build_optimiser
from etymon.training.unit import TrainingUnit

RATE = 1e-4
MASK = 103
ROWS, LENGTH, MASKED = sized((16, 128, 19), (2, 16, 3))
GPT2_ROWS, GPT2_LENGTH = sized((8, 256), (2, 16))


@cache
def tokenizer_of(family: str) -> Tokenizer:
    """One of bytes with the family's special tokens: what an objective is made for. Batches are drawn, and need none."""
    known = get_family(family)
    return train_tokenizer("byte", (), 300, specials=known.tokenizer.specials, framing=known.framing)


def masked_batch(vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids `[rows, length]` with masks put in, the masked places, and the tokens there: 15%, 80/10/10."""
    draw = np.random.default_rng(0)
    ids = draw.integers(vocabulary // 10, vocabulary, (ROWS, LENGTH))
    inner = np.arange(1, LENGTH - 1)
    places = np.stack([np.sort(draw.choice(inner, MASKED, replace=False)) for _ in ids])
    targets = np.take_along_axis(ids, places, 1)
    shown, dice = ids.copy(), draw.random(places.shape)
    changed = np.where(
        dice < 0.8, MASK, np.where(dice < 0.9, targets, draw.integers(0, vocabulary, places.shape))
    )
    np.put_along_axis(shown, places, changed, 1)
    return shown, places, targets


def their_batch(vocabulary: int) -> dict[str, torch.Tensor]:
    shown, places, targets = masked_batch(vocabulary)
    labels = np.full_like(shown, -100)
    np.put_along_axis(labels, places, targets, 1)
    return {"input_ids": torch.from_numpy(shown), "labels": torch.from_numpy(labels)}


def our_step(unit: TrainingUnit, prepared: Any, precision: Precision = "float32") -> Callable[[], float]:
    set_precision(unit, precision)
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
    precision: Precision = "float32",
) -> Callable[[], float]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = compute(inputs)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


WIDTH, LAYERS, HEADS = sized((256, 4, 4), (32, 1, 2))
MINI = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH,
}  # fmt: skip
OURS = {"dim": WIDTH, "layers": LAYERS, "heads": HEADS, "inner_dim": 4 * WIDTH}
VOCABULARIES = sized(
    {"bert": 30522, "roberta": 50265, "albert": 30000, "electra": 30522, "gpt2": 50257},
    dict.fromkeys(("bert", "roberta", "albert", "electra", "gpt2"), 400),
)
EMBEDDED = sized(128, 16)


def masked_ours(family: str, precision: Precision) -> Callable[[], float]:
    shown, places, targets = masked_batch(VOCABULARIES[family])
    shape = {**OURS, "vocabulary": VOCABULARIES[family]}
    if family == "albert":
        shape |= {"embedding_dim": EMBEDDED, "dropout": 0.0, "attention_dropout": 0.0}
    model = etymon.build(family, "base", heads=["vocabulary"], shape=shape)
    objective, segments = MaskedLM(tokenizer_of(family), LENGTH), np.zeros(LENGTH, np.int64)
    prepared = objective.collate(
        [MaskedExample(ids, segments, at, words) for ids, at, words in zip(shown, places, targets)]
    )
    return our_step(TrainingUnit(model, objective), prepared, precision)


def masked_theirs(family: str, precision: Precision) -> Callable[[], float]:
    import transformers

    title = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert"}[family]
    extra = {"embedding_size": EMBEDDED} if family == "albert" else {}
    config = getattr(transformers, f"{title}Config")(
        vocab_size=VOCABULARIES[family], attn_implementation="sdpa", **MINI, **extra
    )
    model = getattr(transformers, f"{title}ForMaskedLM")(config)
    return their_step(lambda batch: model(**batch).loss, model, their_batch(config.vocab_size), precision)


def electra_ours(precision: Precision) -> Callable[[], float]:
    shown, places, targets = masked_batch(VOCABULARIES["electra"])
    shape = {**OURS, "embedding_dim": EMBEDDED, "vocabulary": VOCABULARIES["electra"]}
    model = etymon.build("electra", "small", heads=["replaced"], shape=shape)
    objective, segments = Replaced(tokenizer_of("electra"), LENGTH), np.zeros(LENGTH, np.int64)
    uniforms = np.random.default_rng(1).random(places.shape, np.float32)
    prepared = objective.collate(
        [
            MaskedExample(ids, segments, at, words, uniforms=drawn)
            for ids, at, words, drawn in zip(shown, places, targets, uniforms)
        ]
    )
    unit = TrainingUnit(model, objective, {"generator": generator_for(model, {}, 0)})
    return our_step(unit, prepared, precision)


def electra_theirs(precision: Precision) -> Callable[[], float]:
    """The plain way to put Transformers' two classes together: full logits, a sample from Gumbel's noise."""
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    common = {
        "vocab_size": VOCABULARIES["electra"], "embedding_size": EMBEDDED, "attn_implementation": "sdpa",
    }  # fmt: skip
    small = {
        "hidden_size": WIDTH // 4, "num_hidden_layers": LAYERS, "num_attention_heads": 1, "intermediate_size": WIDTH,
    }  # fmt: skip
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

    return their_step(loss, model, their_batch(VOCABULARIES["electra"]), precision)


GPT2 = {
    "dim": sized(768, 32),
    "layers": sized(4, 1),
    "heads": sized(12, 2),
    "vocabulary": VOCABULARIES["gpt2"],
}


def gpt2_ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARIES["gpt2"], (GPT2_ROWS, GPT2_LENGTH + 1))


def gpt2_ours(precision: Precision) -> Callable[[], float]:
    ids = gpt2_ids()
    model = etymon.build("gpt2", "small", heads=["vocabulary"], shape=GPT2)
    targets = ids[:, 1:].ravel()
    prepared = CausalBatch(
        counts={"loss": targets.size}, tokens=targets.size, bytes=0.0,
        batch=Batch.of(list(ids[:, :-1])), targets=torch.from_numpy(targets), at=None,
    )  # fmt: skip
    return our_step(TrainingUnit(model, CausalLM(tokenizer_of("gpt2"), GPT2_LENGTH)), prepared, precision)


def gpt2_theirs(precision: Precision) -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.from_numpy(gpt2_ids()[:, :-1])
    config = GPT2Config(
        vocab_size=GPT2["vocabulary"], n_embd=GPT2["dim"], n_layer=GPT2["layers"], n_head=GPT2["heads"],
        attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    return their_step(lambda batch: model(**batch).loss, model, {"input_ids": ids, "labels": ids}, precision)


Make = Callable[[Precision], Callable[[], object]]
SIDES: dict[str, tuple[Make, Make]] = {
    **{
        family: (partial(masked_ours, family), partial(masked_theirs, family))
        for family in ("bert", "roberta", "albert")
    },
    "electra": (electra_ours, electra_theirs),
    "gpt2": (gpt2_ours, gpt2_theirs),
}
WANTED: dict[str, tuple[str, float, float]] = {
    "bert": ("BERT-mini (4 layers, 256, vocabulary 30,522) masked step, 16 x 128", 2.6, 3.0),
    "roberta": ("RoBERTa (4 layers, 256, vocabulary 50,265) masked step, 16 x 128", 2.3, 3.0),
    "albert": ("ALBERT (4 layers, 256, embeddings 128, vocabulary 30,000) masked step, 16 x 128", 2.3, 3.0),
    "electra": (
        "ELECTRA (4 layers, 256, embeddings 128, generator 64 wide, 30,522) joint step, 16 x 128",
        2.0,
        3.0,
    ),
    "gpt2": ("GPT-2 (4 layers, 768, vocabulary 50,257) step, 8 x 256", 1.15, 1.25),
}
"""What is measured, and how many times as fast ours should be: both in float32, and the best of each side."""
BF16_GAIN = 1.5


def compare_precisions(
    name: str,
    sides: tuple[Make, Make],
    what: str,
    targets: tuple[float, float],
    rounds: int,
    warmup: int,
    peer: str = "Transformers",
    details: Mapping[str, Any] | None = None,
) -> Iterable[Comparison]:
    """Both sides in both precisions, in turn: float32 against float32, best against best, and our bfloat16 against our
    float32."""
    precisions: tuple[Precision, ...] = ("float32", "bf16")
    runs = {
        f"{side} {precision}": make(precision)
        for side, make in zip(("ours", "theirs"), sides, strict=True)
        for precision in precisions
    }
    times = in_turn(runs, rounds, warmup)
    kept = dict(details or {})
    yield Comparison(
        name, times["ours float32"], times["theirs float32"], peer=f"{peer}, both in float32", what=what,
        target=targets[0], details=kept,
    )  # fmt: skip
    best = {
        side: min(precisions, key=lambda each: statistics.median(times[f"{side} {each}"]))
        for side in ("ours", "theirs")
    }
    yield Comparison(
        f"{name}-best", times[f"ours {best['ours']}"], times[f"theirs {best['theirs']}"],
        peer=f"{peer}, ours in {best['ours']}, theirs in {best['theirs']}", what=what, target=targets[1],
        details={**kept, "seconds": {side: round(statistics.median(part), 4) for side, part in times.items()}},
    )  # fmt: skip
    yield Comparison(
        f"{name}-bf16", times["ours bf16"], times["ours float32"], peer="our own float32", what=what,
        target=BF16_GAIN, details=kept,
    )  # fmt: skip


def training_step(name: str, rounds: int = sized(7, 1), warmup: int = sized(3, 1)) -> Iterable[Comparison]:
    what, *targets = WANTED[name]
    memory = {
        side: peak_memory("benchmarks.training_steps", name, side, precision)
        for side, precision in (("ours", "bf16"), ("theirs", "bf16"))
    }
    details = record_memory(memory, target=0.55 if name == "gpt2" else None)
    yield from compare_precisions(
        f"training-step-{name}", SIDES[name], what, (targets[0], targets[1]), rounds, warmup,
        details={**details, "memory_precision": "bf16"},
    )  # fmt: skip


RUNS = [partial(training_step, name) for name in WANTED]


def beyond_imports(name: str, side: str, precision: Precision) -> float:
    """Bytes that three steps of one side need at most."""
    import psutil
    import transformers  # noqa: F401 - both sides have imported the same

    torch.set_num_threads(THREADS)
    before = psutil.Process().memory_info().rss
    step = SIDES[name][0 if side == "ours" else 1](precision)
    for _ in range(3):
        step()
    return peak_resident() - before
