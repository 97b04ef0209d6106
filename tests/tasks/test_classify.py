"""Classification, regression and choice beside Transformers: losses, gradients and answers, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.saving import save
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny
from tests.oracle.runner import gradients
from tests.tasks.heads import (
    CHOICES,
    NUMBERS,
    PAIRS,
    SEVERAL,
    TABLE,
    begun,
    loss_of,
    padded,
    scores_of,
    slices,
)

transformers = pytest.importorskip("transformers")
FAMILIES = [
    "bert", "roberta", "albert", "distilbert", "electra", "gpt1", "gpt2", "gpt3", "gptj", "xlnet", "bart", "t5",
]  # fmt: skip
SEGMENTED = {"bert", "albert", "electra", "xlnet"}


def compared(family: str, folder: Path, table: Table, name: str = "classify", **options: Any) -> Any:
    """Asserts that loss, gradients and scores are those of Transformers; gives its configuration."""
    task, model = begun(family, name, table, way="head", language_model=0.0, **options)
    prepared = slices(task, table)
    loss = loss_of(task, model, prepared)
    save(model, folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    if theirs.config.pad_token_id is None:  # decoders find the end of a row by it
        theirs.config.pad_token_id = 1
    batch = padded(task, table, theirs.config.pad_token_id, left=family == "xlnet")
    assert len({int(length) for length in batch["attention_mask"].sum(1)}) == len(table)
    if family not in SEGMENTED:
        del batch["token_type_ids"]
    targets = torch.from_numpy(task.targets(table))
    outputs = theirs(**batch, labels=targets if targets.is_floating_point() else targets[:, 0])
    torch.testing.assert_close(loss, outputs.loss.detach(), atol=1e-5, rtol=1e-5)
    outputs.loss.backward()
    ours = gradients(model)
    found = {key: one.grad for key, one in theirs.named_parameters() if one.grad is not None}
    assert len(found) > 10
    for key, gradient in found.items():
        torch.testing.assert_close(ours[key], gradient, atol=2e-5, rtol=1e-3, msg=key)
    torch.testing.assert_close(scores_of(task, model, table), outputs.logits.detach(), atol=1e-5, rtol=1e-4)
    return theirs.config


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_gradients_and_scores_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    config = compared(family, tmp_path / "model", TABLE)
    assert config.id2label == {0: "bad", 1: "good", 2: "so-so"}
    assert config.problem_type == "single_label_classification"


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet", "gpt1", "t5"])
def test_the_same_of_pairs(family: str, tmp_path: Path) -> None:
    compared(family, tmp_path / "model", PAIRS, second="second")


def test_the_same_of_several_labels_and_of_numbers(tmp_path: Path) -> None:
    several = compared("bert", tmp_path / "several", SEVERAL, multi_label=True)
    assert (several.problem_type, several.id2label) == ("multi_label_classification", {0: "long", 1: "old"})
    number = compared("bert", tmp_path / "number", NUMBERS, "regress")
    assert (number.problem_type, number.id2label) == ("regression", {0: "label"})
    told = json.loads((tmp_path / "number" / "config.json").read_text())
    assert told["architectures"] == ["BertForSequenceClassification"]


# ------------------------------------------------------------ folders that Transformers wrote

SMALL: dict[str, dict[str, Any]] = {
    "bert": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
        "max_position_embeddings": 64, "pad_token_id": 0,
    },
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "pad_token_id": 1},
    "t5": {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0,
        "pad_token_id": 0, "eos_token_id": 1,
    },
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
}  # fmt: skip


def published(folder: Path, cls: str, family: str, **config: Any) -> Any:
    """A model of that class with a tokenizer beside it, as others publish it."""
    known, tokenizer = getattr(transformers, cls), tiny.tokenizer(family)
    torch.manual_seed(1)
    model = known(known.config_class(vocab_size=tokenizer.size, **SMALL[family], **config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def asked(model: Any, folder: Path, *texts: list[str]) -> torch.Tensor:
    """What Transformers says of texts, or of pairs, with the tokenizer that it opens itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
    with torch.no_grad():
        return model(**tokenizer(*texts, padding=True, return_tensors="pt")).logits


TEXTS = [str(row["text"]) for row in TABLE.rows]


@pytest.mark.parametrize(
    ("cls", "family"),
    [("BertForSequenceClassification", "bert"), ("DistilBertForSequenceClassification", "distilbert"),
     ("GPT2ForSequenceClassification", "gpt2"), ("T5ForSequenceClassification", "t5")],
)  # fmt: skip
def test_a_published_classifier_answers_as_transformers_does(cls: str, family: str, tmp_path: Path) -> None:
    model = published(tmp_path / "model", cls, family, id2label={0: "bad", 1: "good", 2: "so-so"})
    expected = asked(model, tmp_path / "model", TEXTS).softmax(-1)
    answers = etymon.predict(tmp_path / "model", TEXTS)
    names = ["bad", "good", "so-so"]
    assert [one.prediction for one in answers] == [names[n] for n in expected.argmax(-1)]
    found = torch.tensor([[one.answer["probabilities"][name] for name in names] for one in answers])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_a_cell_is_a_list_of_labels_or_a_text() -> None:
    cells = ['["a", "b|c"]', '{"a": 1}', "a|b", "[1]", "[draft"]
    table = read_table([{"text": "A letter.", "label": cell} for cell in cells])
    task: Any = get_task("classify", {"multi_label": True}, get_family("bert"))
    assert task.row_labels(table) == [("a", "b|c"), ('{"a": 1}',), ("a", "b"), ("1",), ("[draft",)]


def test_labels_without_names_are_numbers(tmp_path: Path) -> None:
    model = published(tmp_path / "model", "BertForSequenceClassification", "bert", num_labels=3)
    best = asked(model, tmp_path / "model", TEXTS).argmax(-1).tolist()
    rows = [{"text": text, "label": number} for text, number in zip(TEXTS, best)]
    found = etymon.evaluate(tmp_path / "model", data=rows, metric=["accuracy", "loss"])
    assert found.scores["accuracy"].value == 100
    assert [each["prediction"] for each in found.predictions] == [f"LABEL_{number}" for number in best]
    rows[1]["label"] = (best[1] + 1) % 3
    assert etymon.evaluate(tmp_path / "model", data=rows).scores["accuracy"].value == pytest.approx(200 / 3)
    rows[1]["label"] = 3
    with pytest.raises(EtymonError, match="row 2: label '3' is none of those that were learnt"):
        etymon.evaluate(tmp_path / "model", data=rows)


def test_a_teacher_without_names_is_followed_by_numbers() -> None:
    table = read_table([{**row, "label": n} for n, row in enumerate(TABLE.rows)])
    task, _ = begun("bert", table=table)
    other, teacher = begun("bert", table=table, seed=1)
    before = task.encode(table)
    assert "taught" not in before.columns
    other.label_names = ("LABEL_2", "LABEL_0", "LABEL_1")
    task.follow_teacher(teacher, other, "a teacher")
    logits = other.run_batches(
        teacher, other.encode_texts(table), lambda batch: list(other.task_logits(teacher, batch).clone())
    )
    torch.testing.assert_close(torch.from_numpy(task.teacher(table)), torch.stack(logits)[:, [1, 2, 0]])


def test_a_published_regressor_and_one_of_several_labels(tmp_path: Path) -> None:
    cls = "BertForSequenceClassification"
    model = published(tmp_path / "number", cls, "bert", num_labels=1)
    expected = asked(model, tmp_path / "number", TEXTS)[:, 0]
    answers = etymon.predict(tmp_path / "number", TEXTS)
    assert all(list(one.answer) == ["prediction"] for one in answers)
    torch.testing.assert_close(
        torch.tensor([one.prediction for one in answers]), expected, atol=1e-5, rtol=1e-4
    )
    several = {"num_labels": 3, "problem_type": "multi_label_classification"}
    model = published(tmp_path / "several", cls, "bert", **several)
    expected = asked(model, tmp_path / "several", TEXTS).sigmoid()
    answers = etymon.predict(tmp_path / "several", TEXTS)
    for one, row in zip(answers, expected, strict=True):
        assert one.prediction == [f"LABEL_{n}" for n in range(3) if row[n] > 0.5]
        assert list(one.answer["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-5)
    with pytest.raises(
        EtymonError, match="tells 3 labels apart and says no number: use it with --task classify"
    ):
        etymon.evaluate(tmp_path / "several", task="regress", data=NUMBERS.rows)


@pytest.mark.parametrize(
    ("cls", "family"), [("BertForMultipleChoice", "bert"), ("XLNetForMultipleChoice", "xlnet")]
)
def test_a_published_model_chooses_as_transformers_does(cls: str, family: str, tmp_path: Path) -> None:
    model = published(tmp_path / "model", cls, family)
    rows = [{name: row[name] for name in ("text", "choices")} for row in CHOICES.rows]
    answers = etymon.predict(tmp_path / "model", data=rows)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    for row, one in zip(rows, answers, strict=True):
        read = tokenizer(
            [row["text"]] * len(row["choices"]), row["choices"], padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            shares = model(**{name: tensor[None] for name, tensor in read.items()}).logits[0].softmax(-1)
        assert one.prediction == int(shares.argmax())
        assert one.answer["probabilities"] == pytest.approx(shares.tolist(), abs=1e-5)


def test_a_text_without_tokens_is_named() -> None:
    family = get_family("gpt2")  # whose framing adds none
    words = train_tokenizer(
        "wordpiece", tiny.texts(), 300, lowercase=True, strip_accents=True,
        specials={"unknown": "[UNK]", "end": "[E]"}, sentinels=0, framing=family.framing,
    )  # fmt: skip
    task, model = begun("gpt2")
    model.tokenizer = words
    task.bind(model)
    table = read_table([TABLE.rows[0], {"text": "\u200b", "label": "good"}])
    for refuse in (task.encode, lambda table: task.predict(model, table)):
        with pytest.raises(EtymonError, match=r"^row 2: its text has no tokens; leave the row out"):
            refuse(table)


def test_a_prefix_is_for_answers_that_are_written() -> None:
    with pytest.raises(EtymonError, match="prefix is for answers that are written, and a head of BERT gives"):
        begun("bert", prefix="sst2 ")


def test_true_among_numbers_is_another_kind_of_label() -> None:
    rows = [{"text": "A letter.", "label": label} for label in (0, 1, True)]
    with pytest.raises(
        EtymonError, match="row 3: column 'label' holds a truth value, and row 1 a number: make"
    ):
        begun("bert", table=read_table(rows))


def test_a_length_without_room_for_a_text_is_refused() -> None:
    task, model = begun("bert")
    with pytest.raises(EtymonError, match="2 tokens have no room for a text: raise --length"):
        task.bind(model, 2)


def test_a_column_is_not_read_and_asked_for() -> None:
    for task in ("classify", "regress"):
        with pytest.raises(EtymonError, match="give another --label"):
            get_task(task, {"text": "review", "label": "review"}, get_family("bert"))
