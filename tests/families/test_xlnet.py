"""XLNet against a live Transformers model, stream by stream, and what must hold exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etymon
from etymon.families.model import Model
from etymon.nn.batch import Batch, QueryPositions
from tests.oracle.forward import Reading, run
from tests.oracle.inputs import Arguments
from tests.oracle.runner import gradients

transformers = pytest.importorskip("transformers")
VOCABULARY, ROWS, LENGTH, LABELS = 61, 4, 9, 3
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 44, "pad_token_id": 5, "mem_len": 6,
}  # fmt: skip
HEADS = {
    "XLNetLMHeadModel": "vocabulary",
    "XLNetForSequenceClassification": "classification",
    "XLNetForMultipleChoice": "choice",
    "XLNetForTokenClassification": "tagging",
    "XLNetForQuestionAnsweringSimple": "span",
    "XLNetForQuestionAnswering": "conditional_span",
    "XLNetModel": None,
}


def written(folder: Path, name: str = "XLNetLMHeadModel", **config: Any) -> tuple[Any, Model]:
    """A random model as Transformers saves it, and as it is opened here."""
    cls = getattr(transformers, name)
    labels = {"num_labels": LABELS} if HEADS[name] in ("classification", "tagging") else {}
    built = cls(transformers.XLNetConfig(**{**CONFIG, **labels, **config}))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, parameter in built.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
            if "norm" in key.lower():
                parameter += 1.0 if key.endswith("weight") else 0.2
    built.save_pretrained(folder)
    return built.eval(), etymon.load(folder)


def text(seed: int = 0, choices: int = 1, padded: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS, LENGTH) if choices == 1 else (ROWS, choices, LENGTH)
    ids = torch.randint(9, VOCABULARY, shape, generator=generator)
    made = {"input_ids": ids, "token_type_ids": torch.randint(0, 3, shape, generator=generator)}
    if padded:  # on the left, as published
        lengths = torch.tensor([9, 5, 7, 9]).view(-1, *[1] * (len(shape) - 1))
        made["attention_mask"] = (torch.arange(LENGTH) >= LENGTH - lengths).expand(shape).float()
    return made


def order_and_targets(seed: int, count: int = 4) -> tuple[Tensor, Tensor]:
    """An order in which `count` tokens of every row come one after the other, and their places."""
    generator = torch.Generator().manual_seed(seed)
    order, places = torch.zeros(ROWS, LENGTH, dtype=torch.long), []
    for row in order:
        at = torch.randperm(LENGTH, generator=generator)[:count].sort().values
        row[at] = 1 + torch.randperm(count, generator=generator)
        places.append(at)
    return order, torch.stack(places)


def permuted(seed: int = 0, count: int = 4) -> dict[str, Tensor]:
    """The same as the reference is told it."""
    order, places = order_and_targets(seed, count)
    mask = (order[:, None] >= order[:, :, None]) & (order[:, None] > 0)
    mapping = torch.zeros(ROWS, count, LENGTH).scatter_(2, places[:, :, None], 1.0)
    return {"perm_mask": mask.float(), "target_mapping": mapping}


def flattened(outputs: Any, name: str = "") -> dict[str, Tensor]:
    if isinstance(outputs, Tensor):
        return {name: outputs}
    pairs = outputs.items() if hasattr(outputs, "items") else enumerate(outputs)
    return {
        key: one
        for part, value in pairs
        for key, one in flattened(value, f"{name}.{part}".strip(".")).items()
    }


def compare(theirs: Any, ours: Model, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Everything that both give, and all gradients; what the reference gave."""
    taken = Arguments(arguments)
    reading: Reading = run(ours, taken)
    assert not taken.untouched
    expected = flattened(theirs(**arguments, output_hidden_states=True, output_attentions=True))
    assert set(expected) <= set(reading.outputs)
    for name, value in expected.items():
        close(reading.outputs[name].reshape(value.shape), value, name)
    for name, ragged, rectangle in reading.pairs:
        close(ragged, rectangle, f"ragged {name}")
    scores = [part for name, part in expected.items() if name == "loss"] or [
        expected["last_hidden_state"].pow(3).mean()
    ]
    own = [part for name, part in reading.outputs.items() if name == "loss"] or [
        reading.outputs["last_hidden_state"].pow(3).mean()
    ]
    scores[0].backward()
    own[0].backward()
    found = gradients(ours)
    for name, parameter in theirs.named_parameters():
        got = found.pop(name)
        close(got, torch.zeros_like(got) if parameter.grad is None else parameter.grad, f"gradient of {name}")
    assert not found
    return expected


def close(got: Tensor, expected: Tensor, name: str) -> None:
    torch.testing.assert_close(got, expected, atol=3e-5, rtol=1e-4, msg=lambda why: f"{name}: {why}")


LABELLED = {
    "XLNetLMHeadModel": lambda ids: {"labels": ids.masked_fill(ids % 3 == 0, -100)},
    "XLNetForSequenceClassification": lambda ids: {"labels": torch.tensor([2, 0, 1, 1])},
    "XLNetForMultipleChoice": lambda ids: {"labels": torch.tensor([1, 0, 1, 0])},
    "XLNetForTokenClassification": lambda ids: {"labels": ids % LABELS},
    "XLNetForQuestionAnsweringSimple": lambda ids: {
        "start_positions": torch.tensor([4, 5, 6, 1]), "end_positions": torch.tensor([8, 5, 99, 3])
    },
    "XLNetForQuestionAnswering": lambda ids: {
        "start_positions": torch.tensor([4, 5, 6, 1]), "end_positions": torch.tensor([8, 5, 7, 3]),
        "cls_index": torch.tensor([8, 8, 8, 7]), "is_impossible": torch.tensor([0.0, 1.0, 0.0, 0.0]),
        "p_mask": (torch.arange(LENGTH) == 2).float().expand(ROWS, LENGTH),
    },
    "XLNetModel": lambda ids: {},
}  # fmt: skip


SUMMARIES = [
    {"summary_type": "mean", "summary_activation": "relu"},
    {"summary_type": "first", "summary_use_proj": False},
    {"summary_type": "cls_index", "summary_activation": "linear", "summary_first_dropout": 0.2},
]


@pytest.mark.parametrize("changed", SUMMARIES, ids=lambda changed: changed["summary_type"])
@pytest.mark.parametrize("name", ["XLNetForSequenceClassification", "XLNetForMultipleChoice"])
def test_summaries_of_other_kinds_are_the_references(
    name: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    theirs, ours = written(tmp_path / "theirs", name, **changed)
    arguments = text(choices=2 if HEADS[name] == "choice" else 1)
    compare(theirs, ours, {**arguments, **LABELLED[name](arguments["input_ids"])})
    etymon.save(ours, tmp_path / "ours")
    opened, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert all(getattr(opened.config, key) == value for key, value in changed.items())


@pytest.mark.parametrize("name", HEADS)
def test_every_class(name: str, tmp_path: Path) -> None:
    theirs, ours = written(tmp_path / "their", name)
    assert ours.head_names == frozenset({HEADS[name]} - {None})
    given = text(choices=2 if name == "XLNetForMultipleChoice" else 1)
    compare(theirs, ours, {**given, **LABELLED[name](given["input_ids"])})
    etymon.save(ours, tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    for key, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    assert etymon.load(tmp_path / "ours").shape == ours.shape


def test_the_best_spans(tmp_path: Path) -> None:
    theirs, ours = written(tmp_path, "XLNetForQuestionAnswering", start_n_top=3, end_n_top=2)
    given = {**text(), "p_mask": (torch.arange(LENGTH) < 3).float().expand(ROWS, LENGTH)}
    with torch.no_grad():
        outputs, reading = flattened(theirs(**given)), run(ours, Arguments(given))
    assert outputs["end_top_index"].shape == (ROWS, 6)
    for name in (
        "start_top_index",
        "end_top_index",
        "start_top_log_probs",
        "end_top_log_probs",
        "cls_logits",
    ):
        close(reading.outputs[name], outputs[name], name)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clamped": {"clamp_len": 3},
    "reused": {"reuse_len": 4, "mem_len": 5},
    "both ways": {"bi_data": True},
    "untied": {"tie_word_embeddings": False, "ff_activation": "gelu_new"},
    "unlimited": {"mem_len": None},
    "no length": {"mem_len": 0},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_streams_segment_by_segment(variant: str, tmp_path: Path) -> None:
    """Orders, targets, segments of text and memories, as the reference has them."""
    theirs, ours = written(tmp_path, **VARIANTS[variant])
    mems: dict[str, Any] = {}
    for number in range(3):
        given = {**text(number, padded=False), **permuted(number), **mems}
        targets = given["target_mapping"].argmax(-1)
        labels = given["input_ids"].gather(1, targets).masked_fill(targets == 3, -100)
        theirs.zero_grad()
        ours.zero_grad()
        outputs = compare(theirs, ours, {**given, "labels": labels})
        mems = {"mems": [part.detach() for name, part in outputs.items() if name.startswith("mems.")]}


@pytest.mark.parametrize("same_length", [False, True])
def test_causal_attention_with_memory(same_length: bool, tmp_path: Path) -> None:
    theirs, ours = written(tmp_path, attn_type="uni", same_length=same_length)
    mems: dict[str, Any] = {}
    for number in range(2):
        ids = text(number, padded=False)["input_ids"]
        theirs.zero_grad()
        ours.zero_grad()
        outputs = compare(theirs, ours, {"input_ids": ids, "labels": ids, **mems})
        mems = {"mems": [part.detach() for name, part in outputs.items() if name.startswith("mems.")]}


def test_biases_that_layers_share(tmp_path: Path) -> None:
    """Transformers stores one of each for every layer: they are written alike and read from the first."""
    shape = {"vocabulary": 40, "dim": 16, "layers": 3, "heads": 2, "inner_dim": 24, "own_biases": False}
    model = etymon.build("xlnet", shape=shape).eval()
    etymon.save(model, tmp_path)
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    again = etymon.load(tmp_path)
    assert not again.shape.own_biases
    ids = torch.arange(9, 30).view(1, -1)
    with torch.no_grad():
        hidden, _ = again.hidden(Batch.of([ids[0].tolist()]))
        close(again.heads["vocabulary"].logits(hidden), theirs(ids).logits[0], "logits")


def test_generation_with_a_short_memory(tmp_path: Path) -> None:
    theirs, ours = written(tmp_path, mem_len=5)
    ids = text(5, padded=False)["input_ids"]
    from etymon.generation import DecodingSettings, decode

    expected = theirs.generate(ids, do_sample=False, max_new_tokens=20, eos_token_id=7)
    found = decode(ours, ids.tolist(), DecodingSettings(max_new_tokens=20, end_ids=(7,)))
    _, far = written(tmp_path / "far", mem_len=None)
    assert found != decode(far, ids.tolist(), DecodingSettings(max_new_tokens=20, end_ids=(7,)))
    for row, (one,) in zip(expected[:, LENGTH:].tolist(), found, strict=True):
        assert one.ids == row[: len(one.ids)] and len(one.ids) > 5


# --- identities


@pytest.fixture(scope="module")
def model() -> Model:
    shape = {"vocabulary": VOCABULARY, "dim": 32, "layers": 3, "heads": 4, "inner_dim": 48, "deviation": 0.3}
    return etymon.build("xlnet", shape=shape, seed=5).eval()


def batch_of(ids: Tensor, order: Tensor) -> Batch:
    return replace(Batch.of_rectangle(ids), order=order.reshape(-1))


def asked_at(places: Tensor) -> QueryPositions:
    at = places + torch.arange(len(places))[:, None] * LENGTH
    return QueryPositions(at.reshape(-1), [places.shape[1]] * len(places))


@pytest.mark.parametrize("full", [False, True], ids=["part", "all of it"])
def test_nothing_leaks(model: Model, full: bool) -> None:
    """What is said of a place depends on no token that comes later in the order, its own included; not even where nothing at
    all can be seen (full prediction, first in order)."""
    count = LENGTH if full else 4
    order, places = order_and_targets(1, count)
    ids = text(padded=False)["input_ids"]
    asked = asked_at(places)
    with torch.no_grad():
        before, _ = model.two_stream(batch_of(ids, order), asked)
        for row in range(ROWS):
            for place in range(LENGTH):
                changed = ids.clone()
                changed[row, place] = 9 + (ids[row, place] - 8) % (VOCABULARY - 9)
                after, _ = model.two_stream(batch_of(changed, order), asked)
                same = (before == after).all(-1).view(ROWS, count)
                later = order[row, place] >= order[row, places[row]]
                assert same[row][later].all()
                assert same[[other for other in range(ROWS) if other != row]].all()
                assert not same[row][~later].any()  # and whoever may see it does


def test_a_place_that_sees_nothing_gives_finite_gradients(model: Model) -> None:
    order, places = order_and_targets(1, LENGTH)
    hidden, _ = model.two_stream(batch_of(text()["input_ids"], order), asked_at(places))
    hidden.pow(2).sum().backward()
    assert torch.isfinite(hidden).all()
    assert all(part.grad is None or torch.isfinite(part.grad).all() for part in model.parameters())


def test_full_visibility_is_the_plain_model(model: Model) -> None:
    ids = text(padded=False)["input_ids"]
    with torch.no_grad():
        plain, _ = model.hidden(Batch.of_rectangle(ids))
        permuted, _ = model.hidden(batch_of(ids, torch.zeros(ROWS, LENGTH, dtype=torch.long)))
    torch.testing.assert_close(permuted, plain, atol=1e-6, rtol=0)


def test_one_way_is_the_other_turned_round(model: Model) -> None:
    """Rows that were turned round, beside rows that were not: as many of them or fewer."""
    order, places = order_and_targets(2)
    ids = text(padded=False)["input_ids"]
    with torch.no_grad():
        expected, _ = model.two_stream(batch_of(ids, order), asked_at(places))
        for back in (1, 2, ROWS):
            turned, turned_order, turned_places = ids.clone(), order.clone(), places.clone()
            turned[-back:], turned_order[-back:] = ids[-back:].flip(1), order[-back:].flip(1)
            turned_places[-back:] = (LENGTH - 1 - places[-back:]).flip(1)
            batch = replace(batch_of(turned, turned_order), backward=back)
            got, _ = model.two_stream(batch, asked_at(turned_places))
            got = got.view(ROWS, -1, got.shape[-1]).clone()
            got[-back:] = got[-back:].flip(1)
            close(got.flatten(0, 1), expected, f"{back} rows")


def test_ragged_rows_with_memories_are_what_they_are_alone(model: Model) -> None:
    """Texts, numbers of targets and memories of different lengths, none included."""
    generator = torch.Generator().manual_seed(9)
    lengths, known, counts = (9, 4, 7), (3, 0, 5), (3, 1, 0)
    rows = [torch.randint(9, VOCABULARY, (length,), generator=generator) for length in lengths]
    before = [torch.randint(9, VOCABULARY, (max(1, length),), generator=generator) for length in known]
    with torch.no_grad():
        state = model.remember(3, 6)
        _, state = model.hidden(Batch.of([row.tolist() for row in before]), state)
        state.forget([1])
        starts = (0, 9, 13)
        at = torch.cat([torch.arange(count) + start for count, start in zip(counts, starts, strict=True)])
        whole, _ = model.two_stream(
            Batch.of([row.tolist() for row in rows]), QueryPositions(at, counts), state
        )
        parts = []
        for row in range(2):
            alone = model.remember(1, 6)
            if known[row]:
                _, alone = model.hidden(Batch.of([before[row].tolist()]), alone)
            asked = QueryPositions(torch.arange(counts[row]), [counts[row]])
            parts.append(model.two_stream(Batch.of([rows[row].tolist()]), asked, alone)[0])
    close(whole, torch.cat(parts), "rows alone")


def test_no_gradient_reaches_an_earlier_segment(model: Model) -> None:
    ids = text(padded=False)["input_ids"]
    embedded = model.body.embeddings.words(ids.reshape(-1)).detach().requires_grad_()
    _, state = model.hidden(Batch.of_rectangle(ids), model.remember(ROWS, 6), embedded=embedded)
    hidden, _ = model.hidden(Batch.of_rectangle(ids.flip(0)), state)
    hidden.pow(2).sum().backward()
    assert embedded.grad is None


def test_tokens_fed_together_are_what_they_are_one_by_one(model: Model) -> None:
    """What a decode says behind every token does not depend on how many are fed at a time."""
    ids = text(padded=False)["input_ids"][:3]
    lengths = (5, 2, 4)
    with torch.no_grad():
        one, many = model.start(3), model.start(3)
        prompt = Batch.of(ids[:, :3].tolist(), prefix=[3] * 3)
        first, _ = model.hidden(prompt, one)
        model.hidden(prompt, many)
        many.crop([3, 3, 3])
        rows = [row[3 : 3 + length].tolist() for row, length in zip(ids, lengths, strict=True)]
        together, _ = model.hidden(Batch.of(rows), many)
        apart = [model.hidden(Batch.of([[int(t)] for t in ids[:, 3 + step]]), one)[0] for step in range(5)]
    close(together[:5], torch.stack([step[0] for step in apart]), "longest row")
    close(together[5:7], torch.stack([step[1] for step in apart[:2]]), "shortest row")
    close(together[7:], torch.stack([step[2] for step in apart[:4]]), "last row")
    assert torch.isfinite(first).all()
