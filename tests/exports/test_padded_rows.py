"""Padded rows through the families' own code give what ragged rows give: every family, every head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etymon.exports import get_target
from etymon.exports.cache_program import CausalProgram, DecoderProgram, EncoderProgram
from etymon.exports.check import check_inputs, model_answers
from etymon.exports.program import HeadProgram, no_program_of_model, pad_rows, program_inputs, split_answers
from etymon.exports.target import CheckInputs, exportable_heads
from etymon.families import REGISTRY, get_family
from etymon.nn.batch import Batch
from etymon.nn.padded import padded_batch
from tests import tiny
from tests.exports.conftest import shaken_model

CELLS = [
    (family, head)
    for family in REGISTRY
    for head in exportable_heads(get_family(family))
    if get_target("torch").unsupported(get_family(family), head) is None
]


@pytest.mark.parametrize(("family", "head"), CELLS)
def test_every_head_reads_padded_rows_as_ragged_ones(family, head):
    model = shaken_model(family, head)
    program = HeadProgram(model, head)
    for inputs in check_inputs(model, head)[1::2]:
        arrays = program_inputs(list(program.example()[0]), inputs)
        if head == "choice":
            arrays = {name: array[:, None] for name, array in arrays.items()}
        with torch.inference_mode():
            outputs = program(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        answers = split_answers(head, [output.numpy() for output in outputs], inputs)
        for actual, expected in zip(answers, model_answers(model, head, inputs), strict=True):
            assert np.abs(actual - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("family", ["bert", "albert", "electra", "xlnet"])
def test_segments_are_those_of_the_text(family):
    model = shaken_model(family, "classification")
    rows, segments = [[5, 6, 7, 8, 9], [9, 8, 7]], [[0, 0, 1, 1, 1], [0, 1, 1]]
    with torch.inference_mode():
        expected = model.answer("classification", Batch.of(rows, segments=segments))
        padded, types = pad_rows(rows), pad_rows(segments)
        tensors = (torch.from_numpy(part) for part in (padded.ids_RT, padded.mask_RT, types.ids_RT))
        actual = HeadProgram(model, "classification")(*tensors)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        others = model.answer("classification", Batch.of(rows))
    assert (others - expected).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["gpt1", "gpt2", "gpt3", "gptj"])
def test_a_cache_and_padding_on_the_left_change_no_logits(family):
    """As batches of prompts are decoded: shorter rows begin with padding, and positions skip it."""
    model = shaken_model(family, "vocabulary")
    program = CausalProgram(model)
    rows = [[5, 6, 7, 8, 9, 10, 11], [9, 8, 7]]
    expected = model_answers(model, "vocabulary", CheckInputs(rows))
    ids = torch.tensor([rows[0], [0, 0, 0, 0, *rows[1]]])
    mask = torch.tensor([[1] * 7, [0] * 4 + [1] * 3])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    caches = [torch.zeros(2, heads, 0, width) for heads, width in program.head_sizes for _ in range(2)]
    parts = []
    with torch.inference_mode():
        for begin, end in ((0, 5), (5, 6), (6, 7)):
            logits, *caches = program(ids[:, begin:end], mask[:, :end], positions[:, begin:end], caches)
            parts.append(logits)
    logits = torch.cat(parts, 1)
    torch.testing.assert_close(logits[0], torch.from_numpy(expected[0]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1, 4:], torch.from_numpy(expected[1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["t5", "bart", "transformer"])
def test_a_decoder_over_an_encoder_goes_on_from_its_caches(family):
    model = shaken_model(family, "vocabulary")
    inputs = check_inputs(model, "vocabulary")[3]
    expected = model_answers(model, "vocabulary", inputs)
    source, ids = pad_rows(inputs.rows), torch.from_numpy(pad_rows(inputs.targets).ids_RT)
    mask = torch.from_numpy(source.mask_RT)
    first, later = DecoderProgram(model, False), DecoderProgram(model, True)
    with torch.inference_mode():
        memory = EncoderProgram(model)(torch.from_numpy(source.ids_RT), mask)
        begin, *caches = first(mask, ids[:, :3], memory)
        end, *grown = later(mask, ids[:, 3:], memory, caches)
    assert [part.shape[2] for part in grown[:2]] == [ids.shape[1]] * 2
    logits = torch.cat([begin, end], 1).numpy()
    for number, row in enumerate(expected):
        assert np.abs(logits[number, : len(row)] - row).max() < 1e-4 * np.abs(row).max()


def test_positions_and_padding_of_roberta_are_told_by_the_mask():
    model = shaken_model("roberta", "tagging")
    row = [5, 6, 7]
    ids, mask = torch.tensor([[0, 0, *row]]), torch.tensor([[0, 0, 1, 1, 1]])
    batch = padded_batch(ids, mask)
    with torch.inference_mode():
        actual = model.answer("tagging", batch)[2:]
        torch.testing.assert_close(actual, model.answer("tagging", Batch.of([row])), atol=1e-5, rtol=1e-5)


def test_a_memory_of_zeros_is_seen(monkeypatch):
    plain = tiny.SHAPES["transformer-xl"]
    monkeypatch.setitem(tiny.SHAPES, "transformer-xl", {**plain, "zero_start": True, "same_length": True})
    model = shaken_model("transformer-xl", "states")
    inputs = check_inputs(model, "states")[1]
    with torch.inference_mode():
        arrays = program_inputs(["input_ids", "attention_mask"], inputs)
        actual = HeadProgram(model, "states")(*map(torch.from_numpy, arrays.values())).numpy()[0]
    expected = model_answers(model, "states", inputs)[0]
    assert np.abs(actual - expected).max() < 1e-5
    model.body.zero_start = False
    assert np.abs(model_answers(model, "states", inputs)[0] - expected).max() > 1e-3


def test_what_no_program_follows_is_refused():
    model = shaken_model("gpt2", "vocabulary")
    assert no_program_of_model(model, "vocabulary") is None
    model.reads_prefix = True
    assert "both directions" in no_program_of_model(model, "vocabulary")
