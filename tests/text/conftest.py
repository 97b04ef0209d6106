"""A small corpus and one trained tokenizer of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from etymon.text.reading import Document
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer

SPECIALS: dict[str, dict[str, str]] = {
    "byte-bpe": {"begin": "<|endoftext|>", "end": "<|endoftext|>"},
    "wordpiece": {
        "pad": "[PAD]", "unknown": "[UNK]", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]",
    },
    "unigram": {"pad": "<pad>", "end": "</s>", "unknown": "<unk>"},
}  # fmt: skip
NOUNS = [
    "river",
    "mountain",
    "letter",
    "garden",
    "winter",
    "captain",
    "window",
    "morning",
    "village",
    "question",
]
VERBS = ["crossed", "remembered", "followed", "painted", "wanted", "carried", "opened", "answered"]


def story(number: int, sentences: int) -> str:
    """A deterministic little text with commas, quotes, an abbreviation, accents and paragraphs."""
    draw = np.random.default_rng(number)
    lines = []
    for place in range(sentences):
        one, two = draw.choice(NOUNS, 2)
        verb = draw.choice(VERBS)
        line = f"The {one} {verb} the {two}, and {number} people saw it."
        if place % 4 == 1:
            line = f'"Why," asked Mr. Café, "has the {one} {verb} my {two}?"'
        lines.append(line + ("\n" if place % 5 == 4 else " "))
    return "".join(lines).strip()


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    made = [Document(story(number, 3 + number % 17)) for number in range(60)]
    made.append(Document("我们去公园。天气很好！你呢？ 😀 नमस्ते। ठीक है।"))
    return made


def train(kind: str, documents: list[Document], size: int = 600, **options: object) -> Tokenizer:
    texts = [document.text for document in documents]
    sentinels = 10 if kind == "unigram" else 0
    arguments: dict[str, object] = {"specials": SPECIALS[kind], "sentinels": sentinels, **options}
    return train_tokenizer(kind, texts, size, **arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def trained(documents: list[Document]) -> dict[str, Tokenizer]:
    return {kind: train(kind, documents) for kind in SPECIALS}


@pytest.fixture(scope="session", params=list(SPECIALS))
def tokenizer(request: pytest.FixtureRequest, trained: dict[str, Tokenizer]) -> Tokenizer:
    return trained[request.param]
