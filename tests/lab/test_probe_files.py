"""Every format of probing data, its splits, and its refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from etymon.errors import EtymonError
from etymon.lab.probe_files import ProbeColumns, read_tasks
from etymon.lab.probe_tasks import ProbeTask


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def one(*paths: Path, columns: ProbeColumns = ProbeColumns(), **options: object) -> ProbeTask:  # noqa: B008
    (task,) = read_tasks(paths, columns, **options)  # type: ignore[arg-type]
    return task


def counted(task: ProbeTask) -> Counter[str]:
    return Counter(example.split for example in task.examples)


def rows(count: int, split: str = "") -> str:
    return "".join(f"{split}{'ab'[n % 2]}\tThe number {n}.\n" for n in range(count))


def test_senteval(tmp_path):
    file = written(tmp_path / "tense.txt", rows(6, "tr\t") + rows(3, "va\t") + rows(4, "te\t"))
    task = one(file)
    assert (task.name, task.level) == ("tense", "sentence")
    assert counted(task) == {"train": 6, "validation": 3, "test": 4}
    assert task.examples[1][:4] == ("The number 1.", "b", "the", "train")
    assert task.examples[1].span is None


def test_tables_and_their_columns(tmp_path):
    lines = ["id,said,kind", *(f'{n},"He said ""{n}"", twice",{n % 2}' for n in range(20))]
    file = written(tmp_path / "table.csv", "\n".join(lines) + "\n")
    task = one(file, columns=ProbeColumns("said", "kind"))
    assert sorted(task.examples)[0].text == 'He said "0", twice'
    assert counted(task) == {"train": 16, "validation": 2, "test": 2}
    quoted = written(
        tmp_path / "table.tsv",
        'text\tlabel\tsplit\n"open\tx\ttrain\n' * 1 + "b\ty\ttrain\n" * 6 + "c\tx\tdev\nd\ty\ttest\n",
    )
    assert {example.text for example in one(quoted).examples} == {'"open', "b", "c", "d"}


def test_a_missing_split_is_made_of_the_texts_alone(tmp_path):
    header = "label\ttext\n"
    forward = one(written(tmp_path / "a.tsv", header + rows(50)))
    backward = one(written(tmp_path / "b.tsv", header + "".join(reversed(rows(50).splitlines(True)))))
    assert counted(forward) == {"train": 40, "validation": 5, "test": 5}
    assert {example[:4] for example in forward.examples} == {example[:4] for example in backward.examples}
    twice = one(written(tmp_path / "c.tsv", header + rows(50) * 2))
    places: dict[str, set[str]] = {}
    for example in twice.examples:
        places.setdefault(example.text, set()).add(example.split)
    assert all(len(splits) == 1 for splits in places.values())


def test_files_that_differ_in_the_split_are_one_task(tmp_path):
    for name, count in (("train", 40), ("dev", 6)):
        written(tmp_path / "sst" / f"{name}.tsv", "label\ttext\n" + rows(count))
    written(tmp_path / "pos_en-train.tags", "a\tA\nb\tB\n\n" * 5)
    written(tmp_path / "pos_en-dev.tags", "a\tA\nb\tB\n\n")
    written(tmp_path / "pos_en-test.tags", "a\tA\nb\tB\n\n")
    written(tmp_path / "README.md", "what this is")
    tags, table = read_tasks([tmp_path], ProbeColumns())
    assert (tags.name, table.name) == ("pos_en", "sst")
    assert counted(tags) == {"train": 10, "validation": 2, "test": 2}
    assert counted(table) == {"train": 36, "validation": 4, "test": 6}
    assert [note.split(": ")[-1] for note in table.notes] == [
        "its validation split is used for that",
        "a tenth of its training split is held out for validation",
    ]


def test_token_and_tag_tables(tmp_path):
    file = written(
        tmp_path / "ner.txt",
        "-DOCSTART-\t-X-\tO\n\nPeter\tNNP\tB\nsaw\tVBD\tO\n\nParis\tNNP\tB\n"
        + "".join(f"\nx{n}\tX\tO\n" for n in range(20)),
    )
    task = one(file)
    assert task.level == "token"
    peter, saw, *_ = sorted(task.examples, key=lambda example: example.text != "Peter saw")
    assert (peter.text, peter.span, peter.label, peter.type) == ("Peter saw", (0, 5), "B", "peter")
    assert (saw.span, saw.label) == ((6, 9), "O")


CONLLU = """# text = don't go, du
1-2	don't	_	_	_	_	_	_	_	_
1	do	do	AUX	VBP	_	3	aux	_	_
2	n't	not	PART	RB	_	3	advmod	_	_
3	go	go	VERB	VB	_	0	root	_	SpaceAfter=No
3.1	gone	go	VERB	VB	_	_	_	_	_
4	,	,	PUNCT	,	_	3	punct	_	_
5-6	du	_	_	_	_	_	_	_	_
5	de	de	ADP	_	_	3	case	_	_
6	le	le	DET	_	_	3	det	_	_

"""


def test_conllu_puts_words_together_as_they_stood(tmp_path):
    file = written(
        tmp_path / "ud.conllu",
        CONLLU
        + "1	go	go	VERB	VB	_	0	root	_	_\n\n"
        + "".join(f"1	of{n}	of	ADP	IN	_	0	root	_	_\n\n" for n in range(20)),
    )
    task = one(file, examples=100)
    words = {example.span: example for example in task.examples if example.text.startswith("don't")}
    (text,) = {example.text for example in words.values()}
    assert text == "don't go, de le"
    assert [(text[slice(*span)], word.label) for span, word in sorted(words.items())] == [
        ("do", "AUX"), ("n't", "PART"), ("go", "VERB"), (",", "PUNCT"), ("de", "ADP"), ("le", "DET"),
    ]  # fmt: skip
    fine = one(file, columns=ProbeColumns(label="xpos"), examples=100)
    assert {example.label for example in fine.examples} == {"VBP", "RB", "VB", ",", "IN"}  # none for _


def test_at_most_so_many_examples(tmp_path):
    file = written(tmp_path / "big.tsv", "label\ttext\n" + rows(400))
    task = one(file, examples=20)
    assert counted(task) == {"train": 20, "validation": 10, "test": 10}
    assert task.notes[0] == "big: 20 of 320 train examples are used (--examples)"


def pseudo_text() -> str:
    common = " ".join(f"common{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(100))
    sentences = [f"{common} and so on {n}." for n in range(80)]
    for n in range(60):
        sentences += [
            f"Once the {'river' if n % 2 else 'letter'} was {n} and RIVER."
            if n < 4
            else f"A {'river' if n % 2 else 'letter'} {n}."
        ]
    return "\n".join(sentences)


def test_pseudo_words(tmp_path, monkeypatch):
    monkeypatch.setattr("etymon.lab.probe_tasks.COMMON", 103)
    task = one(written(tmp_path / "raw.txt", pseudo_text()))
    assert (task.name, task.level) == ("raw pseudo-words", "pseudo-word")
    assert {example.label for example in task.examples} == {"river", "letter"}
    assert len({example.group for example in task.examples}) == 1
    for example in task.examples:
        assert example.span is not None
        assert example.text[slice(*example.span)] == example.group
        assert example.type in ("a", "the")
        # Nothing in the text says which it was, in whatever case.
        rest = example.text.replace(example.group, "").lower()
        assert "river" not in rest and "letter" not in rest
    balance = Counter((example.split, example.label) for example in task.examples)
    assert balance["train", "river"] == balance["train", "letter"] >= 20
    assert task.notes == ["raw has words for 1 pseudo-words only"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.csv", "sentence,label\na,b\n", r"t\.csv: no column 'text'; columns there: 'sentence', 'label'; name the right one with --text"),
        ("t.csv", "text,kind\na,b\n", "no column 'label'.* with --label"),
        ("t.csv", "", "is empty"),
        ("t.txt", "", "is empty"),
        ("t.csv", "text,label\n", "is empty"),
        ("t.csv", "text,label\n" + "".join(f"t{n},x\n" for n in range(20)), "t has only the label 'x' in training"),
        ("t.csv", "text,label\n" + "".join(f"t{n},{n}\n" for n in range(20)), "16 labels for 16 training examples"),
        ("t.csv", "text,label\na,x\n,y\n", r"t\.csv, line 3 has no text"),
        ("t.csv", "text,label\na,x\nb\n", r"t\.csv, line 3: a row of 1 columns .* where the header has 2"),
        ("t.csv", "text,label\na,x\nb,\n", r"t\.csv, line 3 has no label"),
        ("t.csv", "text,label,split\na,x,train\nb,y,tset\n", r"line 3 is in no split \('tset'\)"),
        ("t.csv", "text,label,split\na,x,train\nb,y,train\n", "t: all examples are for train"),
        ("t.csv", "text,label,split\na,x,dev\nb,y,test\n", "t: no examples are for train"),
        ("t.csv", "text,label\na,x\nb,y\n", "t has no train examples"),
        ("t.txt", "tr\ta\tb\nte\tb\n", r"t\.txt, line 2: expected split, label and text"),
        ("t.conll", "a A\nb\n", r"t\.conll, line 2: expected a token and its tag"),
        ("t.conllu", "1\ta\tb\n", r"t\.conllu, line 1: 3 columns instead of CoNLL-U's 10"),
        ("t.txt", "Some words that are few.", "too little text for pseudo-words"),
        ("t.pdf", "x", r"cannot tell what .*t\.pdf is: name it with --format senteval\|table"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, name, content, told):
    with pytest.raises(EtymonError, match=told) as refused:
        one(written(tmp_path / name, content))
    assert "\n" not in str(refused.value)


def test_tasks_of_one_name_are_told_apart(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name / "x").mkdir(parents=True)
        lines = (f"text {number}\t{number % 2}\n" for number in range(40))
        (tmp_path / name / "x" / "task.tsv").write_text("text\tlabel\n" + "".join(lines))
    tasks = read_tasks([tmp_path / name / "x" / "task.tsv" for name in ("a", "b", "c")], ProbeColumns())
    assert len({task.name for task in tasks}) == 3


def test_other_refusals(tmp_path):
    with pytest.raises(EtymonError, match="no such file or folder"):
        read_tasks([tmp_path / "none"], ProbeColumns())
    with pytest.raises(EtymonError, match="no tasks in the folder"):
        read_tasks([tmp_path], ProbeColumns())
    with pytest.raises(EtymonError, match="give --data"):
        read_tasks([], ProbeColumns())
    with pytest.raises(EtymonError, match=r"there is no format 'conlu'.*conllu"):
        read_tasks([tmp_path], ProbeColumns(), format="conlu")  # type: ignore[arg-type]
    (tmp_path / "latin.tsv").write_bytes(b"text\tlabel\ncaf\xe9\tx\n")
    with pytest.raises(EtymonError, match="not UTF-8"):
        read_tasks([tmp_path], ProbeColumns())


def test_the_shared_sets(shared):
    if not (shared / "data" / "ud-ewt").is_dir():
        pytest.skip("no data there")
    ud, tense = read_tasks(
        [shared / "data" / "ud-ewt", shared / "data" / "senteval-probing" / "past_present.txt"],
        ProbeColumns(),
        examples=200,
    )
    assert ud.name == "en_ewt-ud" and {"NOUN", "VERB"} <= {example.label for example in ud.examples}
    assert all(
        example.span and example.text[slice(*example.span)].casefold() == example.type
        for example in ud.examples
    )
    assert {example.label for example in tense.examples} == {"PAST", "PRES"}
