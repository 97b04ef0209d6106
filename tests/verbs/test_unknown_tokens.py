"""A text that a tokenizer does not know is noted by every verb that reads it, once; and what is unknown is shown, not dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.families.saving import save
from tests import tiny
from tests.tasks.heads import TABLE, begun

STRANGE = "Σωκράτης περπατούσε στην αγορά the river"
"""Most of it in letters that no tokenizer of these tests has seen."""
NOTE = "are unknown to the tokenizer"
ROWS = [{"text": f"{STRANGE} {n}", "label": "bad" if n % 2 else "good"} for n in range(8)]
PROMPT = {
    "template": "{question}: {answer}",
    "queries": [{"question": STRANGE, "answer": "a"}],
    "choices": ["a", "the"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    for family, heads in (("gpt1", {"vocabulary"}), ("bert", {"vocabulary"}), ("electra", {"replaced"})):
        save(tiny.model(family, frozenset(heads)), place / family)
    task, model = begun("bert")
    model.history = [{"task": task.describe()}]
    save(model, place / "task")
    (place / "text.txt").write_text("\n\n".join([STRANGE] * 40), encoding="utf-8")
    lines = [f"{split}\t{'ab'[n % 2]}\t{STRANGE} {n}" for split in ("tr", "va", "te") for n in range(12)]
    (place / "probe.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return {path.name.partition(".")[0]: path for path in place.iterdir()}


QUIET = {"steps": 1, "validate_every": 1, "progress": "silent"}
VERBS: dict[str, Callable[[dict[str, Path], Path], Any]] = {
    "generate": lambda at, out: etymon.generate(at["gpt1"], STRANGE, max_new_tokens=1),
    "score": lambda at, out: etymon.score(at["gpt1"], STRANGE),
    "prompt": lambda at, out: etymon.prompt(at["gpt1"], PROMPT, shots=[0]),
    "context": lambda at, out: etymon.context([at["gpt1"]], data=at["text"], longest=16, targets=5),
    "fill": lambda at, out: etymon.fill(at["bert"], f"{STRANGE} [MASK]"),
    "embed": lambda at, out: etymon.embed(at["bert"], STRANGE),
    "attention": lambda at, out: etymon.attention(at["bert"], STRANGE, out=out / "page.html"),
    "probe": lambda at, out: etymon.probe(at["bert"], data=at["probe"], twin=False),
    "replaced": lambda at, out: etymon.replaced(at["electra"], STRANGE),
    "predict": lambda at, out: etymon.predict(at["task"], STRANGE),
    "evaluate": lambda at, out: etymon.evaluate(at["task"], data=ROWS),
    "finetune": lambda at, out: etymon.finetune(at["bert"], task="classify", train=ROWS, out=out, **QUIET),
    "prepare": lambda at, out: etymon.prepare(
        data=at["text"], tokenizer=at["bert"], out=out, progress="silent"
    ),
    "pretrain": lambda at, out: etymon.pretrain(
        "bert", data=at["text"], from_=at["bert"], out=out, length=16, batch=2, **QUIET
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_text_that_is_mostly_unknown_is_noted_once(
    verb: str, folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "etymon"):
        VERBS[verb](folders, tmp_path / "out" if verb != "attention" else tmp_path)
    assert caplog.text.count(NOTE) == 1


def test_a_text_that_is_known_is_not(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    etymon.predict(folders["task"], data=TABLE.rows)
    etymon.score(folders["gpt1"], "The captain crossed the river.")
    assert NOTE not in caplog.text


def test_words_that_are_read_by_their_letters_are_not_unknown(caplog: pytest.LogCaptureFixture) -> None:
    etymon.embed(tiny.model("elmo", frozenset({"vocabulary"})), STRANGE)
    assert NOTE not in caplog.text


def test_what_is_unknown_is_shown_in_a_text() -> None:
    for family in ("gpt1", "bert", "t5"):
        tokenizer = tiny.tokenizer(family)
        unknown = tokenizer.roles["unknown"]
        ids = [*tokenizer.encode("the river").tolist(), tokenizer.id("unknown"), *tokenizer.special_ids]
        assert tokenizer.decode(ids).count(unknown) == 2, "once by itself, once among the special tokens"
        others = [token for role, token in tokenizer.roles.items() if role != "unknown"]
        assert not any(token in tokenizer.decode(ids) for token in others)
        stream = tokenizer.stream()
        assert "".join(map(stream.feed, ids)) + stream.finish() == tokenizer.decode(ids)


def test_an_unknown_token_that_is_also_the_end_of_a_text_is_not_shown(tmp_path: Path) -> None:
    """As GPT-2's published files have it, whose bytes are all known."""
    from etymon.text.tokenizer import Tokenizer

    old = tiny.tokenizer("gpt2")
    tokenizer = Tokenizer(old.backend, {**old.roles, "unknown": old.roles["end"]})
    assert tokenizer.decode([*old.encode("river").tolist(), old.id("end")]) == "river"
