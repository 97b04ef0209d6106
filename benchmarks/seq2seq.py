"""Encoder-decoders: training steps on dialogues and their summaries beside Transformers with padded batches.

Both sides of a step get the same rows in the same batches, drawn at random from samsum, so lengths are as they are in life: the peer pads every batch to its
longest row, as its collators do. Forward, backward and AdamW, dropout 0.1 on both sides.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

import etymon
from benchmarks.harness import Comparison, needed_corpora, sized
from benchmarks.training_steps import RATE, compare_precisions
from etymon.families.decoders import BYTE_BPE
from etymon.nn.batch import Batch
from etymon.nn.precision import Precision, set_precision
from etymon.text.tokenizer_training import train_tokenizer
from etymon.training.optimisers import OptimiserChoice, build_optimiser

ROWS, BATCHES, LONGEST, VOCABULARY = sized((16, 8, 512, 8000), (4, 2, 64, 800))
WIDTH, LAYERS, HEADS, ROUNDS, WARMUP = sized((256, 3, 4, 5, 1), (32, 1, 2, 1, 0))
PAD, START = 0, 1
SHAPE: dict[str, dict[str, Any]] = {
    "bart": {"dim": WIDTH, "layers": LAYERS, "heads": HEADS, "inner_dim": 4 * WIDTH, "positions": LONGEST},
    "t5": {
        "dim": WIDTH,
        "layers": LAYERS,
        "heads": HEADS,
        "head_dim": WIDTH // HEADS,
        "inner_dim": 4 * WIDTH,
    },
}
Pairs = Sequence[tuple[np.ndarray, np.ndarray]]


def batches() -> list[Pairs]:
    with open(needed_corpora("samsum") / "samsum" / "train.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["dialogue"].strip() and row["summary"].strip()]
    chosen = [
        rows[number] for number in np.random.default_rng(0).choice(len(rows), ROWS * BATCHES, replace=False)
    ]
    texts = [row[column] for row in chosen for column in ("dialogue", "summary")]
    tokenizer = train_tokenizer(BYTE_BPE.kind, texts, VOCABULARY // 2, specials=BYTE_BPE.specials)
    ids = [
        one[:LONGEST].astype(np.int64) + 2 for one in tokenizer.encode_batch(texts)
    ]  # 0 and 1 have their own use
    pairs = list(zip(ids[::2], ids[1::2], strict=True))
    return [pairs[first : first + ROWS] for first in range(0, len(pairs), ROWS)]


def ours(family: str, given: Sequence[Pairs], precision: Precision) -> Callable[[], object]:
    shape = {**SHAPE[family], "vocabulary": VOCABULARY}
    model = etymon.build(family, "base", heads=["vocabulary"], shape=shape).train()
    set_precision(model, precision)
    optimiser = build_optimiser(model, OptimiserChoice(learning_rate=RATE))
    made = [
        (
            Batch.of([source for source, _ in pairs]),
            Batch.of([np.concatenate([[START], target[:-1]]) for _, target in pairs]),
            torch.from_numpy(np.concatenate([target for _, target in pairs])),
        )
        for pairs in (sorted(pairs, key=lambda pair: len(pair[0])) for pairs in given)
    ]
    following = cycle(made)

    def epoch() -> None:
        for _ in made:
            source, decoder, targets = next(following)
            hidden, _ = model.decode(decoder, model.encode(source))
            loss = model.heads["vocabulary"].loss(hidden, None, targets) / len(targets)  # type: ignore[operator]
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return epoch


def padded(rows: Iterator[np.ndarray], blank: int) -> torch.Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=blank)


def theirs(family: str, given: Sequence[Pairs], precision: Precision) -> Callable[[], object]:
    from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

    known = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "decoder_start_token_id": START, "d_model": WIDTH}
    model: Any
    if family == "bart":
        sides = {
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", 4 * WIDTH))
        }
        config = BartConfig(**known, **sides, max_position_embeddings=LONGEST, attn_implementation="sdpa")
        model = BartForConditionalGeneration(config).train()
    else:
        model = T5ForConditionalGeneration(
            T5Config(
                **known,
                num_layers=LAYERS,
                num_heads=HEADS,
                d_kv=WIDTH // HEADS,
                d_ff=4 * WIDTH,
                feed_forward_proj="relu",
            )
        ).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    made = []
    for pairs in given:
        ids = padded((source for source, _ in pairs), PAD)
        made.append(
            {
                "input_ids": ids,
                "attention_mask": (ids != PAD).long(),
                "labels": padded((one for _, one in pairs), -100),
            }
        )

    def epoch() -> None:
        for inputs in made:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**inputs).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return epoch


def training_step(family: str) -> Iterable[Comparison]:
    given = batches()
    lengths = [len(source) for pairs in given for source, _ in pairs]
    fill = sum(lengths) / sum(max(len(source) for source, _ in pairs) * len(pairs) for pairs in given)
    yield from compare_precisions(
        f"training-step-{family}", (partial(ours, family, given), partial(theirs, family, given)),
        f"{BATCHES} batches of {ROWS} dialogues of samsum, 3 + 3 layers x 256, AdamW", (1.6, 3.0), ROUNDS, WARMUP,
        peer="Transformers, padded",
        details={"filled": round(fill, 3), "target_tokens": sum(len(t) for pairs in given for _, t in pairs)},
    )  # fmt: skip


RUNS = [partial(training_step, family) for family in ("bart", "t5")]
