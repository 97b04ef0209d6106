"""The README tells the truth: its commands and its Python are run, with less time to train."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path

import pytest

from etymon import cli
from tests import page_world

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


CHINESE = (Path(__file__).parents[1] / "README.zh.md").read_text(encoding="utf-8")


def block(name: str, language: str, page: str = README) -> str:
    found = re.search(rf"<!-- run: {name} -->\n```{language}\n(.*?)```", page, re.DOTALL)
    assert found is not None, f"the page has no {language} block {name!r}"
    return found.group(1)


def commands(text: str) -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    assert all(line[0] == "etymon" for line in lines if line)
    return [line[1:] for line in lines if line]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    shown = capsys.readouterr()
    assert left.value.code == 0, shown.err
    return shown.out


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    words = "the story of a king who walked to a river and saw light on cold water".split()
    sentences = [" ".join(draw.choices(words, k=draw.randint(5, 12))).capitalize() + "." for _ in range(1500)]
    documents = [" ".join(sentences[start : start + 30]) for start in range(0, len(sentences), 30)]
    (tmp_path / "my.txt").write_text("\n".join(documents), encoding="utf-8")
    return tmp_path


def test_demo_and_what_it_suggests(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "etymon demo" in README
    told = run(["demo", "--steps", "1", "--progress", "silent"], capsys)
    assert (here / "runs/demo/report.html").is_file()
    shown = [run(words, capsys) for words in commands(block("demo", "sh"))]
    assert all(text.strip() for text in shown)
    assert "GPT-2" in shown[-1]
    for words in commands(block("demo", "sh")):
        assert shlex.join(["etymon", *words]).replace("'", '"') in told, (
            "the demo suggests what the README does"
        )


def test_both_languages_have_the_same_verbs_and_families() -> None:
    names = re.findall(r"<!-- run: (\w+) -->\n```(\w+)", README)
    assert len(names) == 5 and names == re.findall(r"<!-- run: (\w+) -->\n```(\w+)", CHINESE)
    for name, language in names:
        if language == "sh":
            pairs = [
                [words[:2] if words[0] in ("pretrain", "finetune", "distill") else words[:1] for words in commands(block(name, "sh", page))]
                for page in (README, CHINESE)
            ]  # fmt: skip
            assert pairs[0] == pairs[1], name
    assert block("demo", "sh", CHINESE) == block("demo", "sh")


@pytest.mark.parametrize("name", ["own", "labels", "pairs"])
def test_the_commands_in_chinese(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    with page_world.tiny_pocket_sizes():
        for words in commands(block(name, "sh", CHINESE)):
            page_world.furnish(words, "README.zh.md")
            if "--budget" in words:
                words[words.index("--budget") + 1] = "2steps"
                words += "--length 32 --progress silent".split()
                words += (
                    ["--batch-tokens", "300", "--vocabulary", "420"]
                    if "句对.tsv" in words
                    else ["--batch", "4"]
                )
                words += ["--no-baselines"] if words[0] == "finetune" else []
            run(words, capsys)
    made = {"own": "v.npy", "labels": "runs/classify-bert/model", "pairs": "attention.html"}
    assert (tmp_path / made[name]).exists()


def test_the_python_in_chinese(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    page_world.furnish(["语料.txt"], "README.zh.md")
    code = block("python", "python", CHINESE)
    code = code.replace('budget="10m"', 'steps=3, batch=4, length=32, progress="silent"')
    scope: dict[str, object] = {}
    with page_world.tiny_pocket_sizes():
        exec(compile(code, "README.zh.md", "exec"), scope)
    assert len(capsys.readouterr().out.splitlines()) >= 3
    assert type(scope["peer"]).__name__ == "GPT2LMHeadModel"


def test_links_of_both_lead_somewhere() -> None:
    root = Path(__file__).parents[1]
    for page in ("README.md", "README.zh.md", "CONTRIBUTING.md"):
        text = (root / page).read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "//" not in link]
        assert links and not [link for link in links if not (root / link).exists()], page


def test_commands_on_pairs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"ein {word} {number}\ta {word[::-1]} {number}" for number in range(40) for word in ("Hund", "Haus")
    ]
    (here / "pairs.tsv").write_text("\n".join(["de\ten", *rows]) + "\n", encoding="utf-8")
    for words in commands(block("pairs", "sh")):
        if words[0] == "finetune":
            place = words.index("--budget")
            words[place : place + 2] = (
                "--budget 2steps --batch-tokens 300 --vocabulary 200 --progress silent".split()
            )
        run(words, capsys)
    assert (here / "attention.html").is_file()


def test_commands_on_labels(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"a {word} film {number},{label}"
        for number in range(20)
        for word, label in (("dull", "bad"), ("fine", "good"))
    ]
    (here / "reviews.csv").write_text("\n".join(["review,verdict", *rows]) + "\n", encoding="utf-8")
    few = "--budget 2steps --batch 4 --progress silent".split()
    run(["pretrain", "bert", "--data", "my.txt", "--length", "64", *few], capsys)
    told = []
    for words in commands(block("labels", "sh")):
        if words[0] == "finetune":
            place = words.index("--budget")
            words[place : place + 2] = few
        told.append(run(words, capsys))
    assert {line.split("\t")[0] for line in told[1].splitlines()} <= {"bad", "good"}
    assert "text-to-text" in told[2]


def test_commands_on_own_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(block("own", "sh")):
        if "--budget" in words:
            place = words.index("--budget")
            words[place : place + 2] = "--budget 3steps --batch 4 --length 64".split()
            if words[0] == "pretrain":
                words += ["--vocabulary", "400"]
        if words[0] in ("pretrain", "distill"):
            words += ["--progress", "silent"]
        run(words, capsys)
    assert (here / "v.npy").is_file()
    for folder in (
        "gpt2-pocket/model",
        "t5-pocket/model",
        "electra-pocket/discriminator",
        "distilled-bert/model",
    ):
        assert (here / "runs" / folder / "model.safetensors").is_file()


def test_python(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    code = block("python", "python").replace(
        'budget="10m"', 'steps=3, vocabulary=400, batch=4, progress="silent"'
    )
    assert "steps=3" in code
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert len(capsys.readouterr().out.splitlines()) >= 3
    assert type(scope["peer"]).__name__ == "GPT2LMHeadModel"
