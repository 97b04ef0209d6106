"""Suites: every kind of part, cells that are kept, tables, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.lab import suites as module
from etymon.lab.suites import read_suite
from etymon.tables.table import read_table
from tests import tiny
from tests.verbs.conftest import folder, run  # noqa: F401

SUITE = """
folder: mine
parts:
  - {name: pairs, kind: pairs, data: [pairs.csv]}
  - {name: probe, kind: probe, data: [probe.txt]}
  - {name: text, kind: text, data: [text.txt], characters: 200}
  - {name: last, kind: last-word, data: [last.jsonl]}
  - name: tune
    kind: finetune
    task: classify
    data: [rows.csv]
    validation: [rows.csv]
    options: {text: text, label: label}
    metric: accuracy
    budget: 2steps
    batch: 4
    rows: 16
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A suite's file and its data, in a folder."""
    texts = [text.split(". ")[0] for text in tiny.texts(60)]
    data = tmp_path / "data" / "mine"
    data.mkdir(parents=True)
    pairs = [f"{text},{' '.join(reversed(text.split()))}" for text in texts[:6]]
    (data / "pairs.csv").write_text("good,bad\n" + "\n".join(pairs) + "\n", encoding="utf-8")
    splits = ["tr"] * 30 + ["va"] * 12 + ["te"] * 18
    lines = [f"{split}\t{'AB'[n % 2]}\t{text}" for n, (split, text) in enumerate(zip(splits, texts))]
    (data / "probe.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (data / "text.txt").write_text(". ".join(texts), encoding="utf-8")
    last = [json.dumps({"text": text}) for text in texts[:5]]
    (data / "last.jsonl").write_text("\n".join(last) + "\n", encoding="utf-8")
    rows = [f"{text},{'yes' if n % 2 else 'no'}" for n, text in enumerate(texts[:24])]
    (data / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
    return tmp_path


def evaluate(place: Path, model: Any, **options: Any) -> Any:
    return etymon.evaluate(
        model, suite=str(place / "suite.yaml"), suite_data=place / "data", out=place / "out", **options
    )


def test_every_kind_of_part_and_a_second_time(place: Path, folder, monkeypatch):  # noqa: F811
    pytest.importorskip("sklearn")
    result = evaluate(place, folder("gpt2"), beside=[folder("bert")])
    assert result.parts == ["pairs", "probe", "text", "last", "tune"] and result.computed == 10
    gpt2, bert = result.rows
    assert not gpt2.reasons and not bert.reasons
    assert gpt2.scores["text"].metric == "bits per byte" and gpt2.scores["text"].falls
    assert bert.scores["text"].metric == "bits per byte by pseudo-likelihood"
    assert gpt2.scores["tune"].metric == "accuracy" and gpt2.scores["tune"].count == 24
    assert {gpt2.family, bert.family} == {"gpt2", "bert"}
    # What is kept is not computed again; a part that was lost alone is.
    for kind in module.KINDS:
        if kind != "pairs":
            monkeypatch.setitem(module.KINDS, kind, lambda given: pytest.fail("it was kept"))
    assert evaluate(place, folder("gpt2"), beside=[folder("bert")]).computed == 0
    cells = {
        path: json.loads(path.read_text(encoding="utf-8"))
        for path in (place / "out" / "cells").glob("*.json")
    }
    for path, cell in cells.items():
        if cell["part"]["name"] == "pairs" and cell["model"] == str(folder("bert")):
            path.unlink()
    again = evaluate(place, folder("gpt2"), beside=[folder("bert")])
    assert again.computed == 1 and again.rows == result.rows
    # Another table is another cell.
    with (place / "data" / "mine" / "pairs.csv").open("a", encoding="utf-8") as file:
        file.write("The river.,River the.\n")
    assert evaluate(place, folder("gpt2")).rows[0].scores["pairs"].count == 7


def test_files_of_a_suite_are_read_in_their_encoding(place: Path, folder):  # noqa: F811
    pytest.importorskip("sklearn")
    suite = place / "suite.yaml"
    suite.write_text(SUITE.partition("  - name: tune")[0].replace("mine", "zh"), encoding="utf-8")
    plain = place / "data" / "mine"
    for name, encoding in (("zh", "gb18030"), ("utf-8", "utf-8")):
        (place / "data" / name).mkdir()
        for path in plain.iterdir():
            text = path.read_text(encoding="utf-8").replace("the", "酒店的位置很好，")
            (place / "data" / name / path.name).write_bytes(text.encode(encoding))
    model = folder("gpt2")
    assert not evaluate(place, model, encoding="gb18030").rows[0].reasons
    (refused,) = evaluate(place, model).rows
    assert not refused.scores, "nothing that was read otherwise is taken over"
    for reason in refused.reasons.values():
        assert "it reads as gb18030, “" in reason and "酒店的位置" in reason
    (row,) = evaluate(place, model, encoding="gb18030").rows
    suite.write_text(suite.read_text(encoding="utf-8").replace("zh", "utf-8"), encoding="utf-8")
    (expected,) = evaluate(place, model).rows
    assert row.scores == expected.scores


def test_tables(place: Path, folder, run):  # noqa: F811
    part = "parts:\n  - {name: pairs_of, kind: pairs, data: [mine/pairs.csv]}\n"
    (place / "suite.yaml").write_text(part, encoding="utf-8")
    words = ("evaluate", folder("gpt2"), "--suite", place / "suite.yaml", "--suite-data", place / "data")
    code, out, _ = run(*words, "--beside", folder("bert"), "--out", place / "out")
    assert code == 0
    header, first, second, *_ = out.splitlines()
    assert re.split(r"  +", header.strip()) == ["model", "words", "words read", "pairs_of"]
    assert first.startswith(str(folder("gpt2"))) and second.startswith(str(folder("bert")))
    markdown = (place / "out" / "results.md").read_text(encoding="utf-8").splitlines()
    assert markdown[0] == "| model | words | words read | pairs_of |"
    latex = (place / "out" / "results.tex").read_text(encoding="utf-8")
    assert (
        r"pairs\_of \\" in latex and latex.count(r"\\") == 3 and latex.startswith("% pairs_of: accuracy by")
    )
    assert "pairs_of" in (place / "out" / "report.html").read_text(encoding="utf-8")
    record = json.loads((place / "out" / "results.json").read_text(encoding="utf-8"))
    assert record["rows"][0]["scores"]["pairs_of"]["count"] == 6
    assert json.loads(run(*words, "--out", place / "out", "--json")[1])["computed"] == 0


def test_what_a_model_cannot_do_is_told_and_the_rest_goes_on(place: Path, folder):  # noqa: F811
    notes: list[str] = []
    parts = "parts:\n  - {name: last, kind: last-word, data: [mine/last.jsonl]}\n  - {name: p, kind: pairs, data: [mine/pairs.csv]}\n"
    (place / "suite.yaml").write_text(parts, encoding="utf-8")
    result = evaluate(place, folder("t5"), on_note=notes.append)
    assert list(result.rows[0].scores) == ["p"]
    assert result.rows[0].reasons == {"last": "T5 does not predict the last word of a text in one step"}
    assert notes and "T5 does not predict" in notes[0]


def test_published_layouts(shared: Path, folder):  # noqa: F811
    """The suites that come with the library find their files in the folders as they were published."""
    for name in ("blimp", "glue", "probing", "lm"):
        stem, suite, _ = read_suite(name)
        assert stem == name
        base = shared / "data"
        for part in suite.parts:
            train, validation = module.part_files(part, [base / suite.folder, base])
            assert train and bool(validation) == (part.kind == "finetune")
            if part.kind == "finetune":
                row = read_table(train, part.columns).rows[0]
                assert {
                    part.options[key] for key in ("text", "second", "label") if key in part.options
                } <= set(row)


def test_refusals(place: Path, folder, run):  # noqa: F811
    suite = place / "suite.yaml"
    for words, reason in [
        (("--suite", "bimp"), "there is no suite 'bimp' (nor such a file): did you mean 'blimp'?"),
        (("--suite", suite, "--suite-data", place), "pairs needs pairs.csv, and it is not in"),
        (("--suite", suite, "--data", "x.csv"), "a suite names its tasks and data"),
        (("--milestones",), "are for a suite: say --suite NAME"),
    ]:
        code, _, err = run("evaluate", folder("gpt2"), *words)
        assert code == 2 and reason in err and len(err.splitlines()) == 1, err
    for text, reason in [
        ("parts: []", "there must be one at least"),
        ("parts:\n  - {name: a, kind: pears, data: [x]}", "kind"),
        ("parts:\n  - {name: a, kind: finetune, data: [x]}", "needs a task to fine-tune for"),
        ("parts:\n  - {name: a, kind: pairs, data: [x], colour: red}", "colour"),
    ]:
        suite.write_text(text, encoding="utf-8")
        with pytest.raises(EtymonError, match=reason):
            read_suite(str(suite))
