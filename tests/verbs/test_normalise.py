"""Normalised Chinese from a run to its answers: told once, kept with the tokenizer, done by every verb."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.errors import EtymonError
from tests.text.test_normalising import ALL, SIMPLIFIED, TRADITIONAL
from tests.verbs.small_runs import with_test_sizes

SHORT: dict[str, Any] = {"size": "test", "steps": 2, "batch": 4, "length": 24, "progress": "silent"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Pretrained models that read everything in Simplified, and the text that they were trained on."""
    place = tmp_path_factory.mktemp("runs")
    (place / "text.txt").write_text("\n".join(TRADITIONAL * 20), encoding="utf-8")
    options: dict[str, Any] = {"data": place / "text.txt", "documents": "line", "normalise": ALL, **SHORT}
    with with_test_sizes():
        for family in ("bert", "gpt2"):
            etymon.pretrain(family, vocabulary=400, out=place / family, **options)
        yield place


def test_it_is_recorded_with_the_run_the_model_and_its_card(runs: Path) -> None:
    history = json.loads((runs / "bert/model/history.json").read_text(encoding="utf-8"))["history"]
    assert history[-1]["normalise"]["steps"] == ALL and history[-1]["normalise"]["opencc"]
    assert "normalise:\n- width\n- quotes\n- t2s\n" in (runs / "bert/run.yaml").read_text(encoding="utf-8")
    card = (runs / "bert/model/README.md").read_text(encoding="utf-8")
    assert "width, quotes, t2s; Transformers does not: give it such text" in card
    assert etymon.show(runs / "bert").tokenizer["normalise"] == "width,quotes,t2s"  # type: ignore[union-attr]


def test_answers_do_not_depend_on_the_script(runs: Path) -> None:
    for traditional, simplified in zip(TRADITIONAL[:2], SIMPLIFIED[:2], strict=True):
        scores = [etymon.score(runs / "gpt2", [text])[0].log_likelihood for text in (traditional, simplified)]
        assert scores[0] == scores[1]
        written = [
            etymon.generate(runs / "gpt2", [text[:6]], max_new_tokens=5, seed=0)[0]
            for text in (traditional, simplified)
        ]
        assert str(written[0]).replace(traditional[:6], "") == str(written[1]).replace(simplified[:6], "")
        filled = [etymon.fill(runs / "bert", f"{text[:6]}[MASK]") for text in (traditional, simplified)]
        guesses = [[(guess.text, guess.probability) for guess in each[0].blanks[0]] for each in filled]
        assert guesses[0] == guesses[1] and filled[0][0].filled.startswith(traditional[:6])
        vectors = [etymon.embed(runs / "bert", [text]) for text in (traditional, simplified)]
        assert (vectors[0] == vectors[1]).all()


def test_a_resumed_run_a_store_and_a_fine_tuned_model_go_on_with_it(runs: Path, tmp_path: Path) -> None:
    prepared = etymon.prepare(
        data=runs / "text.txt", documents="line", tokenizer=runs / "bert", out=tmp_path / "store", progress="silent"
    )  # fmt: skip
    assert prepared.summary.train.tokens
    etymon.pretrain("bert", data=tmp_path / "store", out=tmp_path / "run", **SHORT)
    assert etymon.show(tmp_path / "run").tokenizer["normalise"] == "width,quotes,t2s"  # type: ignore[union-attr]
    again = etymon.pretrain("bert", size="test", out=tmp_path / "run", resume=True, progress="silent")
    assert again.steps == 2
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(TRADITIONAL * 5)]
    etymon.finetune(
        runs / "bert", task="classify", train=rows, steps=2, out=tmp_path / "tuned", progress="silent", baselines=False
    )  # fmt: skip
    answers = [etymon.predict(tmp_path / "tuned", texts) for texts in (TRADITIONAL, SIMPLIFIED)]
    assert [each.answer for each in answers[0]] == [each.answer for each in answers[1]]


def test_entities_come_back_in_the_script_of_the_text(runs: Path, tmp_path: Path) -> None:
    rows = [{"text": f"他{'住坐站'[n % 3]}在臺灣的酒店{n}", "label": [[3, 5, "place"]]} for n in range(12)]
    etymon.finetune(
        runs / "bert", task="tag", train=rows, text="text", entities="label", steps=60, learning_rate=1e-2,
        out=tmp_path / "tags", progress="silent", baselines=False,
    )  # fmt: skip
    for text, place in (("他住在臺灣的酒店", "臺灣"), ("他住在台湾的酒店", "台湾")):
        (answer,) = etymon.predict(tmp_path / "tags", [text])
        assert [entity["text"] for entity in answer.prediction] == [place]


def test_a_tokenizer_that_is_there_is_not_changed(runs: Path, tmp_path: Path) -> None:
    for given in ({"tokenizer": runs / "bert/tokenizer"}, {"from_": runs / "bert/model", "size": None}):
        with pytest.raises(
            EtymonError, match="already says what is made the same in a text: leave --normalise t2s"
        ):
            etymon.pretrain(
                "bert", data=runs / "text.txt", normalise="t2s", out=tmp_path / "run", **{**SHORT, **given}
            )


def test_the_report_says_what_changes_and_what_comes_back(
    runs: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    code, shown, _ = run(
        "tokenizer", "--kind", "byte-bpe", "--size", 400, "--normalise", "width,t2s", "--data", runs / "text.txt",
        "--documents", "line", "--out", tmp_path / "t",
    )  # fmt: skip
    assert code == 0
    assert re.search(
        r"  t2s +\d+\.\d\d% of the characters change, turned round 100\.00% are what they were", shown
    )
    made = etymon.tokenizer(show=tmp_path / "t", data=runs / "text.txt", documents="line", progress="silent")
    whole = "".join(TRADITIONAL)
    assert made.normalised["width"].changed == pytest.approx(6 / len(whole))
    assert made.normalised["width"].restored < 0.8, "the other letters become wide, too"
    code, _, refusal = run(
        "tokenizer", "--kind", "bpe", "--normalise", "t2x", "--data", "a.txt", "--out", "b"
    )
    assert code == 2 and "t2x" in refusal
