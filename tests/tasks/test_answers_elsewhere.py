"""A fine-tuned folder answers in Transformers as it does here: AutoTokenizer frames, cuts and pads what its class then reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from etymon.families import REGISTRY, get_family
from etymon.families.family import TASK_HEADS
from etymon.families.loading import load
from etymon.families.saving import save
from etymon.tables.table import Table, read_table
from etymon.tasks import HEADS, task_for
from tests import tiny
from tests.tasks.heads import begun, scores_of

transformers = pytest.importorskip("transformers")

ROWS = 60
HEAD_OF = {"classify": "classification", "pairs": "classification", "regress": "classification",
           "choose": "choice", "tag": "tagging", "answer": "span"}  # fmt: skip
TASK_OF = {"pairs": "classify"}
"""Those with another name here."""
OPTIONS: dict[str, dict[str, Any]] = {"pairs": {"second": "second"}}
LOADED = [known for known in REGISTRY if hasattr(transformers, get_family(known).architectures[0].name)]
CELLS = [
    (family, cell)
    for family in LOADED
    for cell, head in HEAD_OF.items()
    if any(head in known.heads for known in get_family(family).architectures)
]


def test_every_class_of_transformers_for_a_task_is_tried_here() -> None:
    assert set(HEADS) == TASK_HEADS
    assert len(LOADED) == 12 and len(CELLS) == 64


def rows_for(cell: str) -> list[dict[str, Any]]:
    """Rows of all lengths, half of them too long for a model that reads 48 tokens; those that are read in windows are short."""
    draw, texts = random.Random(cell), tiny.texts(3 * ROWS, seed=3)

    def words(most: int) -> str:
        return " ".join(" ".join(draw.sample(texts, 2)).split()[: draw.randint(1, most)])

    if cell == "classify":
        return [{"text": words(60), "label": "abc"[n % 3]} for n in range(ROWS)]
    if cell == "pairs":
        return [{"text": words(40), "second": words(40), "label": "abc"[n % 3]} for n in range(ROWS)]
    if cell == "regress":
        return [{"text": words(60), "label": n / 7} for n in range(ROWS)]
    if cell == "choose":
        return [
            {"text": words(60), "choices": [words(3) for _ in range(3)], "label": n % 3} for n in range(ROWS)
        ]
    if cell == "tag":
        read = [words(6).split() for _ in range(ROWS)]
        return [{"tokens": each, "tags": ["A" if len(word) < 5 else "B" for word in each]} for each in read]
    contexts = [f"The {draw.choice(tiny.NOUNS)} {words(6)}" for _ in range(ROWS)]
    return [
        {"id": str(n), "question": words(2), "context": context, "answers": context.split()[1]}
        for n, context in enumerate(contexts)
    ]


def saved(folder: Path, family: str, cell: str, rows: list[dict[str, Any]], **options: Any) -> Any:
    """A folder with a head for the task, as a run would leave it; the task and the model that it opens here."""
    known = TASK_OF.get(cell, cell)
    table = read_table(rows)
    own = {"head": "span"} if (family, cell) == ("xlnet", "answer") else {}
    way = {"way": "head"} if family == "t5" and cell != "tag" else {}
    task, model = begun(family, known, table, **{**OPTIONS.get(cell, {}), **own, **way, **options})
    model.history = [{"task": task.describe()}]
    save(model.eval(), folder)
    again = load(folder)
    return task_for(again, None, {}), again, table


def opened(folder: Path) -> tuple[Any, Any]:
    config = transformers.AutoConfig.from_pretrained(folder)
    known = getattr(transformers, config.architectures[0])
    automatic = [
        getattr(transformers, f"AutoModelFor{kind}")
        for kind in ("SequenceClassification", "MultipleChoice", "TokenClassification", "QuestionAnswering")
        if known.__name__.endswith(f"For{kind}")
    ]
    model = (automatic or [known])[0].from_pretrained(folder).eval()
    assert type(model) is known
    return transformers.AutoTokenizer.from_pretrained(folder), model


def answers(model: Any, read: Any) -> Any:
    with torch.no_grad():
        return model(**{name: torch.as_tensor(value) for name, value in read.items()})


@pytest.mark.parametrize(("family", "cell"), CELLS)
def test_a_fine_tuned_folder_answers_in_transformers_as_here(family: str, cell: str, tmp_path: Path) -> None:
    rows = rows_for(cell)
    task, model, table = saved(tmp_path, family, cell, rows)
    tokenizer, theirs = opened(tmp_path)
    compare = {"choose": compare_choices, "tag": compare_tags, "answer": compare_spans}.get(cell)
    if compare is not None:
        compare(task, model, table, tokenizer, theirs)
        return
    texts = [[row[column] for row in rows] for column in task.input_columns]
    found = answers(theirs, tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")).logits
    torch.testing.assert_close(found, scores_of(task, model, table), atol=2e-5, rtol=1e-4)
    assert float(found.std(0).min()) > 1e-3, "rows are told apart"
    if cell != "regress":
        labels = [theirs.config.id2label[number] for number in found.argmax(-1).tolist()]
        assert labels == [one.label for one in task.predict(model, table)]


def compare_choices(task: Any, model: Any, table: Table, tokenizer: Any, theirs: Any) -> None:
    first = [row["text"] for row in table.rows for _ in row["choices"]]
    second = [choice for row in table.rows for choice in row["choices"]]
    read = tokenizer(first, second, padding=True, truncation=True, return_tensors="pt")
    shaped = {name: value.unflatten(0, (ROWS, 3)) for name, value in read.items()}
    if "DoubleHeads" in type(theirs).__name__:
        # Nothing looks ahead, so rows that are padded behind need no mask; of this shape GPT-1's class takes none.
        shaped["mc_token_ids"] = shaped.pop("attention_mask").sum(-1) - 1
    found = answers(theirs, shaped)
    logits = found.mc_logits if "mc_token_ids" in shaped else found.logits
    torch.testing.assert_close(logits, scores_of(task, model, table), atol=2e-5, rtol=1e-4)
    assert logits.argmax(-1).tolist() == [one.number for one in task.predict(model, table)]


def compare_tags(task: Any, model: Any, table: Table, tokenizer: Any, theirs: Any) -> None:
    texts = [" ".join(row["tokens"]) for row in table.rows]
    read = tokenizer(texts, padding=True, truncation=True, return_tensors="pt", return_offsets_mapping=True)
    offsets = read.pop("offset_mapping").tolist()
    logits = answers(theirs, read).logits
    for number, (one, text) in enumerate(zip(task.predict(model, table), texts, strict=True)):
        at = 0
        for word, tag, sure in zip(one.tokens, one.tags, one.confidences, strict=True):
            start = text.index(word, at)
            at = start + len(word)
            places = [n for n, (low, high) in enumerate(offsets[number]) if low < at and high > start]
            shares = logits[number, places[-1 if task.at_last else 0]].softmax(-1)
            assert theirs.config.id2label[int(shares.argmax())] == tag
            assert float(shares.max()) == pytest.approx(sure, abs=2e-5)


def compare_spans(task: Any, model: Any, table: Table, tokenizer: Any, theirs: Any) -> None:
    columns = [[row[name] for row in table.rows] for name in ("question", "context")]
    context = (
        0 if tokenizer.padding_side == "left" else 1
    )  # the texts of a pair that is padded on the left change places
    read = tokenizer(
        *(columns if context else reversed(columns)),
        padding=True, truncation=True, return_tensors="pt", return_offsets_mapping=True,
    )  # fmt: skip
    offsets = read.pop("offset_mapping").tolist()
    found = answers(theirs, read)
    for number, one in enumerate(task.predict(model, table)):
        inside = [n for n, text in enumerate(read.sequence_ids(number)) if text == context]
        starts, ends = found.start_logits[number], found.end_logits[number]
        spans = [
            (float(starts[low] + ends[high]), offsets[number][low][0], offsets[number][high][1])
            for low in inside
            for high in range(low, min(low + task.options.longest, inside[-1] + 1))
        ]
        texts = [(score, columns[1][number][low:high].strip()) for score, low, high in spans]
        score, text = max(each for each in texts if each[1])  # a space by itself is no answer
        assert text == one.text
        assert score == pytest.approx(one.score, abs=5e-5)


def test_gpt1_adds_up_both_orders_of_a_pair(tmp_path: Path) -> None:
    rows = [{**row, "label": n / 7} for n, row in enumerate(rows_for("pairs"))]
    task, model, table = saved(tmp_path, "gpt1", "regress", rows, second="second", symmetric=True)
    tokenizer, theirs = opened(tmp_path)
    texts = [[row[column] for row in rows] for column in ("text", "second")]
    both = [
        tokenizer(*each, padding=True, truncation=True, return_tensors="pt") for each in (texts, texts[::-1])
    ]
    found = answers(theirs, both[0]).logits + answers(theirs, both[1]).logits
    torch.testing.assert_close(found, scores_of(task, model, table), atol=2e-5, rtol=1e-4)


def test_xlnets_search_reads_a_context_and_a_question_alike(tmp_path: Path) -> None:
    rows = rows_for("answer")
    task, _, table = saved(tmp_path, "xlnet", "answer", rows, head="conditional")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    examples = task.encode_texts(table)
    for number, row in enumerate(rows):
        read, ours = tokenizer(row["context"], row["question"]), examples.example(number)
        assert read["input_ids"] == ours["ids"].tolist()
        assert read["token_type_ids"] == ours["segments"].tolist()


@pytest.mark.parametrize("family", ["gpt1", "gpt2"])
def test_a_folder_that_becomes_a_language_model_again_reads_prompts_as_they_are(
    family: str, tmp_path: Path
) -> None:
    _, model, _ = saved(tmp_path / "task", family, "pairs", rows_for("pairs"))
    text = "The river crossed"
    framed = transformers.AutoTokenizer.from_pretrained(tmp_path / "task")
    pair = [model.tokenizer.encode(each) for each in (text, "winter")]
    assert framed(text, "winter")["input_ids"] == model.tokenizer.task_framing.frame(*pair).ids.tolist()
    spoken = load(tmp_path / "task", heads=["vocabulary"], partial=True)
    spoken.history.append({"objective": "causal"})
    save(spoken, tmp_path / "spoken")
    plain = transformers.AutoTokenizer.from_pretrained(tmp_path / "spoken")
    assert plain(text)["input_ids"] == model.tokenizer.encode(text).tolist()
    assert plain.model_max_length == model.positions == 64
