"""Minimal pairs: layouts, accuracies by hand, intervals that hold what they promise, runs with milestones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import etymon
from etymon.errors import EtymonError
from etymon.generation.sentence_scores import SentenceScore, score_sentences
from etymon.lab.model_rows import list_models
from etymon.lab.pairs import MinimalPair, PairColumns, accuracies, outcomes, read_pairs
from etymon.lab.pairs_report import report_lines
from etymon.tables.table import read_table
from tests.generation.conftest import tiny_model
from tests.verbs.conftest import folder, run  # noqa: F401
from tests.verbs.small_runs import pretrain, with_test_sizes

GOOD = ["The cat sat on the mat.", "Paris is the capital of France.", "The dogs eat soup."]
BAD = ["The cat sat on the cats.", "Paris are the capital of France.", "The dogs eats soup."]


@pytest.fixture
def blimp(tmp_path: Path) -> Path:
    """Three paradigms of two fields, as BLiMP has them."""
    place = tmp_path / "blimp"
    place.mkdir()
    for number, (name, field) in enumerate(
        [("agreement", "syntax"), ("island", "syntax"), ("only", "semantics")]
    ):
        rows = [
            {"sentence_good": good, "sentence_bad": bad, "field": field, "UID": name, "pairID": str(n)}
            for n, (good, bad) in enumerate(zip(GOOD[number:] + GOOD, BAD[number:] + BAD))
        ]
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return place


def scores(*sums: float) -> list[tuple[SentenceScore, SentenceScore]]:
    """Good sentences of these sums beside bad ones of -10, all of 5 tokens and 20 bytes."""
    return [(SentenceScore(value, 5, 20), SentenceScore(-10.0, 5, 20)) for value in sums]


# --- layouts


def test_a_folder_of_blimp(blimp: Path):
    pairs = read_pairs([blimp])
    assert [pair.paradigm for pair in pairs] == ["agreement"] * 6 + ["island"] * 5 + ["only"] * 4
    assert {pair.paradigm: pair.field for pair in pairs} == {
        "agreement": "syntax", "island": "syntax", "only": "semantics",
    }  # fmt: skip
    assert (pairs[0].good, pairs[0].bad) == (GOOD[0], BAD[0])
    assert [pair.good for pair in read_pairs([blimp], most=2)][:2] == [GOOD[0], GOOD[2]]


def test_tables_and_their_columns(tmp_path: Path):
    table = tmp_path / "own.csv"
    table.write_text("ok,wrong,kind\nA b.,B a.,x\nC d.,D c.,y\n", encoding="utf-8")
    with pytest.raises(
        EtymonError,
        match="has no columns of good and bad sentences, but ok, wrong, kind: call them good and bad",
    ):
        read_pairs([table])
    pairs = read_pairs([table], PairColumns(good="ok", bad="wrong", paradigm="kind"))
    assert pairs == [MinimalPair("x", "", "A b.", "B a."), MinimalPair("y", "", "C d.", "D c.")]
    with pytest.raises(EtymonError, match="no column 'okay'"):
        read_pairs([table], PairColumns(good="okay", bad="wrong"))
    assert read_pairs([{"good": "A", "bad": "B"}]) == [MinimalPair("pairs", "", "A", "B")]
    assert read_pairs({"good": ["A"], "bad": ["B"], "field": ["f"]}) == [MinimalPair("pairs", "f", "A", "B")]


@pytest.mark.parametrize("names", [("right.txt", "wrong.txt"), ("set.good", "set.bad")])
def test_two_files(tmp_path: Path, names):
    for name, lines in zip(names, (GOOD, BAD)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = read_pairs([tmp_path / name for name in names])
    assert [(pair.good, pair.bad) for pair in pairs] == list(zip(GOOD, BAD))
    if names[0] == "set.good":  # the names say which is which
        turned = read_pairs([tmp_path / name for name in reversed(names)])
        assert [(pair.good, pair.bad) for pair in turned] == list(zip(GOOD, BAD))


def test_bad_data_is_refused(tmp_path: Path, blimp: Path):
    for path, reason in [
        (None, "there are no pairs: give --data"),
        ([], "there are no pairs: give --data"),
        ([tmp_path / "none.csv"], "no such file"),
        ([tmp_path], "holds no table of pairs"),
    ]:
        if path == [tmp_path]:
            path = [tmp_path / "empty"]
            path[0].mkdir()
        with pytest.raises(EtymonError, match=reason):
            read_pairs(path)
    (blimp / "empty.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(EtymonError, match=r"empty.jsonl has no rows: give some"):
        read_pairs([blimp])
    hole = tmp_path / "hole.csv"
    hole.write_text("good,bad\nA b.,\n", encoding="utf-8")
    with pytest.raises(EtymonError, match="column 'bad' is empty"):
        read_pairs([hole])
    for cells in ("good,bad,UID\nA b.,B a.,\n", "good,bad,UID\nA b.,B a.,x\nA c.,C a., \n"):
        hole.write_text(cells, encoding="utf-8")
        with pytest.raises(EtymonError, match=r"hole.csv, line \d: column 'UID' is empty; fill it in"):
            read_pairs([hole])
    single = tmp_path / "single.txt"
    single.write_text("A b.\n", encoding="utf-8")
    with pytest.raises(EtymonError, match="are no pairs: give tables"):
        read_pairs([single])


# --- accuracies


def test_ties_count_half_and_are_told():
    pairs = [MinimalPair("a", "f", "x", "y")] * 4 + [MinimalPair("b", "f", "x", "y")] * 2
    found = accuracies(pairs, scores(-9, -10, -10.000000001, -11, -5, -6))
    assert found["paradigms"]["a"]["sum"].value == pytest.approx(50)
    assert found["paradigms"]["a"]["sum"].ties == 2
    assert found["paradigms"]["b"]["sum"].value == 100
    # The mean of its paradigms, not of its pairs.
    assert found["fields"]["f"]["sum"].value == found["overall"]["sum"].value == pytest.approx(75)
    assert (found["overall"]["sum"].pairs, found["overall"]["sum"].ties) == (6, 2)
    for accuracy in [found["overall"]["sum"], *(each["sum"] for each in found["paradigms"].values())]:
        assert 0 <= accuracy.low <= accuracy.value <= accuracy.high <= 100
    assert found["paradigms"]["b"]["sum"].low < 80  # two pairs say little


def test_means_can_prefer_another_sentence_than_sums():
    short, long = SentenceScore(-8.0, 2, 10), SentenceScore(-10.0, 4, 11)
    assert outcomes([(short, long)], "sum").tolist() == [1.0]
    assert outcomes([(short, long)], "token").tolist() == [0.0]
    assert outcomes([(short, long)], "byte").tolist() == [1.0]


@pytest.mark.parametrize(("chances", "each"), [((0.5,), 30), ((0.97,), 60), ((0.55, 0.7, 0.9, 0.99), 25)])
def test_intervals_hold_what_they_promise(chances, each):
    draw, held, simulations = np.random.default_rng(7), 0, 300
    pairs = [MinimalPair(str(place), "", "x", "y") for place in range(len(chances)) for _ in range(each)]
    for _ in range(simulations):
        right = np.concatenate([draw.random(each) < chance for chance in chances])
        accuracy = accuracies(pairs, scores(*np.where(right, -9.0, -11.0)))["overall"]["sum"]
        held += accuracy.low <= 100 * np.mean(chances) <= accuracy.high
    # 95% of 300 is 285, with a deviation of 4.
    assert held / simulations > 0.905


# --- the verb


def test_pairs_of_several_models(blimp: Path, tmp_path: Path, folder, run):  # noqa: F811
    models = [folder("gpt2"), folder("bert")]
    result = etymon.pairs(models, data=blimp, out=tmp_path / "out")
    assert [model.method for model in result.models] == ["likelihood", "pseudo-likelihood"]
    good, bad = (score_sentences(tiny_model("gpt2"), side) for side in (GOOD, BAD))
    expected = [100.0 * (left.log_prob > right.log_prob) for left, right in zip(good, bad)]
    assert result.models[0].paradigms["agreement"]["sum"].value == pytest.approx(np.mean(expected))
    rows = read_table([tmp_path / "out" / "pairs.csv"]).rows
    assert len(rows) == 2 * len(result.pairs)
    assert float(rows[0]["good_log_prob"]) == result.models[0].scores[0][0].log_prob
    kept = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert kept["models"][1]["overall"]["sum"]["value"] == result.models[1].overall["sum"].value
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "agreement" in page and "pseudo-likelihood" in page
    code, out, _ = run("pairs", *models, "--data", blimp, "--measure", "byte")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "accuracy (%) of 15 pairs in 3 paradigms, by mean of bytes"
    assert [line.split()[0] for line in lines[2:8]] == [
        "all",
        "syntax",
        "agreement",
        "island",
        "semantics",
        "only",
    ]
    record = json.loads(run("pairs", folder("gpt2"), "--data", blimp, "--json")[1])
    assert record["models"][0]["name"] == str(folder("gpt2"))


def test_two_files_behind_data(tmp_path: Path, folder, run):  # noqa: F811
    for name, lines in (("good.txt", GOOD), ("bad.txt", BAD)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    code, out, _ = run(
        "pairs", folder("gpt2"), "--data", tmp_path / "good.txt", "--data", tmp_path / "bad.txt"
    )
    assert code == 0 and "of 3 pairs in 1 paradigms" in out


def test_milestones_are_a_curve_by_words_read(blimp: Path, tmp_path: Path):
    with with_test_sizes():
        pretrain("gpt2", tmp_path / "run", save_at=["8steps", "4steps"])
        result = etymon.pairs(tmp_path / "run", data=blimp, milestones=True, out=tmp_path / "page.html")
    assert [Path(model.name).name for model in result.models] == ["4steps", "8steps", "run"]
    read = [model.words_read for model in result.models]
    assert read == sorted(read) and read[0] > 0 and all(model.words for model in result.models)
    assert len({model.run for model in result.models}) == 1
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Accuracy by words read" in page and "<svg" in page
    many = type(result)(result.pairs, [*result.models, *result.models])
    assert any("words read" in line for line in report_lines(many, "sum", False))
    with pytest.raises(EtymonError, match="has no milestones: train with --save-at"):
        list_models(tmp_path / "run" / "model", milestones=True)


def test_refusals(blimp: Path, tmp_path: Path, folder, run):  # noqa: F811
    for words, reason in [
        (("pairs", folder("gpt2")), "there are no pairs: give --data"),
        (
            ("pairs", folder("gpt2"), "--data", blimp, "--out", "x.xlsx"),
            "cannot write x.xlsx: its name must end in",
        ),
        (("pairs", folder("gpt2"), "--data", blimp, "--examples", "0"), "examples"),
        (("pairs", tmp_path / "nothing", "--data", blimp), "nothing"),
    ]:
        code, _, err = run(*words)
        assert code == 2 and reason in err and len(err.splitlines()) == 1
    with pytest.raises(EtymonError, match="there is no model to evaluate"):
        etymon.pairs([], data=blimp)
