"""Tables out of CoNLL's files, and of .json files that hold one object after the other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from etymon.errors import EtymonError
from etymon.tables.table import read_table

CONLLU = """# text = don't go
1-2	don't	_	_	_	_	_	_	_	_
1	do	do	AUX	VBP	_	3	aux	_	_
2	n't	not	PART	RB	_	3	advmod	_	_
3	go	go	VERB	VB	Mood=Imp	0	root	_	SpaceAfter=No
3.1	gone	go	VERB	VB	_	_	_	_	_

# sent_id = 2
1	Yes	yes	INTJ	UH	_	0	root	_	_
"""
COLUMNS = "-DOCSTART- -X- O\n\nPeter NNP B-PER\nsaw VBD O\n\n\nNew York\tNNP\tB-LOC\n"


def test_a_row_of_conllu_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "ud.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    table = read_table(path)
    first, second = table.rows
    assert first["tokens"] == ["do", "n't", "go"] and first["upos"] == ["AUX", "PART", "VERB"]
    assert first["xpos"] == ["VBP", "RB", "VB"] and first["feats"] == ["_", "_", "Mood=Imp"]
    assert first["deprel"] == ["aux", "advmod", "root"] and first["spaces"] == [False, True, False]
    assert second["tokens"] == ["Yes"]
    assert table.places == [f"{path}, line 2", f"{path}, line 9"]


def test_columns_are_named_or_the_first_and_the_last(tmp_path: Path) -> None:
    packed = tmp_path / "ner.conll.gz"
    packed.write_bytes(gzip.compress(COLUMNS.encode()))
    table = read_table(packed)
    assert table.rows == [
        {"tokens": ["Peter", "saw"], "tags": ["B-PER", "O"]},
        {"tokens": ["New York"], "tags": ["B-LOC"]},
    ]
    assert table.places[0].endswith("ner.conll.gz, line 3")
    (tmp_path / "ner.bio").write_text(COLUMNS, encoding="utf-8")
    named = read_table(tmp_path / "ner.bio", ["words", "pos", "_"])
    assert named.rows[0] == {"words": ["Peter", "saw"], "pos": ["NNP", "VBD"]}
    (tmp_path / "ner.bio").write_text(
        "-DOCSTART- O\nPeter B-PER\n", encoding="utf-8"
    )  # no blank line between
    assert read_table(tmp_path / "ner.bio").rows == [{"tokens": ["Peter"], "tags": ["B-PER"]}]
    (tmp_path / "bare.iob").write_text("Peter\nsaw\n", encoding="utf-8")
    assert read_table(tmp_path / "bare.iob", ["tokens"]).rows == [{"tokens": ["Peter", "saw"]}]


@pytest.mark.parametrize(
    ("name", "content", "columns", "reason"),
    [
        ("a.conll", "a A\nb\n", (), r"a\.conll, line 2: expected a token and its tag"),
        ("a.conll", "a A\nb B c\n", ("tokens", "tags"), r"a\.conll, line 2: 3 columns, and 2 were named: tokens, tags"),
        ("a.conllu", "1\ta\tb\n", (), r"a\.conllu, line 1: 3 columns instead of CoNLL-U's 10"),
        ("a.conllu", "x\ta" + "\t_" * 8, (), r"a\.conllu, line 1: 'x' is no number of a word"),
        ("a.json", '{"a": 1}\n{"a": 2\n', (), r"a\.json, line 2 is not valid JSON"),
        ("a.json", '{"a": 1}\n{"a": ' + "1" * 5000 + "}", (), r"a\.json, line 2 is not valid JSON \(a number of"),
        ("a.json", "[" * 100_000, (), r"a\.json is not valid JSON \(nested too deeply\)"),
        ("a.json", '{"a": 1}\n3\n', (), r"a\.json, line 2: expected an object, and not int"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, name: str, content: str, columns: tuple[str, ...], reason: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(EtymonError, match=reason) as refused:
        read_table(tmp_path / name, columns)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("indent", [None, 2])
def test_json_objects_one_after_the_other(tmp_path: Path, indent: int | None) -> None:
    rows = [{"text": "浙商银行", "label": {"company": {"浙商银行": [[0, 3]]}}}, {"text": "b", "label": {}}]
    path = tmp_path / "train.json"
    path.write_text(
        "\n".join(json.dumps(row, ensure_ascii=False, indent=indent) for row in rows) + "\n", encoding="utf-8"
    )
    table = read_table(path)
    assert table.rows == rows
    second = 1 + len(json.dumps(rows[0], indent=indent).splitlines())
    assert table.places == [f"{path}, line 1", f"{path}, line {second}"]


def test_rows_of_the_same_words_are_held_out_together() -> None:
    table = read_table([{"tokens": ["a", str(n % 10)], "tags": ["X", "Y"]} for n in range(40)])
    inside, outside = table.hold_out("tokens", 0.2, most=1000)
    assert len(outside) == 8 and len(inside) == 32
    assert not {row["tokens"][1] for row in inside.rows} & {row["tokens"][1] for row in outside.rows}


def test_the_shared_sets(shared: Path) -> None:
    for name in ("ud-ewt/en_ewt-ud-dev.conllu", "cluener/dev.json"):
        if not (shared / "data" / name).is_file():
            pytest.skip(f"no {name} there")
    sentences = read_table(shared / "data" / "ud-ewt" / "en_ewt-ud-dev.conllu")
    assert len(sentences) == 2001
    assert all(len(row["tokens"]) == len(row["upos"]) == len(row["spaces"]) for row in sentences.rows)
    assert len({tag for row in sentences.rows for tag in row["upos"]}) == 17
    assert len(read_table(shared / "data" / "cluener" / "dev.json")) == 1343
