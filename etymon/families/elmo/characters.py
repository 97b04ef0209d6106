"""Words by their letters (Kim et al. 2016, as ELMo has it): convolutions over characters, highways, a projection.

Legend: N tokens, U distinct words, C characters of a word, E width of a character, K filters, P width of a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.nn.batch import Batch
from etymon.nn.layers import Activation, Embedding, Linear

CHARACTERS, PADDING = 262, 261
"""No word at all; 256 bytes; begin and end of a text, begin and end of a word, and the rest of a short word."""


class Convolution(nn.Conv1d):
    def reset_parameters(self) -> None:
        pass


class Highway(nn.Module):
    """`g x + (1 - g) relu(T x)` with `g = sigmoid(C x)`: what is carried past the layer, and what goes through it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform, self.carry = Linear(dim, dim), Linear(dim, dim)

    def forward(self, x_UK: Tensor) -> Tensor:
        return torch.lerp(self.transform(x_UK).relu(), x_UK, self.carry(x_UK).sigmoid())


class Characters(nn.Module):
    """The embeddings of a model that reads letters: every distinct word of a batch is computed once.

    Gives `[N, 2P]`: the words as they are read from the beginning, and as they are read from the end, which in training may be
    others.
    """

    room = None
    """A row may have any number of tokens."""

    def __init__(
        self,
        dim: int,
        filters: Sequence[tuple[int, int]],
        highways: int,
        projected: int,
        longest: int,
        activation: Activation = torch.relu,
    ) -> None:
        super().__init__()
        self.longest, self.widest = longest, max(width for width, _ in filters)
        count = sum(number for _, number in filters)
        self.letters = Embedding(CHARACTERS, dim)
        self.convolutions = nn.ModuleList(Convolution(dim, number, width) for width, number in filters)
        self.highways = nn.ModuleList(Highway(count) for _ in range(highways))
        self.projection = Linear(count, projected)
        self.activation = activation

    def words(self, letters_UC: Tensor) -> Tensor:
        """The vectors of words, which were all padded to `longest` characters. Where the longest one's letters end, one filter's
        width of padding is as good as all of it: what comes behind says the same again."""
        more = min(self.widest, self.longest - letters_UC.shape[1])
        letters_UC = F.pad(letters_UC, (0, max(more, 0)), value=PADDING)
        x_UEC = self.letters(letters_UC.long()).transpose(1, 2)
        # No activation of these falls: that of the largest is the largest of all, and less to compute.
        x_UK = self.activation(torch.cat([one(x_UEC).amax(-1) for one in self.convolutions], -1))
        for highway in self.highways:
            x_UK = highway(x_UK)
        return self.projection(x_UK)

    def look_up(self, batch: Batch) -> Tensor:
        assert batch.letters is not None, (
            "this model reads letters: give it a tokenizer, or a batch with letters"
        )
        x_UP = self.words(batch.letters.letters_UC)
        return torch.cat(
            [x_UP.index_select(0, batch.letters.ahead_N), x_UP.index_select(0, batch.letters.back_N)], -1
        )

    def forward(self, batch: Batch, embedded: Tensor | None = None) -> Tensor:
        return self.look_up(batch) if embedded is None else embedded
