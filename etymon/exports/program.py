"""A model's head as a function of padded tensors, with the names that Transformers gives inputs and outputs.

Legend: R rows, C choices, T tokens of a row with padding, N = R * T, D width, V words or other outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from etymon.exports.target import STATES, CheckInputs
from etymon.nn.attention import Memory
from etymon.nn.batch import Letters
from etymon.nn.padded import padded_batch
from etymon.text.words import LONGEST as LETTERS

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.families.model import Model

TOKEN_HEADS = frozenset({STATES, "vocabulary", "tagging", "span", "replaced"})
"""Heads that answer for every token of a row; others answer once for all of it."""


def no_program(family: Family, head: str) -> str | None:
    """Why a head has no program of padded tensors; None where it has one."""
    if head == "conditional_span":
        return "its ends depend on beginnings that are searched for first: fine-tune a span head"
    return None


def no_program_of_model(model: Model, head: str) -> str | None:
    """The same of a model, whose shape or training may be one that no program follows."""
    if (reason := no_program(model.family, head)) is not None:
        return reason
    features = model.features
    if head in model.family.feature_heads and features is not None and features.layer_norm:
        return "its mix norms layers over all rows that come together: fine-tune without layer_norm"
    if head == "vocabulary" and getattr(model.shape, "pointer", 0) > 0:
        return "its pointer copies words of the text"
    # XLNet's logits are those of its content stream, of a text that is there already.
    if head == "vocabulary" and model.reads_prefix and "two-stream" not in model.capabilities:
        return "it reads a prompt in both directions, and a runtime reads it from left to right"
    if getattr(model.shape, "both_ways", False):
        return "it reads half of its rows backwards"
    return None


@dataclass(frozen=True)
class PaddedRows:
    """Rows of ids beside each other, zeros behind their ends, and 1 for tokens."""

    ids_RT: np.ndarray
    mask_RT: np.ndarray


def pad_rows(rows: Sequence[Sequence[int]]) -> PaddedRows:
    longest = max(map(len, rows))
    ids_RT, mask_RT = (np.zeros((len(rows), longest), dtype=np.int64) for _ in range(2))
    for number, row in enumerate(rows):
        ids_RT[number, : len(row)], mask_RT[number, : len(row)] = row, 1
    return PaddedRows(ids_RT, mask_RT)


def read_words(model: Model, hidden_ND: Tensor) -> Tensor:
    """Logits of words `[N, V]`; of a model of two directions `[N, V, 2]`: words behind, and words before."""
    vocabulary: Any = model.heads["vocabulary"]
    if "two directions" not in model.capabilities:
        return vocabulary.logits(hidden_ND)
    return torch.stack([vocabulary.logits(half_NP) for half_NP in hidden_ND.chunk(2, -1)], -1)


class HeadProgram(nn.Module):
    """One head of a model over padded rows. Choices are rows of `[R, C, T]`; a decoder over an encoder reads
    `decoder_input_ids` where words are wanted. A model that reads letters has `character_ids` `[R, T, 50]`,
    and `input_ids` where its head has word vectors of its own."""

    def __init__(self, model: Model, head: str, *, splits_axes: bool = False) -> None:
        super().__init__()
        self.model, self.head, self.splits_axes = model, head, splits_axes

    @property
    def output_names(self) -> list[str]:
        if self.head == "span":
            return ["start_logits", "end_logits"]
        if self.head == "vocabulary" and "two directions" in self.model.capabilities:
            return ["logits", "backward_logits"]
        return ["last_hidden_state" if self.head == STATES else "logits"]

    @property
    def reads_targets(self) -> bool:
        """Whether it has an input beside the text: what a decoder reads."""
        return self.model.encoder_decoder and self.head == "vocabulary"

    @property
    def reads_ids(self) -> bool:
        """Whether tokens have numbers for it, and not letters alone."""
        model = self.model
        own_words = model.features is not None and bool(model.features.words)
        return "letters" not in model.capabilities or (self.head in model.family.feature_heads and own_words)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        character_ids: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        assert attention_mask is not None
        # Where only letters are read, ids are any numbers.
        input_ids = torch.zeros_like(attention_mask) if input_ids is None else input_ids
        rows = input_ids.shape[:-1]
        if self.head == "choice":
            input_ids, attention_mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
            token_type_ids = None if token_type_ids is None else token_type_ids.flatten(0, 1)
            character_ids = None if character_ids is None else character_ids.flatten(0, 1)
        views = self.splits_axes
        batch = padded_batch(input_ids, attention_mask, segments_RT=token_type_ids, splits_axes=views)
        if character_ids is not None:
            # Every cell is a word by itself: which of them are the same is not known.
            words_N = torch.arange(batch.layout.tokens)
            batch = replace(batch, letters=Letters(character_ids.flatten(0, 1), words_N, words_N))
        model = self.model
        if decoder_input_ids is not None:
            memory: Memory = model.encode(batch)
            # Nothing that a decoder reads is hidden from it: padding comes last, and it looks back.
            visible_RT = torch.ones_like(decoder_input_ids)
            batch = padded_batch(decoder_input_ids, visible_RT, splits_axes=views)
            hidden_ND, _ = model.decode(batch, memory)
        elif self.head == STATES:
            hidden_ND = model.last_layer(batch)
        else:
            hidden_ND = model.states(batch) if self.head not in model.family.feature_heads else batch.ids
        if self.head == STATES:
            outputs = hidden_ND
        elif self.head == "vocabulary":
            outputs = read_words(model, hidden_ND)
        elif self.head in model.family.feature_heads:
            outputs = model.answer(self.head, batch)
        else:
            outputs = model.read_from(self.head, model.pick(self.head, hidden_ND, batch))
        if self.head in TOKEN_HEADS:
            outputs = batch.layout.pad(outputs)
        # Two answers of every token, each an output by itself.
        if self.head == "span" or outputs.dim() == 4:
            return tuple(outputs.unbind(-1))
        if self.head == "choice":
            # By an index, as `PaddedLayout.pad`: a view would make one choice another program than several.
            first_R1 = torch.arange(rows[0])[:, None] * rows[1]
            return outputs[first_R1 + torch.arange(rows[1]), 0]
        return outputs

    def example(self) -> tuple[dict[str, Tensor], dict[str, dict[int, Any]]]:
        """Inputs by name to trace it with, and which of their sizes are free."""
        rows, length = torch.export.Dim("rows", min=1), torch.export.Dim("length", min=1)
        ids_RT = torch.zeros(3, 7, dtype=torch.long)
        inputs = {"input_ids": ids_RT} if self.reads_ids else {}
        if "letters" in self.model.capabilities:
            inputs["character_ids"] = torch.ones(3, 7, LETTERS, dtype=torch.long)
        inputs["attention_mask"] = torch.ones_like(ids_RT)
        sizes: dict[int, Any] = {0: rows, 1: length}
        if "segments" in self.model.capabilities:
            # A tensor of its own: one object twice would be one input.
            inputs["token_type_ids"] = torch.zeros_like(ids_RT)
        if self.head == "choice":
            sizes = {0: rows, 1: torch.export.Dim("choices", min=1), 2: length}
            inputs = {
                name: value[:, None].repeat(1, 2, *[1] * (value.dim() - 1)) for name, value in inputs.items()
            }
        shapes = dict.fromkeys(inputs, sizes)
        if self.reads_targets:
            inputs["decoder_input_ids"] = torch.zeros(3, 5, dtype=torch.long)
            shapes["decoder_input_ids"] = {0: rows, 1: torch.export.Dim("decoder_length", min=1)}
        return inputs, shapes


def program_inputs(names: Sequence[str], inputs: CheckInputs) -> dict[str, np.ndarray]:
    """The arrays of a program's inputs, by name; a program of choices has `[R, 1, T]`."""
    padded = pad_rows(inputs.rows)
    arrays = {"input_ids": padded.ids_RT, "attention_mask": padded.mask_RT}
    arrays["token_type_ids"] = np.zeros_like(padded.ids_RT)
    if inputs.letters is not None:
        arrays["character_ids"] = np.zeros((*padded.ids_RT.shape, LETTERS), np.int64)
        for number, row in enumerate(inputs.letters):
            arrays["character_ids"][number, : len(row)] = row
    if inputs.targets is not None:
        arrays["decoder_input_ids"] = pad_rows(inputs.targets).ids_RT
    return {name: arrays[name] for name in names}


def split_answers(head: str, outputs: Sequence[np.ndarray], inputs: CheckInputs) -> list[np.ndarray]:
    """A program's outputs as an array a row, without what was said of padding."""
    whole = outputs[0] if len(outputs) == 1 else np.stack(list(outputs), -1)
    if head not in TOKEN_HEADS:
        return list(whole)
    rows = inputs.rows if inputs.targets is None else inputs.targets
    return [whole[number, : len(row)] for number, row in enumerate(rows)]
