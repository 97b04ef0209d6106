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


def page_commands(name: str, page: str = PAGE) -> list[list[str]]:
    """The commands of a block of a page, with less time to train."""
    small = {
        "tokenizer": ["--progress", "silent"],
        "pretrain": "--size test --batch 8 --length 64 --validate-every 4 --progress silent".split(),
        "finetune": "--batch 16 --learning-rate 5e-3 --validate-every 10 --progress silent".split(),
        "translate": "--max-new-tokens 8".split(),
    }
    lines = commands(block(name, "sh", page))
    for words in lines:
        if "--budget" in words:
            words[words.index("--budget") + 1] = "20steps" if words[0] == "finetune" else "4steps"
        if "--size" in words:
            words[words.index("--size") + 1] = "400"
        if "--vocabulary" in words:
            words[words.index("--vocabulary") + 1] = "400"
        if "--from-scratch" in words:
            words += ["--size", "test"]
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


def test_forms_are_changed_only_where_it_is_asked_for(
    sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    learning, training = page_commands("normalise")
    assert "的字会变，再转回去后" in run(learning, capsys)
    place = learning.index("--normalise")
    run([*learning[:place], *learning[place + 2 :], "--out", "原样词表"], capsys)
    changed, plain = (Tokenizer.load(Path(name)) for name in ("简体词表", "原样词表"))
    assert list(changed.encode("１２０元，服務")) == list(changed.encode("120元，服务"))
    assert list(plain.encode("１２０元，服務")) != list(plain.encode("120元，服务"))
    run(training, capsys)
    history = json.loads(Path("简体预训练/model/history.json").read_text(encoding="utf-8"))["history"]
    assert history[-1]["normalise"]["steps"] == ["tw2s", "quotes"]


def test_the_first_model_is_made_as_its_page_says(
    sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "first-model.zh.md").read_text(encoding="utf-8")
    Path("语料.txt").write_text("\n".join(row[1] for row in sheets * 8), encoding="utf-8")
    explained = [run(words, capsys) for words in page_commands("look", page)]
    assert "GPT-2" in explained[0] and "是下一句吗" in explained[1]
    for words in page_commands("train", page):
        assert "报告" in run(words, capsys)
    *_, surprised, drawn = (run(words, capsys) for words in page_commands("use", page))
    assert "干净" in surprised and "注意力.html" in drawn and Path("注意力.html").is_file()


def test_few_labels_go_as_their_page_says(
    sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "few-labels.zh.md").read_text(encoding="utf-8")
    for name in ("评论.csv", "测试.csv"):  # the page's tables are UTF-8
        Path(name).write_bytes(
            Path("评论.csv").read_bytes().decode("gb18030" if name == "评论.csv" else "utf-8").encode()
        )
    Path("语料.txt").write_text("\n".join(row[1] for row in sheets * 8), encoding="utf-8")
    shown = [
        run(words, capsys)
        for name in ("baseline", "pretrained", "seeds")
        for words in page_commands(name, page)
    ]
    assert "多数类" in shown[0] and "95% 置信区间" in shown[1] and "95% 置信区间" in shown[4]


# ------------------------------------------------------------ public data sets


def write_sets() -> None:
    """Small tables in the layout of ChnSentiCorp, CLUENER and Tatoeba's pairs."""
    draw = random.Random(0)
    for folder in ("chnsenticorp", "cluener", "tatoeba-en-zh"):
        Path(folder).mkdir()
    for split in ("train", "dev", "test"):
        rows = [f'{n % 2}\t{"，".join(draw.sample((BAD, GOOD)[n % 2], 3))}。"好" {n}' for n in range(60)]
        Path(f"chnsenticorp/{split}.tsv").write_text(
            "\n".join(["label\ttext_a", *rows, ""]), encoding="utf-8"
        )
        people = [(f"{draw.choice('赵钱孙李')}小军", draw.choice(["北京", "台湾"])) for _ in range(40)]
        entities = [
            {
                "text": f"{name}认为，{place}的酒店位置很好。",
                "label": {"name": {name: [[0, 2]]}, "address": {place: [[6, 7]]}},
            }
            for name, place in people
        ]
        if split == "test":
            entities = [{"id": n, "text": row["text"]} for n, row in enumerate(entities)]
        # As it was published: objects over several lines, one after the other.
        records = [json.dumps(row, ensure_ascii=False, indent=2) for row in entities]
        Path(f"cluener/{split}.json").write_text("\n".join(records), encoding="utf-8")
    licence = "CC-BY 2.0 (France) Attribution: tatoeba.org #1 (CM) & #2 (Martha)"
    pairs = [f"{english} {n}.\t{chinese}{n}。\t{licence}" for n in range(20) for english, chinese in (("Run", "跑"), ("Hi", "你好"), ("Stop", "停"))]  # fmt: skip
    Path("tatoeba-en-zh/cmn.txt").write_text("\n".join([*pairs, ""]), encoding="utf-8")


def run_examples(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [run(words, capsys) for words in page_commands("datasets")]


def test_the_examples_of_public_data_run_as_written(
    sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    write_sets()
    *_, evaluated, _, tagged, _, _ = run_examples(capsys)
    assert "accuracy" in evaluated and "60" in evaluated and "小军" in tagged


def test_the_examples_run_on_the_real_files(
    shared: Path, sheets: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """On their beginnings: what matters is that they are read as they were published."""
    for place in ("chnsenticorp/{}.tsv", "cluener/{}.json", "tatoeba-en-zh/cmn.txt"):
        for split in ("train", "dev", "test"):
            name = Path(place.format(split))
            name.parent.mkdir(exist_ok=True)
            text = (shared / "data" / name).read_text(encoding="utf-8")
            end = text.index("\n}\n", 60_000) + 3 if name.suffix == ".json" else text.index("\n", 30_000) + 1
            name.write_text(text[:end], encoding="utf-8")
    *_, evaluated, _, _, _, _ = run_examples(capsys)
    assert "accuracy" in evaluated
    rows = Path("chnsenticorp/test.tsv").read_text(encoding="utf-8").count("\n") - 1
    assert f"{rows:,} 行" in evaluated, "every row was read"
