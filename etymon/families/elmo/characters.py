"""Words by their letters (Kim et al. 2016, as ELMo has it): convolutions over characters, highways, a
projection.

Legend: N tokens, U distinct words, C characters of a word, E width of a character, K filters, P width of a
word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.nn.batch import Batch
from etymon.nn.layers import ACTIVATIONS, Embedding, Linear

if TYPE_CHECKING:
    from etymon.families.elmo import Shape

CHARACTERS, PADDING = 262, 261
"""Codes of characters: no word at all; 256 bytes; begin and end of a text, begin and end of a word;
padding."""


class Convolution(nn.Conv1d):
    def reset_parameters(self) -> None:
        pass


class Highway(nn.Module):
    """`g x + (1 - g) relu(T x)` with `g = sigmoid(C x)`: what is carried past the layer, and what goes
    through it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform, self.carry = Linear(dim, dim), Linear(dim, dim)

    def forward(self, x_UK: Tensor) -> Tensor:
        return torch.lerp(self.transform(x_UK).relu(), x_UK, self.carry(x_UK).sigmoid())


class Characters(nn.Module):
    """The embeddings of a model that reads letters: every distinct word of a batch is computed once.

    Gives `[N, 2P]`: the words as they are read from the beginning, and as they are read from the end. In
    training these may be other words.
    """

    keeps_float32 = True
    room = None
    """A row may have any number of tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        filters, self.longest = shape.convolutions, shape.word_length
        self.widest, count = max(width for width, _ in filters), sum(number for _, number in filters)
        self.letters = Embedding(CHARACTERS, shape.letter_dim)
        self.convolutions = nn.ModuleList(Convolution(shape.letter_dim, n, width) for width, n in filters)
        self.highways = nn.ModuleList(Highway(count) for _ in range(shape.highways))
        self.projection = Linear(count, shape.dim)
        self.activation = ACTIVATIONS[shape.activation]

    def words(self, letters_UC: Tensor) -> Tensor:
        """The vectors `[U, P]` of words whose spellings are padded to the longest of them."""
        # As published, every word is padded to `longest` characters. Windows of padding alone give the same
        # numbers again, which the maximum ignores: one filter's width of padding is enough.
        more = min(self.widest, self.longest - letters_UC.shape[1])
        letters_UC = F.pad(letters_UC, (0, max(more, 0)), value=PADDING)
        # Spellings are kept in a small integer type; convolutions want channels before time.
        x_UEC = self.letters(letters_UC.long()).transpose(1, 2)
        # The activations never fall, so that of the maximum is the maximum of them, and less to compute.
        x_UK = self.activation(torch.cat([convolve(x_UEC).amax(-1) for convolve in self.convolutions], -1))
        for highway in self.highways:
            x_UK = highway(x_UK)
        return self.projection(x_UK)

    def look_up(self, batch: Batch) -> Tensor:
        letters = batch.letters
        assert letters is not None, "this model reads letters: give it a tokenizer, or a batch with letters"
        x_UP = self.words(letters.letters_UC)
        return torch.cat([x_UP.index_select(0, which_N) for which_N in (letters.ahead_N, letters.back_N)], -1)

    def forward(self, batch: Batch, embedded: Tensor | None = None) -> Tensor:
        return self.look_up(batch) if embedded is None else embedded
