"""Cases of ELMo: letters in; every layer, mixes of layers and the states that go on from call to call out.

The reference is stateful: each call starts from the rows' last states unless it is told to reset them.

Legend: B rows, T words of the longest, C characters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from etymon.families.elmo.lstm import LstmState
from etymon.families.model import Model
from etymon.nn.batch import Batch, Letters
from etymon.nn.features import ScalarMix
from etymon.nn.trace import trace
from etymon.text.words import LONGEST, PADDING, Lexicon
from tests.oracle.case import Case
from tests.oracle.forward import Reading
from tests.oracle.inputs import Arguments
from tests.oracle.judge import Verdict, _close, judge_gradients, judge_outputs
from tests.oracle.runner import gradients


def check_elmo(case: Case, model: Model, verdict: Verdict) -> None:
    stored = load_file(case.folder / "scalar_mix.safetensors")
    told = case.manifest["constructor"]
    unknown = sorted(set(told) - {"num_output_representations", "do_layer_norm", "dropout"})
    verdict.problems += [f"the argument {name} of Elmo is not understood" for name in unknown]
    normed = bool(told.get("do_layer_norm"))
    mixes = [_mix(stored, number, normed) for number in range(told["num_output_representations"])]
    lexicon = model.tokenizer.lexicon
    state: LstmState | None = None
    for number, call in enumerate(case.calls):
        arguments = Arguments(case.tensors(call))
        ids_BTC = arguments.take("inputs")
        if call["reset_state"] or state is None:
            state = model.remember(len(ids_BTC))
        reading, mixed = _run(model, lexicon, mixes, ids_BTC, state)
        if call["name"] == case.backward["call"]:
            loss = sum((i + 1) * (one * case.inputs["loss_weight"]).sum() for i, one in enumerate(mixed))
            reading.outputs["loss"] = loss.detach()
            loss.backward()
        judge_outputs(case, call, reading, verdict)
        for row in range(len(ids_BTC)):
            key = f"tf_expected.batch{number}.row{row}"
            if key in case.outputs:
                top = reading.outputs[f"bilm_activations.{model.shape.layers}"].detach()
                expected = case.outputs[key]
                _close(case, "TensorFlow", key, top[row, 1 : len(expected) + 1], expected, verdict)
    found = gradients(model)
    for number, mix in enumerate(mixes):
        found |= {f"scalar_mix_{number}.gamma": mix.gamma.grad}
        found |= {f"scalar_mix_{number}.scalar_parameters.{i}": one.grad for i, one in enumerate(mix.scalars)}
    judge_gradients(case, found, {}, verdict)


def _mix(stored: dict[str, Tensor], number: int, normed: bool) -> ScalarMix:
    own = {name.removeprefix(f"scalar_mix_{number}."): value for name, value in stored.items()}
    mix = ScalarMix(sum(name.startswith(f"scalar_mix_{number}.scalar") for name in stored), normed)
    with torch.no_grad():
        mix.gamma.copy_(own["gamma"])
        for i, scalar in enumerate(mix.scalars):
            scalar.copy_(own[f"scalar_parameters.{i}"])
    return mix


def _run(
    model: Model, lexicon: Lexicon, mixes: list[ScalarMix], ids_BTC: Tensor, state: LstmState
) -> tuple[Reading, list[Tensor]]:
    """Rows without padding, between their marks; `state` goes on in place, and rows that are not here stay as they were."""
    real_BT = (ids_BTC > 0).any(-1)
    begin, end = (_mark(lexicon, role) for role in ("begin", "end"))
    rows = [torch.cat([begin, row[real], end]) for row, real in zip(ids_BTC, real_BT, strict=True)]
    letters_UC, index_N = torch.cat(rows).unique(dim=0, return_inverse=True)
    batch = Batch.of([[0] * len(row) for row in rows])
    batch.letters = Letters(letters_UC, index_N, index_N)
    here = state.select(torch.arange(len(rows)))
    alone_ND = _one_by_one(model, rows, here)
    with trace(model) as seen:
        last_ND, after = model.hidden(batch, here)
    for old, new in ((state.hidden_LGRP, after.hidden_LGRP), (state.cell_LGRC, after.cell_LGRC)):
        old[:, :, : len(rows)] = new
    lengths = batch.layout.lengths
    outputs: dict[str, Any] = {"mask": real_BT}
    outputs["bilm_mask"] = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    for number, x_ND in enumerate(seen.hidden):
        outputs[f"bilm_activations.{number}"] = _padded(x_ND, lengths)
    for number, part in enumerate((state.hidden_LGRP, state.cell_LGRC)):
        outputs[f"lstm_states.{number}"] = torch.cat(list(part.transpose(0, 1)), -1)
    mixed = [mix(seen.hidden) for mix in mixes]
    words = [torch.cat([row[1:-1] for row in x_ND.split(lengths)]) for x_ND in mixed]
    for number, x_ND in enumerate(words):
        outputs[f"elmo_representations.{number}"] = _padded(x_ND, [length - 2 for length in lengths])
    return Reading(outputs, [("rows by themselves", alone_ND, last_ND.detach())]), words


@torch.no_grad()
def _one_by_one(model: Model, rows: list[Tensor], state: LstmState) -> Tensor:
    """Every row in a batch of its own, from its own state."""
    found = []
    for number, row in enumerate(rows):
        letters_UC, index_N = row.unique(dim=0, return_inverse=True)
        batch = Batch.of([[0] * len(row)])
        batch.letters = Letters(letters_UC, index_N, index_N)
        found.append(model.hidden(batch, state.select(torch.tensor([number])))[0])
    return torch.cat(found)


def _mark(lexicon: Lexicon, role: str) -> Tensor:
    letters_1C = np.full((1, LONGEST), PADDING)
    found, _ = lexicon.spell(np.array([lexicon.tokenizer.id(role)]))
    letters_1C[:, : found.shape[1]] = found
    return torch.from_numpy(letters_1C)


def _padded(x_ND: Tensor, lengths: tuple[int, ...] | list[int]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(x_ND.split(list(lengths))), batch_first=True)
