"""`etymon probe` as a user meets it."""

from __future__ import annotations

import csv
import json

import pytest

import etymon
from etymon.lab.probe import as_record
from tests.lab.test_probing import first_letters
from tests.verbs.conftest import folder, run  # noqa: F401


@pytest.fixture
def data(tmp_path):
    task = first_letters()
    names = {"train": "tr", "validation": "va", "test": "te"}
    lines = [f"{names[example.split]}\t{example.label}\t{example.text}\n" for example in task.examples]
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "city.txt").write_text("".join(lines), encoding="utf-8")
    sentence = "The\tDET\ncat\tNOUN\nsat\tVERB\n\nRome\tPROPN\nis\tVERB\na\tDET\nsoup\tNOUN\n\n"
    for split, count in (("train", 8), ("dev", 2), ("test", 2)):
        (tmp_path / "tasks" / f"pos-{split}.tsv").write_text(sentence * count, encoding="utf-8")
    return tmp_path / "tasks"


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_tables_files_and_page(folder, run, data, tmp_path, family):  # noqa: F811
    out = tmp_path / "out"
    code, printed, told = run("probe", folder(family), "--data", data, "--out", out, "--pieces", "mean")
    assert (code, told) == (0, "")
    assert "city (sentence, mean): 2 labels, 80 + 20 + 20 examples, commonest label 50.0%" in printed
    assert "pos (token, mean of pieces): 4 labels, 56 + 14 + 14 examples" in printed
    header, *rows = [line.split() for line in printed.split("city")[1].splitlines()[1:5]]
    assert header == ["layer", "accuracy", "control", "selectivity", "untrained", "mix", "weight"]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [task["task"] for task in found["tasks"]] == ["city", "pos"]
    assert len(found["tasks"][0]["layers"]) == 3
    with open(out / "results.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["layer"] for row in table] == ["0", "1", "2", "mix"] * 2
    layer = found["tasks"][0]["layers"][1]
    assert {name: float(table[1][name]) for name in ("accuracy", "selectivity", "random")} == {
        name: layer[name] for name in ("accuracy", "selectivity", "random")
    }
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4  # selectivity, the mix, and one a task
    assert "untrained twin" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_python_and_json_say_the_same(folder, run, data):  # noqa: F811
    probes = etymon.probe(folder("bert"), data=data / "city.txt", twin=False, seed=2)
    code, printed, _ = run(
        "probe", folder("bert"), "--data", data / "city.txt", "--no-twin", "--seed", 2, "--json"
    )
    assert code == 0
    assert json.loads(printed) == json.loads(json.dumps(as_record(probes)))
    given = etymon.probe(etymon.load(folder("bert")), data=[first_letters()], twin=False)
    assert given.tasks[0].best.accuracy == 1


def test_mistakes_are_one_line(folder, run, data, tmp_path):  # noqa: F811
    for arguments, told in (
        ([], "there is nothing to probe: give --data"),
        (["--data", tmp_path / "none.txt"], "no such file"),
        (["--data", data / "city.txt", "--pooling", "cls"], "has no class token"),
        (["--data", data / "city.txt", "--batch-size", 0], "batch_size is 0"),
    ):
        code, out, err = run("probe", folder("gpt2"), *arguments)
        assert (code, out) == (2, "")
        assert told in err and err.count("\n") == 1
