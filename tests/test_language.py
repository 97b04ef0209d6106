"""Messages in Chinese: the catalogue is whole, fits the source, and changes nothing that programs read."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

import etymon
from etymon import cli, language
from etymon.display import display_width
from etymon.errors import EtymonError
from etymon.language import read_po, translated
from etymon.report.page import label_report, render
from etymon.runs.report import ReportParts, write_run_report
from etymon.runs.task_report import MODEL, TYPOS, describe_rows, score_figures, validation_curve
from etymon.tables.table import Table
from etymon.tasks.scores import MetricScore
from tests import messages, tiny

HAN = re.compile("[\u4e00-\u9fff]")
ENTRIES = read_po(messages.CATALOGUE)


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")


# ------------------------------------------------------------ the catalogue


def test_translations_have_the_places_of_their_texts():
    for context, text, translation in ENTRIES:
        places = [sorted(language._PLACE.findall(side)) for side in (text, translation)]
        assert places[0] == places[1] and len({*places[0]}) == len(places[0]), (context, text)


def test_every_entry_is_chinese_and_stands_once():
    keys = [(context, text) for context, text, _ in ENTRIES]
    assert len({*keys}) == len(keys)
    assert {context for context, _ in keys} <= {*get_args(language.Context)}, "an entry has lost its msgctxt"
    names = {"F1", "f1", "bleu", "chrf", "rougeL", "self-BLEU", "the hub"}
    for _, text, translation in ENTRIES:
        letters = re.search("[A-Za-z]{2}", language._PLACE.sub("", translation).replace("token", ""))
        assert HAN.search(translation) or not letters or text in names, text


def test_every_text_finds_its_own_entry(chinese):
    def filled(text: str) -> str:
        return language._PLACE.sub(lambda place: "7" if place[1] == "numbers" else f"«{place[1]}»", text)

    for context, text, translation in ENTRIES:
        assert translated(filled(text), context) == filled(translation)


def test_every_entry_is_said_by_the_source():
    source = messages.source_text()
    stale = [
        text
        for _, text, _ in ENTRIES
        if not messages.COMPOSED.fullmatch(text)
        if any(phrase not in source for phrase in messages.phrases(text))
    ]
    assert not stale, "the source says this no longer; change the entries"


def test_nothing_of_reports_and_summaries_is_missing():
    known = {text for context, text, _ in ENTRIES if context == "help"}
    assert not [summary for summary in etymon.VERBS.values() if summary not in known]
    for context in ("report", "result"):
        assert not messages.missing(context), "python -m tests.messages lists entries to fill in"


def test_nothing_of_options_is_missing():
    assert not messages.missing("help"), "python -m tests.messages lists entries to fill in"


def test_every_refusal_and_note_of_the_library_has_an_entry():
    assert not messages.missing("message"), "python -m tests.messages lists entries to fill in"


def test_a_refusal_without_an_entry_would_be_found(monkeypatch):
    source = """
def f(name, wrong):
    kind = "grows like grass" if wrong else "is much too green"
    raise EtymonError(f"the frobnicator {name} {kind}: shorten it")
"""
    monkeypatch.setattr(messages, "trees", lambda: [("f.py", ast.parse(source))])
    assert messages.missing("message") == [
        ("grows like grass",),
        ("is much too green",),
        ("the frobnicator ", " ", ": shorten it"),
    ]


def test_only_what_shows_texts_to_people_translates_them():
    # Anything else might end in a file that programs read.
    allowed = (
        "cli.py language.py report/page.py report/plots.py report/forest.py report/explain_page.py report/asked.py "
        "report/explain_picture.py runs/task_report.py training/progress.py server/looking.py"
    ).split()
    allowed += [
        f"verbs/{name}.py"
        for name in ("embed", "explain", "help_page", "plan", "pretrain", "tasks", "terminal")
    ]
    for name, tree in messages.trees():
        called = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert name in allowed or not called & {"translated", "in_language"}, name


# ------------------------------------------------------------ which language


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({}, "en"),
        ({"ETYMON_LANGUAGE": "zh"}, "zh"),
        ({"ETYMON_LANGUAGE": "zh_CN"}, "zh"),
        ({"ETYMON_LANGUAGE": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"ETYMON_LANGUAGE": "tlh"}, "en"),
        ({"ETYMON_LANGUAGE": "../zh"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.GB18030"}, "zh"),
        ({"LANG": "zh_TW.Big5"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "zh_CN.utf8"}, "zh"),
        ({"LANG": "en_US.UTF-8", "LANGUAGE": "zh_CN:zh:en"}, "zh"),
        ({"LANG": "C", "LANGUAGE": "zh"}, "en"),
    ],
)
def test_the_variable_or_else_the_locale_chooses(variables, code, monkeypatch):
    for name in ("ETYMON_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language.language() == code


CATALOGUE = """\
# A comment.
msgid ""
msgstr "Language: xx\\n"

msgctxt "message"
msgid "no file {name}"
msgstr "<{name} is no file>"

msgctxt "message"
msgid "{message} (see {command})"
msgstr "[{command}] {message}"

msgctxt "message"
msgid ""
"{path} is "
"\\"gone\\""
msgstr "gone: {path}"

#, fuzzy
msgctxt "message"
msgid "not yet"
msgstr ""

msgctxt "report"
msgid "loss"
msgstr "Verlust"
"""


@pytest.fixture
def other_language(tmp_path, monkeypatch):
    place = tmp_path / "xx" / "LC_MESSAGES"
    place.mkdir(parents=True)
    (place / "etymon.po").write_text(CATALOGUE, encoding="utf-8")
    monkeypatch.setattr(language, "LOCALE", tmp_path)
    monkeypatch.setenv("ETYMON_LANGUAGE", "xx")
    for cached in (language._catalogue, language._translate):
        cached.cache_clear()
    yield
    for cached in (language._catalogue, language._translate):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("text", "context", "shown"),
    [
        ("no file a.txt", "message", "<a.txt is no file>"),
        ("no file {b} (see c)", "message", "[c] <{b} is no file>"),
        ('x is "gone"', "message", "gone: x"),
        ("not yet", "message", "not yet"),
        ("another message", "message", "another message"),
        ("loss", "report", "Verlust"),
        ("loss", "message", "loss"),
        ("", "message", ""),
    ],
)
def test_a_text_is_found_by_what_it_says_for_certain(text, context, shown, other_language):
    assert translated(text, context) == shown


# ------------------------------------------------------------ what people see


def run(capsys, *arguments: str) -> tuple[str, str]:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    return capsys.readouterr()


REFUSALS = [
    ("frobnicate",),
    ("pretrain",),
    ("pretrain", "bert", "--frobnicate"),
    ("pretrain", "bert", "--data"),
    ("pretrain", "bert", "--batch", "many"),
    ("pretrain", "bert", "--schedule", "steep"),
    ("pretrain", "bert"),
    ("pretrain", "bort", "--data", "a.txt"),
    ("pretrain", "bert", "--data", "none.txt", "--progress", "silent"),
    ("pretrain", "bert", "--data", "a.txt", "--size", "enormous"),
    ("pretrain", "bert", "--data", "a.txt", "--objective", "guessing"),
    ("pretrain", "bert", "--data", "a.txt", "--budget", "ten"),
    ("pretrain", "bert", "--data", "a.txt", "--steps", "5", "--budget", "10m"),
    ("pretrain", "bert", "--data", "a.txt", "--set", "nonsense"),
    ("pretrain", "bert", "--data", "a.txt", "--set", "nonsense=1"),
    ("pretrain", "bert", "--data", "a.txt", "--warmup", "3"),
    ("pretrain", "bert", "--data", "a.txt", "--out", "run"),
    ("pretrain", "bert", "--data", "a.txt", "--out", "other"),
    ("pretrain", "bert", "--data", "a.txt", "--resume", "--dry-run"),
    ("generate", "/nowhere/at/all", "x"),
    ("generate", "other", "x"),
    ("generate", "bert", "x"),
    ("finetune", "bert", "--from-scratch", "--task", "juggle", "--train", "t.csv"),
    ("finetune", "bert", "--from-scratch", "--task", "classify", "--train", "t.csv", "--progress", "silent"),
    ("finetune", "bert", "--from-scratch", "--task", "classify", "--train", "none.csv"),
    ("finetune", "bert", "--from-scratch", "--task", "classify"),
    ("tokenizer", "--kind", "bpe", "--out", "made"),
]


@pytest.mark.parametrize("arguments", REFUSALS, ids=" ".join)
def test_common_refusals_are_chinese(arguments, chinese, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("A text. " * 50)
    Path("t.csv").write_text("text,class\na,b\n")
    for name in ("run/run.yaml", "other/notes.txt"):
        Path(name).parent.mkdir()
        Path(name).write_text("x")
    line = run(capsys, *arguments)[1].splitlines()[-1]
    assert line.startswith("etymon：错误：")
    line = re.sub("（参见 etymon [^）]*）", "", line)
    # Names of files, families and options stay as they are; three English words in a row would be a sentence.
    assert HAN.search(line.removeprefix("etymon：错误：")) and not re.search(
        "[a-z]{2,} [a-z]{2,} [a-z]{2,}", line
    ), line


@pytest.mark.parametrize(
    "text, shown",
    [
        ("BERT pocket: 1 steps", "BERT pocket: 1 step"),
        ("1 texts in a.npy", "1 text in a.npy"),
        ("2 x 1 tokens, 1 layers of 4 heads", "2 x 1 token, 1 layer of 4 heads"),
        ("21 steps, 1,1 rows, 2.1 tokens and n + 1 tokens", None),
        ("1 of 1 texts", None),
        ("1 loss a step", None),
        ("no such file or folder: part 1 texts.txt", None),
        (
            "'no 1 models' is neither a folder here; it has 1 models",
            "'no 1 models' is neither a folder here; it has 1 model",
        ),
        (
            "the model's rows: 1 rows, its tokenizer's: 1 tokens",
            "the model's rows: 1 row, its tokenizer's: 1 token",
        ),
    ],
)
def test_one_of_something_is_singular(text, shown, monkeypatch):
    monkeypatch.setenv("ETYMON_LANGUAGE", "en")
    assert translated(text, "message") == (shown or text)


def test_a_run_of_one_step_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ETYMON_LANGUAGE", "en")
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\n" * 200)
    small = ["shape.dim=32", "shape.layers=1", "shape.heads=2"]
    etymon.pretrain(
        "gpt2", data=tmp_path / "a.txt", out=tmp_path / "run", vocabulary=270, length=16, batch=2, steps=1,
        set=small, progress="plain",
    )  # fmt: skip
    shown = capsys.readouterr().err
    assert "parameters: 1 step\n" in shown and "1 steps" not in shown


def test_a_list_of_settings_is_not_taken_for_one_of_layers(chinese):
    shape = "shape      dim 32, layers 4, heads 2"
    assert translated(shape, "result") == "形状       dim 32, layers 4, heads 2"
    assert translated("query stream, layers 1, 2", "result") == "查询流，第 1, 2 层"


def test_who_remembers_is_chinese_throughout(chinese, capsys):
    shown = run(capsys, "explain", "transformer-xl", "小河穿过村庄。船长打开了窗户。")[0]
    assert "谁看得见谁（所有层）：行看列，其中前" in shown and "layers" not in shown


def test_why_a_family_cannot_do_a_task_is_chinese(chinese, capsys):
    shown = run(capsys, "tasks", "--family", "xlnet")[0]
    assert "text2text: XLNet 不能生成文本" in shown and "cannot" not in shown and "rows" not in shown


def test_an_exception_stays_english(chinese):
    with pytest.raises(EtymonError, match="there is no family 'bort': did you mean 'bert'"):
        etymon.show("bort", size="pocket")


def test_what_programs_read_is_the_same_in_every_language(capsys, monkeypatch):
    records = []
    for code in ("en", "zh"):
        monkeypatch.setenv("ETYMON_LANGUAGE", code)
        records.append([run(capsys, *words, "--json")[0] for words in (["show", "bert"], ["tasks"])])
    assert records[0] == records[1] and not HAN.search("".join(records[0]))


@pytest.mark.parametrize("verb", [None, *etymon.VERBS])
def test_help_is_chinese_and_fits_its_width(verb, chinese, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    page = run(capsys, *([verb] if verb else []), "--help")[0]
    assert page.startswith("用法:") and "选项:" in page and "显示此帮助并退出。" in page
    for line in page.splitlines():
        # A long list of choices is one word, as in English.
        assert display_width(line) <= 90 or not HAN.search(line), line
    summaries = etymon.VERBS.values() if verb is None else [etymon.VERBS[verb]]
    assert not [summary for summary in summaries if " ".join(summary.split()) in " ".join(page.split())]


def test_help_without_a_translation_is_english(other_language, capsys):
    page = run(capsys, "pretrain", "--help")[0]
    assert "Train a model on your own text." in page and "samples per step" in page


class Headings(HTMLParser):
    """The texts of a page that are not the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag, attrs):
        self.inside = tag if tag in ("h1", "h2", "dt", "th", "figcaption", "footer", "label") else ""

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside and data.strip():
            self.found.append(data.strip())


def english_headings(page: str) -> list[str]:
    parser = Headings()
    parser.feed(page)
    assert parser.found
    return [text for text in parser.found if not HAN.search(text) and text not in ("F1", "")]


def test_a_report_of_a_run_is_chinese(chinese, tmp_path):
    rows = [{"text": "好", "label": "正面"}, {"text": "差", "label": "负面"}]
    table = Table(rows, ["1", "2"], "reviews.csv")
    scores = {"accuracy": MetricScore(50.0, 20.0, 80.0, rows=40), "f1": MetricScore(40.0, rows=40)}
    records = [
        {"step": 0, "validation/bits_per_byte": 3.0, "validation/accuracy": 40.0},
        {
            "step": 1,
            "bits_per_byte": 2.0,
            "tokens_per_second": 10.0,
            "utilisation": 0.1,
            "tokens": 9,
            "words": 3,
        }
        | {"words_read": 3, "memory": 10, "seconds": 3.0},
        {
            "step": 1,
            "validation/bits_per_byte": 2.5,
            "validation/bits_per_character": 3,
            "validation/accuracy": 5.0,
        },
    ]
    labels = label_report(
        {MODEL: scores, TYPOS: scores, "majority": scores},
        ["好", "差", "坏"],
        ["正面", "负面", "负面"],
        ["正面", "正面", None],
        ["正面", "负面"],
        [None, 0.9, 0.8],
        [["正面", 0.5, 0.5, 0.5, 2]],
    )
    parts = ReportParts(
        figures=score_figures(scores, {"bits_per_target": 1.0}),
        sections=[*validation_curve(records, "accuracy", "accuracy", "Validation accuracy"), *labels],
        samples_title="What it answers, as it learns",
        subtitle=describe_rows("classify", table, table),
    )
    model = tiny.model("gpt2", frozenset({"vocabulary"}))
    write_run_report(tmp_path / "report.html", model, records, [(1, "好")], parts, {"xz": 2.0})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<html lang="zh">' in page and not english_headings(page)
    for text in (
        "验证集 准确率",
        "学习曲线",
        "比特/字节",
        "本模型",
        "混淆矩阵",
        "第 1 步",
        "（20.00 至 80.00）",
        "训练集 2 行",
    ):
        assert text in page, text


def test_pages_stay_english_otherwise():
    page = render("BERT, trained by etymon", label_report({MODEL: {}}, ["a"], ["x"], ["y"], ["x", "y"]))
    assert '<html lang="en">' in page and "Which labels are taken for which" in page and not HAN.search(page)


def test_reading_the_catalogue_waits_until_it_is_needed():
    code = "import sys, etymon; assert 'etymon.language' not in sys.modules; import etymon.cli as cli\n"
    code += "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
    code += "import etymon.language as language; assert language._catalogue.cache_info().misses == 0"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_catalogue_is_installed_with_the_package():
    settings = (Path(etymon.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"**/*.po"' in settings


def test_what_a_chinese_keyboard_types_is_noted(chinese, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("评论.csv").write_text("评论\n很好\n", encoding="utf-8")
    for typed, plain, arguments in (
        ("——family", "--family", "tokenizer ——family bert"),
        ("–-family", "--family", "tokenizer –-family bert"),
        ("评论．csv", "评论.csv", "tokenizer --family bert --data 评论．csv --out a"),
        ("“评论”", "评论", "tokenizer --family bert --data 评论.csv --column “评论” --out a"),
        ("options．masking", "options.masking", "pretrain bert --data 评论.csv --set options．masking=bert"),
        ("width，t2s", "width,t2s", "tokenizer --data 评论.csv --out a --normalise width，t2s"),
    ):
        note, line = run(capsys, *arguments.split())[1].splitlines()
        assert line.startswith("etymon：错误：")
        assert note.startswith("etymon：提示：") and repr(typed) in note and repr(plain) in note
    # Nothing of what nobody refuses, nor of the commas of a Chinese text.
    assert len(run(capsys, "explain", "bort", "你好，世界。")[1].splitlines()) == 1
    assert len(run(capsys, "explain", "没有，没有", "你好，世界。")[1].splitlines()) == 1


def test_why_a_recipe_is_as_it_is_is_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    from etymon.families import REGISTRY, get_family

    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    families = [get_family(name) for name in REGISTRY]
    reasons = {
        recipe.why for family in families for recipe in (*family._all_recipes, *family.size_recipes.values())
    }
    assert len(reasons) > 10
    for why in reasons - {""}:
        assert HAN.search(translated(why, "report")), why
