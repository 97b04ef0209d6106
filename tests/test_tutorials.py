"""The tutorials: notebooks are current, and every cell of every one runs, with less text and fewer steps."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from etymon import cli
from tests import notebooks, tiny

SMALL = 'SHAPE = ["shape.dim=16", "shape.layers=1", "shape.heads=2"]'
TOY = {
    "first-model": f'BUDGET = "2steps"\nWHOLE_LIBRARY = False\n{SMALL}',
    "domain-bert": (
        f'PACKAGES = ["http", "xml"]\nWHOLE_LIBRARY = False\n{SMALL}\n'
        'PRETRAINING, FINE_TUNING = "2steps", "2steps"\nVOCABULARY, SEEDS = 400, 1'
    ),
    "few-labels": (
        f'PACKAGES = ["http", "xml"]\nWHOLE_LIBRARY = False\n{SMALL}\n'
        'PRETRAINING, FINE_TUNING = "2steps", "2steps"\nVOCABULARY, LABELS_OF_A_CLASS, SEEDS = 400, [4], 1'
    ),
    "translator": f'PAIRS = 60\nBUDGET = "2steps"\n{SMALL}\nVOCABULARY, BATCH_TOKENS = 120, 200',
    "comparing-families": (
        # One round before the final instead of two: half of the work, and nothing that it shows is missing.
        'import etymon.lab.compare_plan\nsetattr(etymon.lab.compare_plan, "FEWEST_ROUNDS", 1)\n'
        'PACKAGES = ["concurrent", "wsgiref"]\nWHOLE_LIBRARY = False\nFAMILIES = ["gpt2", "bert"]\n'
        'BUDGET, TASK_BUDGET = "600tokens", "1steps"\nSHAPE = ["shape.dim=16", "shape.layers=1", "shape.heads=2"]\n'
        "VOCABULARY, LENGTH, SEEDS = 400, 32, 3"
    ),
}
SHOWN = {
    "first-model": ["bits per byte in order", "<svg", "<polyline"],
    "domain-bert": ["new weights", "pretrained on the domain", "tf-idf"],
    "few-labels": ["labels of a class", "frozen vectors"],
    "translator": ["test sentences are translated", "<svg"],
    "comparing-families": ["accuracy", "<svg"],
}


def test_every_tutorial_is_tried_here():
    assert notebooks.names() == sorted(TOY) == sorted(SHOWN)


@pytest.mark.parametrize("name", sorted(TOY))
def test_notebooks_are_current(name):
    kept = json.loads((notebooks.EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert notebooks.sources(kept) == notebooks.sources(notebooks.notebook(name)), "python -m tests.notebooks"
    assert len(json.dumps(kept)) < 400_000, "outputs are kept small"


@pytest.mark.parametrize("name", sorted(TOY))
def test_pages_say_first_what_the_reader_will_be_able_to_do(name):
    page = (notebooks.PAGES / f"{name}.md").read_text(encoding="utf-8")
    title, promise = page.split("\n\n")[:2]
    assert title.startswith("# ") and promise.startswith("After this page you can")


@pytest.mark.parametrize("name", sorted(TOY))
def test_links_of_notebooks_lead_somewhere(name):
    for kind, source in notebooks.sources(notebooks.notebook(name)):
        links = re.findall(r"\]\(([^)#]+)", source) if kind == "markdown" else []
        assert not [link for link in links if "//" not in link and not (notebooks.EXAMPLES / link).exists()]


@pytest.mark.parametrize("name", sorted(TOY))
def test_every_cell_runs(name, tmp_path, monkeypatch):
    pytest.importorskip("ipykernel")
    if name != "first-model":
        pytest.importorskip("sklearn")
    # The kernel is a process of its own, and takes the library from where the tests do.
    monkeypatch.setenv("PYTHONPATH", str(notebooks.ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    parameters = re.findall(r"[A-Z_]+(?= =|,)", TOY[name])
    (real,) = (source for kind, source in notebooks.cells(page_of(name)) if kind == "parameters")
    assert sorted(re.findall(r"\b[A-Z][A-Z_]+\b(?=[^#\n]*=)", real)) == sorted(parameters), (
        "a toy value for each"
    )
    record = notebooks.run(name, tmp_path, TOY[name])
    shown = json.dumps([cell.get("outputs") for cell in record["cells"]])
    assert [text for text in SHOWN[name] if text not in shown] == []


def page_of(name: str) -> str:
    return (Path(notebooks.PAGES) / f"{name}.md").read_text(encoding="utf-8")


# What makes a training short; `compare` trains in processes of its own, which the notebook does already.
SHORT = "--batch 4 --length 32 --progress silent --set shape.dim=16 --set shape.layers=1 --set shape.heads=2"
VERBS = {"pretrain": f"--vocabulary 400 {SHORT}", "finetune": "--batch 4 --length 64 --progress silent"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that a reader has at the end of a page."""
    monkeypatch.chdir(tmp_path)
    texts = tiny.texts(60)
    for name in ("prose.txt", "domain.txt"):
        (tmp_path / name).write_text("\n\n".join(texts), encoding="utf-8")
    for name in ("train.csv", "test.csv", "packages.csv"):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((text, text.split()[1][:1]) for text in texts)])
    rows = [f"{text}\t{text[::-1]}" for text in texts]
    (tmp_path / "pairs.tsv").write_text("\n".join(["de\ten", *rows]) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", sorted(TOY))
def test_commands_of_the_pages_run(name, files, capsys):
    blocks = re.findall(r"```sh\n(.*?)```", page_of(name), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("etymon")]
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "compare":
            flags = {option.flag for option in cli.command_options("compare")}
            assert {word for word in words if word.startswith("--")} <= flags
            continue
        if "--budget" in words:
            place = words.index("--budget")
            words[place : place + 2] = ["--budget", "2steps"]
        elif words[0] == "finetune":
            words += ["--budget", "2steps"]
        if "--seeds" in words:
            words[words.index("--seeds") + 1] = "2"
        if words[0] in VERBS:
            words += VERBS[words[0]].split()
        if "--from-scratch" in words:
            words += SHORT.split()[6:] + ["--vocabulary", "400"]
        if words[0] == "finetune" and "transformer" in words:
            words[words.index("--batch") : words.index("--batch") + 2] = ["--batch-tokens", "200"]
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        assert left.value.code == 0, (line, capsys.readouterr().err)
