"""Minimal pairs beside minicons: 2,000 pairs of BLiMP through GPT-2 and BERT, each library at its best batch size.

Scores are compared first: sums of log-probabilities equal to 1e-4. Models have the published shapes and first values, since no
figure here depends on what a model has learnt; sentences are cut by tokenizers of the published kind and size, trained on the spot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import etymon
from benchmarks.harness import Comparison, alternate, needed_corpora, sized
from etymon.families import get_family
from etymon.generation.sentence_scores import score_sentences
from etymon.lab.pairs import MinimalPair, read_pairs
from etymon.nn.products import choose_products
from etymon.text.tokenizer_training import train_tokenizer

PAIRS = sized(2000, 12)
PARADIGMS = 67
# A base model's round takes many minutes on two cores: the wider table is of the size that people train there.
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "gpt2": {
        "6x384": sized({"dim": 384, "layers": 6, "heads": 6}, {"dim": 32, "layers": 2, "heads": 2}),
        "12x768": sized({"dim": 768, "layers": 12, "heads": 12}, {"dim": 32, "layers": 2, "heads": 2}),
    },
    "bert": {
        "6x384": sized(
            {"dim": 384, "layers": 6, "heads": 6, "inner_dim": 1536},
            {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 64},
        ),
        "12x768": sized(
            {"dim": 768, "layers": 12, "heads": 12, "inner_dim": 3072},
            {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 64},
        ),
    },
}
WORDS = {"gpt2": sized(50257, 400), "bert": sized(30522, 400)}
BATCHES = sized((1, 4, 16, 64, 256), (4, 8))
TRIAL = sized(64, 4)
"""Pairs by which minicons' best batch size is found."""
ROUNDS = {"6x384": sized(3, 1), "12x768": 1}
SHARES = {("bert", "12x768"): sized(10, 1)}
"""One pair in so many is scored: a masked base model takes half an hour for all."""


def pairs() -> Iterator[Comparison]:
    corpora = needed_corpora("BLiMP")
    every = read_pairs([corpora / "blimp"], most=-(-PAIRS // PARADIGMS))[:PAIRS]
    texts = [
        path.read_text(encoding="utf-8")
        for path in sorted((corpora / "eltec-novels").glob("*.txt"))[: sized(20, 2)]
    ]
    for family, shapes in SHAPES.items():
        tokenizer = _tokenizer(family, texts)
        for name, shape in shapes.items():
            chosen = every[:: SHARES.get((family, name), 1)]
            yield _compare(family, name, shape, tokenizer, chosen)


def _tokenizer(family: str, texts: list[str]) -> Any:
    choice = get_family(family).tokenizer
    return train_tokenizer(
        choice.kind,
        texts,
        WORDS[family],
        lowercase=choice.lowercase,
        strip_accents=choice.strip_accents,
        specials=choice.specials,
        framing=get_family(family).framing,
    )


def _compare(
    family: str, name: str, shape: dict[str, Any], tokenizer: Any, chosen: list[MinimalPair]
) -> Comparison:
    # As many words as published, whether the tokenizer filled them or not: the head is a good part of the work.
    words = max(WORDS[family], tokenizer.size)
    model = etymon.build(family, shape={**shape, "vocabulary": words}, heads=["vocabulary"])
    model.tokenizer = tokenizer
    folder = Path(mkdtemp(prefix="etymon-pairs-")) / "model"
    etymon.save(model, folder)
    model = etymon.load(folder)
    choose_products(model)
    peer = _peer(family, folder)
    sentences = [sentence for pair in chosen for sentence in (pair.good, pair.bad)]
    batch, trials = _best_batch(family, peer, sentences[: 2 * TRIAL])
    scored = [score.log_prob for score in score_sentences(model, sentences[: 2 * TRIAL])]
    difference = max(
        abs(a - b) for a, b in zip(scored, _their_scores(family, peer, sentences[: 2 * TRIAL], batch))
    )
    assert difference < 1e-3, f"the two disagree by {difference}"
    ours, theirs = alternate(
        partial(score_sentences, model, sentences),
        partial(_their_scores, family, peer, sentences, batch),
        rounds=ROUNDS[name],
        warmup=0,
    )
    return Comparison(
        name=f"pairs-{family}-{name}",
        ours=ours,
        theirs=theirs,
        peer="minicons 0.3.39",
        what=f"{len(chosen):,} pairs of BLiMP, {family} of {name}, {words:,} words, minicons in batches of {batch}",
        target=3.0,
        details={
            "largest_difference": difference,
            "batch": batch,
            "seconds_by_batch": trials,
            "pairs": len(chosen),
        },
    )


def _peer(family: str, folder: Path) -> Any:
    from minicons.scorer import IncrementalLMScorer, MaskedLMScorer

    if family == "gpt2":
        return IncrementalLMScorer(str(folder), "cpu")
    peer = MaskedLMScorer(str(folder), "cpu")
    if not hasattr(peer.tokenizer, "batch_encode_plus"):  # which Transformers 5 has no more
        kind = type(peer.tokenizer)
        kind.batch_encode_plus = kind.__call__
    return peer


def _their_scores(family: str, peer: Any, sentences: list[str], batch: int) -> list[float]:
    options: dict[str, Any] = {"bos_token": True} if family == "gpt2" else {"PLL_metric": "original"}
    scores: list[float] = []
    for first in range(0, len(sentences), batch):
        part = sentences[first : first + batch]
        scores += peer.sequence_score(part, reduction=lambda each: each.sum(0).item(), **options)
    return scores


def _best_batch(family: str, peer: Any, sentences: list[str]) -> tuple[int, dict[int, float]]:
    times = {}
    for batch in BATCHES:
        _their_scores(family, peer, sentences[:batch], batch)  # warm
        begin = time.perf_counter()
        _their_scores(family, peer, sentences, batch)
        times[batch] = time.perf_counter() - begin
    return min(times, key=times.__getitem__), times


RUNS = [pairs]
