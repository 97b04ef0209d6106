"""docs/chinese.md tells the truth: its commands are run, from a spreadsheet's GB18030 table to one that it opens."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from etymon import cli
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from tests.test_readme import block, commands, run
from tests.verbs.small_runs import with_test_sizes

PAGE = (Path(__file__).parents[1] / "docs/chinese.md").read_text(encoding="utf-8")
GOOD = "位置很好 服务周到 早餐丰富 房间干净 前台热情 性价比很高 下次还会来".split()
BAD = "房间太小 隔音很差 早餐难吃 态度冷淡 卫生间有异味 价格太贵 再也不来了".split()


def write_sheet(name: str, count: int, *, labels: bool) -> list[list[str]]:
    """Reviews as a spreadsheet saves them in China: GB18030, CRLF, quotes, line breaks inside of cells."""
    draw = random.Random(count)
    rows = []
    for number in range(count):
        phrases = "，".join(draw.sample(BAD if number % 2 else GOOD, 3))
        more = '\n他说："还行",１２０元。' if number % 7 == 0 else "。"
        rows.append(
            [str(number + 1), phrases + more, *(["差评" if number % 2 else "好评"] if labels else [])]
        )
    with open(name, "w", encoding="gb18030", newline="") as file:
        csv.writer(file, lineterminator="\r\n").writerows([["编号", "评论", "评价"][: len(rows[0])], *rows])
    return rows


@pytest.fixture
def sheets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """In an empty folder, 评论.csv with labels and 新评论.csv without, whose rows are returned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    with with_test_sizes():
        write_sheet("评论.csv", 80, labels=True)
        yield write_sheet("新评论.csv", 10, labels=False)


def page_commands(name: str) -> list[list[str]]:
    """The commands of a block of the page, with less time to train."""
    small = {
        "tokenizer": ["--progress", "silent"],
        "pretrain": "--size test --batch 8 --length 64 --validate-every 4 --progress silent".split(),
        "finetune": "--batch 16 --learning-rate 5e-3 --validate-every 10 --progress silent".split(),
    }
    lines = commands(block(name, "sh", PAGE))
    for words in lines:
        if "--budget" in words:
            words[words.index("--budget") + 1] = "20steps" if words[0] == "finetune" else "4steps"
        if "--size" in words:
            words[words.index("--size") + 1] = "400"
        words += [] if "--show" in words else small.get(words[0], [])
    return lines


def test_from_a_spreadsheet_to_a_spreadsheet(
    sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [run(words, capsys) for words in page_commands("story")]
    assert "分词器" in shown[0] and shown[-1].split()[0] in ("好评", "差评")
    assert TokenStore.open(Path("预训练/store")).train.word_bits is not None
    history = json.loads(Path("预训练/model/history.json").read_text(encoding="utf-8"))
    assert history["history"][-1]["words"]["way"] == "jieba"
    assert "whole-words" in Path("预训练/run.yaml").read_text(encoding="utf-8")

    written = Path("结果.csv").read_bytes()
    assert written.startswith("\ufeff编号,评论,prediction,probabilities".encode())
    _, *rows = csv.reader(io.StringIO(written.decode("utf-8-sig"), newline=""))
    assert [row[:2] for row in rows] == sheets
    predictions = [row[2] for row in rows]
    assert set(predictions) <= {"好评", "差评"}
    assert sum(label == ["好评", "差评"][number % 2] for number, label in enumerate(predictions)) >= 8

    for words in [*page_commands("words"), *page_commands("kinds")]:
        assert run(words, capsys).strip()


def test_the_refusal_shows_the_table_decoded(
    sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (words,) = page_commands("refusal")
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    shown = capsys.readouterr().err
    beginning, _, end = next(line for line in PAGE.splitlines() if "不是 UTF-8：" in line).partition(" …”")
    assert leaving.value.code and shown.startswith(beginning) and end.removesuffix("……") in shown
    assert not Path("另一个词表").exists()


def test_full_width_forms_are_changed_only_where_it_is_asked_for(
    sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (words,) = page_commands("normalise")
    run(words, capsys)
    place = words.index("--normalise")
    run([*words[:place], *words[place + 2 :], "--out", "全角词表"], capsys)
    narrow, plain = (Tokenizer.load(Path(name)) for name in ("半角词表", "全角词表"))
    assert list(narrow.encode("１２０元，好")) == list(narrow.encode("120元,好"))
    assert list(plain.encode("１２０元，好")) != list(plain.encode("120元,好"))
    assert "NFKC" in Path("半角词表/tokenizer.json").read_text(encoding="utf-8")
