"""Tagging: every word once, at the piece that knows it; the loss of Transformers; entities there and back."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.saving import save
from etymon.objectives.objective import weighted_loss
from etymon.sampling.plans import key
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task, task_of
from etymon.tasks.entities import entities_of, read_entities, scheme_tags, tags_of, words_of
from etymon.tasks.head_task import TEACHER, HeadOptions
from etymon.tasks.tag import Tag, TagOptions
from etymon.training.unit import TrainingUnit
from tests import tiny
from tests.oracle.runner import gradients

SENTENCES = [text.replace(".", " .").split() for text in tiny.texts(4, seed=3)]
TABLE = read_table(
    [
        {"tokens": words, "tags": ["." if word == "." else "DNVdn"[n % 6] for n, word in enumerate(words)]}
        for words in SENTENCES
    ]
)
ENTITIES = read_table([
    {"text": "The captain crossed New Bridge, near Winter.", "entities": [[20, 30, "PLACE"], {"start": 37, "end": 43, "label": "TIME"}]},
    {"text": "A letter wanted 浙商银行的captain.", "entities": [[16, 20, "PLACE"]]},
    {"text": "Nothing.", "entities": None},
])  # fmt: skip


def bound(family: str, table: Table = TABLE, length: int = 64, **options: Any) -> tuple[Tag, Any]:
    known = get_family(family)
    task = get_task("tag", options, known)
    assert isinstance(task, Tag)
    heads = task.fit(known).heads
    model = tiny.model(family, heads, labels=task.labels(table)).eval()
    task.bind(model, length)
    return task, model


def whole(task: Tag, table: Table) -> Any:
    examples = task.encode(table, learn=True)
    return task.collate([task.prepare(examples, np.arange(len(examples)), key(0))])


# ------------------------------------------------------------ reading


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet", "elmo", "t5"])
def test_a_word_is_asked_for_at_the_piece_that_knows_it(family: str) -> None:
    task, model = bound(family, length=512)
    examples = task.encode(TABLE)
    for number, words in enumerate(SENTENCES):
        example = examples.example(number)
        before = model.tokenizer.framing.single.index(0)
        pieces = task.pieces.read(" ".join(words), task.row_words(TABLE)[number].spans)
        expected = pieces.stops - 1 if family == "gpt2" else pieces.firsts
        assert example["places"].tolist() == (before + expected).tolist()
        assert [task.label_names[n] for n in example["target"]] == TABLE.rows[number]["tags"]
        asked = example["ids"][example["places"][0]]
        assert model.tokenizer.tokens[asked].strip("▁") in ("The", "the", "T", "")


def test_tags_that_are_numbers_are_in_their_order() -> None:
    table = read_table([{"tokens": ["a"] * 12, "tags": list(range(12))}])
    task: Any = get_task("tag", {}, get_family("bert"))
    assert task.labels(table) == tuple(map(str, range(12)))


def test_numbers_are_the_tags_of_a_model_whose_labels_have_no_names() -> None:
    task: Any = get_task("tag", {}, get_family("bert"))
    task.label_names = ("LABEL_0", "LABEL_1")
    table = read_table([{"tokens": ["a", "b"], "tags": [1, 0]}])
    assert task.targets(table).tolist() == [1, 0]
    with pytest.raises(EtymonError, match="row 1: tag '2' is none of those that were learnt"):
        task.targets(read_table([{"tokens": ["a"], "tags": [2]}]))


def test_lists_and_texts_are_the_same_words() -> None:
    task, _ = bound("bert")
    listed = task.encode(TABLE)
    as_text = [{name: " ".join(row[name]) for name in row} for row in TABLE.rows]
    as_json = [{name: json.dumps(row[name]) for name in row} for row in TABLE.rows]
    for rows in (as_text, as_json):
        again = task.encode(read_table(rows))
        assert all(
            np.array_equal(listed.columns[name].flat, again.columns[name].flat) for name in ("ids", "target")
        )  # type: ignore[union-attr]


def test_writing_without_spaces_is_joined_without_them() -> None:
    task, _ = bound("bert")
    (words,) = task.row_words(read_table([{"tokens": ["温格", "的", "iPhone", "X", "，", "2", "\u200b"]}]))
    assert words.text == "温格的iPhone X，2 \u200b"
    assert words.tokens == ("温格", "的", "iPhone", "X", "，", "2", "\u200b")


def test_a_long_sentence_is_read_in_parts_and_nothing_is_lost() -> None:
    task, model = bound("bert", length=16)
    told: list[str] = []
    examples = task.encode(TABLE, told.append, learn=True)
    assert len(examples) > len(TABLE) and max(examples.sizes) <= 16
    assert told == ["4 of 4 rows are longer than 16 tokens and are read in parts (finetune --length)"]
    targets: Any = examples.columns["target"]
    assert [task.label_names[n] for n in targets.flat] == [tag for row in TABLE.rows for tag in row["tags"]]
    assert int(examples.words.sum()) == sum(map(len, SENTENCES))
    answers = task.predict(model, TABLE)
    assert [one.tokens for one in answers] == [tuple(words) for words in SENTENCES]
    assert all(len(one.tags) == len(one.confidences) == len(one.tokens) for one in answers)
    short = read_table([{"tokens": words[:5], "tags": ["N"] * 5} for words in SENTENCES])
    wide, _ = bound("bert", length=64)
    assert wide.predict(model, short) == task.predict(model, short), "windows are for what is too long alone"


def test_a_word_that_is_too_long_is_cut_and_said() -> None:
    task, model = bound("gpt2", length=8)
    table = read_table([{"tokens": ["a", "qqqqqqqqqqqqqqqqqqqq", "b"], "tags": "D N V"}])
    told: list[str] = []
    task.encode(table, told.append)
    assert told[1] == "cut 1 words of more than 8 tokens each"
    assert len(task.predict(model, table)[0].tags) == 3
    with pytest.raises(EtymonError, match="2 tokens have no room for a text: raise --length"):
        bound("bert", length=2)


def test_answers_do_not_depend_on_their_neighbours() -> None:
    task, model = bound("xlnet", length=24)
    together = task.predict(model, TABLE)
    for number, one in enumerate(together):
        (alone,) = task.predict(model, TABLE.at([number]))
        assert alone.tags == one.tags
        assert alone.confidences == pytest.approx(one.confidences, abs=1e-5)


# ------------------------------------------------------------ the loss


def test_loss_and_gradients_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertForTokenClassification

    task, model = bound("bert")
    prepared = whole(task, TABLE)
    save(model, tmp_path)
    reference = BertForTokenClassification.from_pretrained(tmp_path).eval()
    assert [reference.config.id2label[n] for n in range(len(task.label_names))] == list(task.label_names)
    read = AutoTokenizer.from_pretrained(tmp_path)(
        SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt"
    )
    labels = torch.full_like(read["input_ids"], -100)
    for row, record in enumerate(TABLE.rows):
        places = read.word_ids(row)
        for word, tag in enumerate(record["tags"]):
            labels[row, places.index(word)] = task.label_names.index(tag)
    expected = reference(**read, labels=labels).loss
    found = weighted_loss(task.loss(TrainingUnit(model, task), prepared), prepared.counts)
    assert prepared.counts["loss"] == sum(map(len, SENTENCES))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    found.backward()
    expected.backward()
    ours = gradients(model)
    theirs = {name: one.grad for name, one in reference.named_parameters() if one.grad is not None}
    assert len(theirs) > 20
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=2e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "xlnet", "bart", "rnn", "elmo"])
def test_a_step_and_answers(family: str) -> None:
    task, model = bound(family)
    prepared = whole(task, TABLE)
    unit = TrainingUnit(model.train(), task)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(4):
        torch.manual_seed(0)
        loss = weighted_loss(unit(prepared), prepared.counts)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < losses[0]
    answers = task.predict(model, TABLE)
    scores = task.score(answers, TABLE, ["accuracy"])
    right = [one == two for row, each in zip(TABLE.rows, answers) for one, two in zip(row["tags"], each.tags)]
    assert scores["accuracy"].value == pytest.approx(100 * np.mean(right))
    record = task.record(answers[0])
    assert json.loads(json.dumps(record)) == record and record["prediction"] == list(answers[0].tags)
    assert task.format_row(TABLE, 0, answers[0]).splitlines()[2].startswith("(The/D ")


def test_a_teacher_is_followed_word_by_word() -> None:
    teacher_task, teacher = bound("bert", length=16)
    task, model = bound("gpt2", length=40, language_model=0.5, r_drop=1.0)
    task.follow_teacher(teacher, teacher_task, "the teacher")
    words = sum(map(len, SENTENCES))
    told: list[str] = []
    examples = task.encode(TABLE, told.append, learn=True)
    prepared = task.collate([task.prepare(examples, np.arange(len(examples)), key(0))])
    assert prepared.teacher_logits is not None and prepared.teacher_logits.shape == (
        words,
        len(task.label_names),
    )
    assert {name: prepared.counts[name] for name in (TEACHER, "loss", "r_drop")} == dict.fromkeys(
        (TEACHER, "loss", "r_drop"), words
    )
    assert prepared.counts["language_model"] == len(examples)
    terms = task.loss(TrainingUnit(model.train(), task), prepared)
    assert set(terms) == {"loss", "r_drop", TEACHER, "language_model"}
    # What it says is what the teacher answers, whatever windows either reads in.
    said = np.concatenate([examples.example(number)[TEACHER] for number in range(len(examples))])
    tags = [teacher_task.label_names[n] for n in said.argmax(1)]
    assert tags == [tag for one in teacher_task.predict(teacher, TABLE) for tag in one.tags]
    itself, _ = bound("bert", length=16)
    itself.follow_teacher(teacher, teacher_task, "itself")
    same = whole(itself, TABLE)
    terms = itself.loss(TrainingUnit(teacher.train(), itself), same)
    assert abs(terms[TEACHER].sum.item()) < 1e-3


# ------------------------------------------------------------ entities


def test_words_of_a_text() -> None:
    text = "Dr. Müller's café zahlt 浙商銀行 3,5\u00a0Mio. हिन्दी ไทย"
    words = [text[start:stop] for start, stop in words_of(text)]
    expected = "Dr . Müller ' s café zahlt 浙 商 銀 行 3 , 5 Mio . हिन्दी ไ ท ย".split()
    assert words == expected


@pytest.mark.parametrize(
    ("scheme", "parts"), [("IOB2", ["B-PLACE", "I-PLACE"]), ("BILOU", ["B-PLACE", "L-PLACE"])]
)
def test_entities_there_and_back(scheme: Any, parts: list[str]) -> None:
    task, model = bound("bert", ENTITIES, entities="entities", scheme=scheme)
    assert task.columns == ("text", "entities") and task.default_metrics == ("f1",)
    assert task.label_names == scheme_tags(["PLACE", "TIME"], scheme)
    right = task.row_tags(ENTITIES, task.row_words(ENTITIES))
    assert right[0] == ["O"] * 3 + parts + ["O"] * 2 + [f"{'U' if scheme == 'BILOU' else 'B'}-TIME", "O"]
    numbers = [np.array([[0.5, task.label_names.index(tag)] for tag in tags]) for tags in right]
    given = task.merge_row_answers(ENTITIES, numbers)
    assert [[(one.text, one.label) for one in each.entities or ()] for each in given] == [
        [("New Bridge", "PLACE"), ("Winter", "TIME")], [("浙商银行", "PLACE")], [],
    ]  # fmt: skip
    first = task.record(given[0])["prediction"][0]
    assert first == {"start": 20, "end": 30, "label": "PLACE", "text": "New Bridge", "confidence": 0.5}
    assert task.score(given, ENTITIES, ["f1", "accuracy"])["f1"].value == 100
    assert task.format_row(ENTITIES, 0, given[0]).endswith(
        "\n-> New Bridge (PLACE), Winter (TIME)\n(New Bridge (PLACE), Winter (TIME))"
    )
    assert "no entities" in task.format_row(ENTITIES, 2, given[2])
    empty = [replace(one, tags=("O",) * len(one.tags)) for one in given]
    assert task.score(empty, ENTITIES, ["f1"])["f1"].value == 0
    assert (
        len(task.predict(model, read_table([{"text": "The bridge"}]))) == 1
    )  # what is right need not be known


def test_tags_that_break_their_scheme_still_say_entities() -> None:
    text = "aa bb cc dd ee"
    words = words_of(text)

    def said(*tags: str) -> list[tuple[str, str]]:
        return [(one.text, one.label) for one in entities_of(tags, words, text, [1.0] * 5)]

    assert said("O", "I-X", "I-X", "B-X", "I-Y") == [("bb cc", "X"), ("dd", "X"), ("ee", "Y")]
    assert said("L-X", "B-X", "L-X", "U-X", "I-X") == [("aa", "X"), ("bb cc", "X"), ("dd", "X"), ("ee", "X")]
    assert said("PER", "PER", "O", "S-X", "E-X") == [("aa bb", "PER"), ("dd", "X"), ("ee", "X")]


def test_an_entity_is_widened_to_whole_words_and_it_is_said() -> None:
    rows = [{"text": "The Bridgeman crossed.", "entities": [[4, 10, "PLACE"], [10, 13, "TIME"]]}]
    task, _ = bound("bert", read_table(rows), text="text")
    told: list[str] = []
    task.encode(read_table(rows), told.append)
    assert told == ["2 entities begin or end inside a word: they are taken to have all of it"]
    assert task.row_tags(read_table(rows), task.row_words(read_table(rows))) == [["O", "B-PLACE", "O", "O"]]


@pytest.mark.parametrize("as_json", [False, True])
def test_the_form_of_cluener(as_json: bool) -> None:
    value: Any = {"name": {"叶老桂": [[2, 4], [6, 8]]}, "book": {"书": [[0, 0]]}}
    value = json.dumps(value) if as_json else value
    found = read_entities(value, "书，叶老桂，叶老桂", "row 1", "label")
    assert [(one.start, one.end, one.label) for one in found] == [
        (0, 1, "book"),
        (2, 5, "name"),
        (6, 9, "name"),
    ]


def test_of_entities_that_overlap_the_longest_is_kept_if_asked() -> None:
    given = [[0, 2, "A"], [1, 9, "B"], [10, 12, "C"]]
    with pytest.raises(EtymonError, match=r"row 1: column 'e': 'ab' \(A\) and 'b cd ef ' \(B\) overlap"):
        read_entities(given, "ab cd ef  gh", "row 1", "e")
    kept = read_entities(given, "ab cd ef  gh", "row 1", "e", longest=True)
    assert [one.label for one in kept] == ["B", "C"]
    tags, _ = tags_of(kept, words_of("ab cd ef  gh"), "IOB2")
    assert tags == ["B-B", "I-B", "I-B", "B-C"]


# ------------------------------------------------------------ refusals and memory


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tokens": ["a", "b"], "tags": ["N"]}, r"row 2: 2 words in column 'tokens', and 1 tags in column 'tags'"),
        ({"tokens": [], "tags": []}, r"row 2: column 'tokens' is empty"),
        ({"tokens": " ", "tags": "N"}, r"row 2: column 'tokens' is empty"),
        ({"tokens": None, "tags": "N"}, r"row 2: column 'tokens' is to hold a list, or a text with spaces, and holds nothing"),
        ({"tokens": ["a"], "tags": 3}, r"row 2: column 'tags' is to hold a list, .* and holds a int"),
        ({"tokens": ["a"], "tags": [None]}, r"row 2: column 'tags' is to hold a list, .* and holds nothing in its list"),
        ({"tokens": ["a"], "tag": ["N"]}, r"row 2: no column 'tags'; did you mean 'tag'"),
        ({"tokens": ["a"], "tags": ["Q"]}, r"row 2: tag 'Q' is none of those that were learnt"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_used_are_named(row: dict[str, Any], reason: str) -> None:
    task, _ = bound("bert")
    with pytest.raises(EtymonError, match=reason) as refused:
        task.texts(read_table([TABLE.rows[0], row]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("entities", "reason"),
    [
        ([[0, 99, "X"]], r"row 1: column 'entities': an entity from 0 to 99 in a text of 9 characters"),
        ([[3, 3, "X"]], r"an entity from 3 to 3"),
        ([[-1, 3, "X"]], r"an entity from -1 to 3"),
        ([[3, 4, "X"]], r"an entity from 3 to 4, where only spaces are"),
        ([[0, 3, "X"], [2, 9, "Y"]], r"'The' \(X\) and 'e river' \(Y\) overlap"),
        ([[0, 3]], r"row 1: column 'entities' is no list of start, end and label"),
        ([{"start": 0, "end": 3}], r"is no list of start, end and label"),
        ([["0", 3, "X"]], r"\['0', 3, 'X'\] are no start, end and label"),
        ({"X": {"the": [[0, 2]]}}, r"'the' is not what stands at 0, which is 'The'"),
        ({"X": "The"}, r"is no list of start, end and label"),
        ("0 3 X", r"is not valid JSON"),
        (7, r"is no list of start, end and label"),
    ],
)  # fmt: skip
def test_entities_that_cannot_be_are_named(entities: Any, reason: str) -> None:
    task = get_task("tag", {"text": "text"}, get_family("bert"))
    with pytest.raises(EtymonError, match=reason) as refused:
        task.texts(read_table([{"text": "The river", "entities": entities}]))
    assert "\n" not in str(refused.value)


def test_options_that_do_not_fit_are_refused() -> None:
    bert = get_family("bert")
    with pytest.raises(EtymonError, match="tags are read off a head"):
        get_task("tag", {"way": "text"}, get_family("t5"))
    with pytest.raises(EtymonError, match="tokens and tags, or those of text and entities, not both"):
        get_task("tag", {"tokens": "words", "entities": "spans"}, bert)
    with pytest.raises(EtymonError, match="scheme"):
        get_task("tag", {"scheme": "IOB7"}, bert)
    with pytest.raises(EtymonError, match=r"column 'tags' says 'N' of every word: there is nothing to learn"):
        get_task("tag", {}, bert).labels(read_table([{"tokens": "a b", "tags": "N N"}]))
    assert get_task("tag", {}, get_family("t5")).fit(get_family("t5")).way == "native"


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks-spans.md").read_text(encoding="utf-8")
    section = page.split("\n## tag\n")[1].split("\n#")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", section, re.M))
    assert told == {one.name for one in fields(TagOptions)} - {one.name for one in fields(HeadOptions)}


def test_a_model_remembers_what_it_tags() -> None:
    task, model = bound("bert", ENTITIES, text="text", scheme="BILOU")
    model.history = [{"task": task.describe()}]
    again = task_of(model)
    assert isinstance(again, Tag)
    assert again.options == task.options and again.label_names == task.label_names and again.has_entities
    assert again.predict(model, ENTITIES) == task.predict(model, ENTITIES)
    plain, _ = bound("bert")
    assert plain.default_metrics == ("accuracy",)
    spans = read_table([{"tokens": "a b", "tags": "B-X O"}])
    assert bound("bert", spans)[0].default_metrics == ("f1",)


def test_the_shared_sets(shared: Path) -> None:
    for name in ("ud-ewt/en_ewt-ud-dev.conllu", "cluener/dev.json", "cluener/train.json"):
        if not (shared / "data" / name).is_file():
            pytest.skip(f"no {name} there")
    sentences = read_table(shared / "data" / "ud-ewt" / "en_ewt-ud-dev.conllu").at(range(200))
    task, _ = bound("bert", sentences, length=512, tags="upos")
    examples = task.encode(sentences)
    assert int(examples.words.sum()) == sum(len(row["tokens"]) for row in sentences.rows)
    chinese = read_table(shared / "data" / "cluener" / "dev.json").at(range(200))
    task, _ = bound("gpt2", chinese, length=512, entities="label")
    assert len(task.label_names) == 21
    words, right = task.row_words(chinese), task.row_tags(chinese, task.row_words(chinese))
    found = [{(one.text, one.label) for one in entities_of(tags, each.spans, each.text, [1.0] * len(tags))}
             for tags, each in zip(right, words)]  # fmt: skip
    given = [
        {(name, label) for label, names in row["label"].items() for name in names} for row in chinese.rows
    ]
    assert sum(one != two for one, two in zip(found, given)) <= 2, "but for entities inside words"
    nested = read_table(shared / "data" / "cluener" / "train.json").at([1506])
    with pytest.raises(EtymonError, match=r"train\.json, line 33055: column 'label': .* overlap"):
        task.texts(nested)
