"""Every class of the built families against a live Transformers model: values, gradients, and folders both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etymon
from tests.families.reference import REFERENCES, Reference
from tests.oracle.forward import Reading, run
from tests.oracle.inputs import Arguments, Text
from tests.oracle.runner import gradients

pytest.importorskip("transformers")


@pytest.fixture(scope="module", params=REFERENCES, ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Reference, Path, Any]:
    """A class, a folder it was saved to, and the model that Transformers opens there."""
    folder = tmp_path_factory.mktemp("reference")
    return request.param, folder, request.param.write(folder)


def flattened(outputs: Any) -> dict[str, Tensor]:
    """A Transformers output by field, tuples by number; caches left out."""
    found = {}
    for name, value in outputs.items():
        if name != "past_key_values":
            parts = (
                {name: value}
                if isinstance(value, Tensor)
                else {f"{name}.{i}": v for i, v in enumerate(value)}
            )
            found |= parts
    return found


def objective(outputs: dict[str, Tensor]) -> Tensor:
    """Something to differentiate: the losses, or a fixed mixture of the states where a class has none."""
    losses = [outputs[name] for name in ("loss", "mc_loss") if name in outputs]
    if not losses:
        states = [outputs[name] for name in ("last_hidden_state", "pooler_output") if name in outputs]
        losses = [(x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in states]
    return torch.stack(losses).sum()


def theirs(model: Any, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    return flattened(model(**arguments, output_hidden_states=True, output_attentions=True))


def assert_near(got: Tensor, expected: Tensor, name: str) -> None:
    torch.testing.assert_close(
        got.reshape(expected.shape), expected, atol=2e-5, rtol=1e-4, msg=lambda why: f"{name}: {why}"
    )


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole"])
def test_values_and_gradients(pair: tuple[Reference, Path, Any], padded: bool) -> None:
    reference, folder, model = pair
    arguments = reference.arguments(padded)
    ours = etymon.load(folder)
    assert ours.head_names == reference.heads
    assert ours.new_heads == ()
    taken = Arguments(arguments)
    reading: Reading = run(ours, taken)
    assert not taken.untouched
    outputs = theirs(model, arguments)
    assert {"logits", "start_logits", "prediction_logits", "last_hidden_state"} & set(outputs)
    for name, expected in outputs.items():
        assert_near(reading.outputs[name], expected, name)
    for name, ragged, rectangle in reading.pairs:
        assert_near(ragged, rectangle, f"ragged {name}")
    objective(outputs).backward()
    objective(reading.outputs).backward()
    found = gradients(ours)
    # A tied matrix has two names, of which XLM-RoBERTa's classes give the other one first.
    every = list(model.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            # Sines that Transformers forgets to freeze when it opens a folder.
            assert name == reference.spare_bias or name.endswith("encoder.embed_positions.weight")
        else:
            own = next(other for other, same in every if same is parameter and other in found)
            assert_near(found.pop(own), parameter.grad, f"gradient of {name}")
    assert set(found) <= {reference.spare_bias}


def test_round_trip(pair: tuple[Reference, Path, Any], tmp_path: Path) -> None:
    reference, folder, model = pair
    ours = etymon.load(folder)
    etymon.save(ours, tmp_path / "saved")
    opened, info = reference.open(tmp_path / "saved", output_loading_info=True)
    assert not any(info.values()), info
    written = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (written["architectures"], written["model_type"]) == ([reference.name], model.config.model_type)
    state = opened.state_dict()
    stored = model.state_dict()
    if (spare := reference.spare_bias) is not None:  # nothing reads it
        stored[spare] = stored[spare.removesuffix("bias") + "decoder.bias"]
    for name, expected in stored.items():
        assert torch.equal(state[name], expected), name
    arguments = reference.arguments(padded=True)
    with torch.no_grad():
        before, after = theirs(model, arguments), theirs(opened, arguments)
    for name, expected in before.items():  # their weights lie where the file has them, aligned or not
        torch.testing.assert_close(after[name], expected, atol=1e-6, rtol=1e-5)
    again = etymon.load(tmp_path / "saved")
    assert again.head_names == ours.head_names
    assert again.shape == ours.shape
    for (name, first), second in zip(ours.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second), name


ROW_HEADS = {"classification", "next_sentence", "sentence_order"}


@pytest.mark.parametrize("reference", [r for r in REFERENCES if r.heads & ROW_HEADS], ids=str)
def test_ragged_rows_are_read_where_the_family_reads(reference: Reference, tmp_path: Path) -> None:
    """`model.read` without positions, on rows without padding, as a user would."""
    model = reference.write(tmp_path / "reference")
    arguments = reference.arguments(padded=True)
    ours = etymon.load(tmp_path / "reference")
    text = Text(arguments["input_ids"], arguments["attention_mask"], arguments.get("token_type_ids"))
    batch = text.ragged
    with torch.no_grad():
        if ours.encoder_decoder:  # the decoder reads the text itself, behind the start token
            memory = ours.encode(batch)
            start = torch.full_like(text.ids[:, :1], ours.decoder_start)
            shifted = torch.cat([start, text.ids[:, :-1]], dim=1)
            batch = Text(shifted, text.mask).ragged
            hidden, _ = ours.decode(batch, memory)
        else:
            hidden, _ = ours.hidden(batch)
        got = ours.read(next(iter(reference.heads & ROW_HEADS)), hidden, batch)
        outputs = theirs(model, arguments)
    fields = ("seq_relationship_logits", "sop_logits", "logits")
    assert_near(got, next(outputs[field] for field in fields if field in outputs), "scores of rows")
