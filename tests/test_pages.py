"""Pages are right to the letter: every command that they show is one that the command line takes."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import click
import pytest

import etymon
from etymon import cli
from etymon.training.budgets import parse_budget
from tests import page_world, pages
from tests.lab.small_comparisons import small_comparisons

# What stands for something of the reader's own; "..." and "……" are left out.
STANDS_FOR = {
    "VERB": "show",
    "命令": "show",
    "N": "1",
    "CODE": "no-file",
    "名称": "no-file",
    "家族": "bert",
    "FAMILY": "bert",
}
OF_OTHER_PROGRAMS = {"--nnodes"}  # torchrun
OMITTED = re.compile(r"\.\.\.|…+")


def parse(line: str) -> None:
    """Reads a command as the command line does, without running it. What is omitted may be missing."""
    is_whole = not OMITTED.search(line)
    words = [STANDS_FOR.get(word, word) for word in pages.words_of(line)]
    words = [word for word in words if not OMITTED.fullmatch(word)] if not is_whole else words
    if words[0].startswith("--") or words[0] == "help":
        cli.Commands(etymon.VERBS).make_context("etymon", [*words], resilient_parsing=True)
        return
    verb = words[0].replace("-", "_")
    assert verb in etymon.VERBS, f"there is no verb {words[0]}"
    _, *spread = cli.spread(words)
    flags = {
        flag
        for parameter in cli.command(verb).params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    named = {word.partition("=")[0] for word in words[1:] if re.match(r"--[a-z]", word)}
    assert named <= flags | {"--help", "--no-resume"}, f"{words[0]} has no {named - flags}"
    if "--help" in named:
        return
    try:
        context = cli.command(verb).make_context(words[0], spread)
    except (click.MissingParameter, click.BadOptionUsage):
        # A verb or an option that is only mentioned: `etymon score --target`.
        return
    if context.params.get("budget") not in (None, "ten"):  # which the page of refusals has as an example
        parse_budget(context.params["budget"])
    if re.search(r"\w\.py\b|\bmy_module:", line):
        return  # a file of the reader's own, which reading would open
    given = {name: value for name, value in context.params.items() if value not in (None, ())}
    getattr(cli.module_of(verb), verb).read(given)  # types, ranges and choices of all settings


@pytest.mark.parametrize("page", pages.names())
def test_every_command_of_a_page_is_one_that_the_command_line_takes(page: str) -> None:
    wrong = []
    for place, number, line in pages.all_commands():
        if place == page:
            try:
                parse(line)
            except (AssertionError, click.UsageError, etymon.EtymonError) as error:
                wrong.append(f"{place}:{number}: {line}: {error}")
    assert wrong == []


def test_every_option_that_a_sentence_names_is_one_of_some_verb() -> None:
    flags = {
        flag
        for verb in etymon.VERBS
        for each in cli.command(verb).params
        for flag in (*each.opts, *each.secondary_opts)
    }
    flags |= {
        "--help",
        "--version",
        "--install-completion",
        "--show-completion",
        "--no-resume",
    } | OF_OTHER_PROGRAMS
    wrong = [
        f"{page}: {flag}"
        for page in pages.names()
        for flag in re.findall(r"(?<!`)`(--[a-z][a-z0-9-]+)[^`\n]*`(?!`)", pages.read(page))
        if flag not in flags
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "etymon pretrian gpt2",
        "etymon pretrain gpt2 --buget 3m",
        "etymon serve --quantize int7 a",
        "etymon pretrain bert --budget 3parsecs",
    ],
)
def test_what_the_command_line_would_refuse_is_found(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError, etymon.EtymonError)):
        parse(line)


# ------------------------------------------------------------ and they run

# Not here: no network, no cluster, no second machine, or it would not end. They are parsed above.
NOT_RUN = {
    "s3://": "a bucket",
    "ray://": "a cluster",
    "etymon serve": "goes on until it is stopped; tests/server starts it",
    "ada/tiny-gpt2 --license": "the hub",
    "my_module:cut": "a module of the reader's own",
    "--devices": "a minute of counting; tests/verbs/test_plan.py",
    "--suite": "tests/lab/test_suites.py runs suites",
    "etymon convert uncased_L-12_H-768_A-12": "an archive of Google's; tests/checkpoints opens such",
    "etymon convert electra_base": "the same",
}
# What a page shows because it is refused.
REFUSED = ('etymon generate runs/bert-pocket "Once upon a time"',)
# Pages whose blocks other tests run, with what they show.
ELSEWHERE = {
    "docs/chinese.md": "tests/test_chinese.py",
    "docs/errors.md": "tests/test_errors.py",
    "docs/errors.zh.md": "tests/test_errors.py",
    "docs/extending.md": "tests/plugins/test_extending.py",
    "docs/exporting.md": "tests/exports",
    "docs/history.md": "tests/test_misconceptions.py",
    "docs/history.zh.md": "tests/test_misconceptions.py",
    "docs/verbs.md": "tests/test_help.py",
    "README.md": "tests/test_readme.py",
    "README.zh.md": "tests/test_readme.py",
    **{f"docs/tutorials/{name}.md": "tests/test_tutorials.py" for name in ("first-model", "domain-bert", "few-labels", "translator", "comparing-families")},
}  # fmt: skip
# Pages that are one story: later commands use what earlier ones made.
STORIES = {
    "domain-bert.zh.md",
    "translator.zh.md",
    "pretraining.zh.md",
    "finetuning.zh.md",
}
TRAINING = {"pretrain", "finetune", "distill", "sweep", "compare"}
OTHER_VALUES = {
    "--vocabulary": "420", "--source-vocabulary": "420", "--batch": "4", "--batch-tokens": "300", "--steps": "2",
    "--epochs": "1", "--longest": "16", "--save-at": "1steps", "--segment": "16", "--memory": "16", "--layers": "1", "--layer": "1",
    "--length": "64",
}  # fmt: skip
OTHER_WORDS = {"shape.cutoffs=[20000, 60000]": "shape.cutoffs=[100, 200]", "shape.dim=384": "shape.dim=48"}
MORE = {
    "pretrain": "--batch 4 --length 32 --progress silent",
    "distill": "--batch 4 --length 32 --progress silent",
    "sweep": "--batch 4 --length 32 --progress silent",
    "finetune": "--length 64 --no-baselines --progress silent",
    "compare": "--length 32 --task-budget 1steps --order 0 --progress silent",
    "tokenizer": "--progress silent",
    "prepare": "--progress silent",
    "generate": "--max-new-tokens 6",
    "translate": "--max-new-tokens 6",
    "summarize": "--max-new-tokens 6",
}


def toy(words: list[str]) -> list[str]:
    """The same command with less to do: other values of the options it has, and some options more."""
    verb, words = words[0], [OTHER_WORDS.get(word, word) for word in words]
    for flag, value in OTHER_VALUES.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    budget = "600tokens" if verb == "compare" else "2000tokens" if "auto" in words else "2steps"
    if "--config" in words:  # a step for every phase
        budget = "10steps"
    if "--budget" in words:
        words[words.index("--budget") + 1] = budget
    elif verb in TRAINING and not {"--steps", "--epochs", "--resume"} & {*words}:
        words += ["--budget", budget]
    if verb == "tokenizer" and "--size" in words:
        words[words.index("--size") + 1] = "420"
    if "--seeds" in words and verb != "compare":
        words[words.index("--seeds") + 1] = "2"
    extra = MORE.get(verb, "").split()
    taken = extra.index("--length") if "--length" in extra and "--length" in words else None
    if taken is not None:
        del extra[taken : taken + 2]
    if "--batch" in extra and {"--batch", "--batch-tokens"} & {*words}:
        del extra[extra.index("--batch") : extra.index("--batch") + 2]
    if "--resume" in words:
        extra = ["--progress", "silent"]
    return words + extra


def remove_former(words: list[str]) -> None:
    """Where a page shows two ways to the same folder, the second finds it empty."""
    if words[0] not in {*TRAINING, "tokenizer", "prepare", "convert"} or "--resume" in words:
        return
    if "--out" in words:
        folder = words[words.index("--out") + 1]
    elif words[0] == "finetune":
        task = words[words.index("--task") + 1] if "--task" in words else "text2text"
        folder = f"runs/{task}-"
    else:
        folder = f"runs/{words[1]}-pocket"
    for found in Path().glob(f"{folder}*" if folder.endswith("-") else folder):
        if str(found) not in words or "--out" in words:
            shutil.rmtree(found)


def runnable(page: str) -> list[tuple[str, list[pages.Block]]]:
    """(name, blocks) of what is run together: a block with commands, or all of a page that is one story."""
    if page in ELSEWHERE:
        return []
    kept = [block for block in pages.blocks(page) if block.mark is None or block.mark[0] == "file"]
    name = page.removeprefix("docs/")
    if name in STORIES:
        return [(name, kept)]
    files = [block for block in kept if block.mark is not None]
    shells = [
        block
        for block in kept
        if block.language in pages.SHELLS and [*pages.typed(block.text, launched=False)]
    ]
    return [(f"{name}-{number}", [*files, block]) for number, block in enumerate(shells)]


# What torchrun launches is parsed above and run by tests/training.
CASES = [case for page in pages.names() for case in runnable(page)]


@pytest.mark.parametrize("blocks", [blocks for _, blocks in CASES], ids=[name for name, _ in CASES])
def test_the_commands_of_a_page_run(blocks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = blocks[0].page.removeprefix("docs/")
    if ".zh" in page:
        monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    with page_world.tiny_pocket_sizes(), small_comparisons():
        for block in blocks:
            if block.mark is not None:
                Path(block.mark[1]).write_text(block.text, encoding="utf-8")
                page_world.furnish(
                    re.findall(r"[\w./-]+", block.text) if block.language == "yaml" else [], page
                )
                if block.language == "python":
                    exec(compile(block.text, block.mark[1], "exec"), {})
                    page_world.shorten_files()
            for count, source, target in re.findall(
                r"^head -n (\d+) (\S+) > (\S+)$", block.text, re.MULTILINE
            ):
                lines = Path(source).read_text(encoding="utf-8").splitlines(keepends=True)
                Path(target).write_text("".join(lines[: int(count)]), encoding="utf-8")
            for line in pages.typed(block.text, launched=False) if block.language in pages.SHELLS else ():
                if any(reason in line for reason in NOT_RUN):
                    continue
                words = pages.words_of(line)
                if "--help" in words:
                    continue
                remove_former(words)
                page_world.furnish(words, page)
                if "-" in words:
                    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The river\n")))
                with pytest.raises(SystemExit) as left:
                    cli.main(toy(words))
                assert left.value.code == (2 if line in REFUSED else 0), f"{line}\n{capsys.readouterr().err}"


def test_what_is_not_run_stands_on_a_page() -> None:
    lines = [line for _, _, line in pages.all_commands()]
    assert [key for key in (*NOT_RUN, *REFUSED) if not any(key in line for line in lines)] == []


# ------------------------------------------------------------ and so does their Python

# What a block takes for granted: names that the sentence above it speaks of.
TAKEN_FOR_GRANTED = {
    "adapters.md": "",
    "attention.md": "",
    "checkpoints.md": 'import etymon\nfolder = "runs/classify-bert/model"\ntexts = ["A film."]\nseconds = ["A book."]',
    "context.md": "import etymon",
    "evaluation.md": "from transformers import AutoModelForCausalLM",
    "generation.md": "",
    "probing.md": "",
    "prompting.md": "",
    "scikit-learn.md": 'texts = [f"a {word} film {number}" for number in range(10) for word in ("fine", "dull")]\n'
    'labels = ["good", "bad"] * 10',
}
PYTHON_ELSEWHERE = {
    "adding.md": "excerpts of files",
    "exporting.md": "tests/exports",
    "extending.md": "tests/plugins/test_extending.py",
    "families/bert.md": "tests/families/test_transformers.py opens such folders",
    "languages.md": "modules of the reader's own",
    "serving.md": "tests/server asks by the same client",
    "using.zh.md": "the same",
    "sharing.md": "tests/verbs/test_push.py, with a hub of its own",
}
PYTHON_PAGES = {
    page.removeprefix("docs/"): [
        block for block in pages.blocks(page) if block.language == "python" and block.mark is None
    ]
    for page in pages.names()
    if page.startswith("docs/") and not page.startswith("docs/tutorials/")
}


def test_the_python_of_every_page_is_run_by_somebody() -> None:
    with_python = {page for page, found in PYTHON_PAGES.items() if found}
    assert with_python == TAKEN_FOR_GRANTED.keys() | PYTHON_ELSEWHERE.keys()


@pytest.mark.parametrize("page", TAKEN_FOR_GRANTED)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    if page == "scikit-learn.md":
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    with page_world.tiny_pocket_sizes():
        exec(TAKEN_FOR_GRANTED[page], scope)
        for block in PYTHON_PAGES[page]:
            named = re.findall(r'"([\w./-]+)"', f"{TAKEN_FOR_GRANTED[page]}\n{block.text}")
            page_world.furnish([name.removesuffix("/model") for name in named], page)
            exec(compile(block.text, f"{page}:{block.line}", "exec"), scope)
