"""Speculative decoding (Leviathan et al. 2023): a small draft model runs ahead, and the model reads what it wrote at once.

Greedy: drafted tokens stay as far as they are the model's own, and the first other one is the model's. Sampling: a token
that was drawn from the draft's q stays with probability min(1, p / q); the first that does not is drawn anew from
(p - q)+, which makes it a draw from p. Behind drafts that all stay, the model adds one more. So every round
settles one token at least, and the texts are those of the model alone: the same ones, or the same distribution.

What was read in vain is cropped from the states, row by row: rows may keep different numbers of drafted tokens.

Legend: R rows, k drafted tokens, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.following import forked, own_log_probs
from etymon.generation.processors import NEVER, Processing, draw, likeliest, warp
from etymon.generation.sequences import Sequence, Writing
from etymon.generation.settings import DecodingSettings
from etymon.generation.stepper import Stepper

DRAFT, ACCEPT, SETTLE = range(3)
"""Every token of a text has a number for each. A draft that is dropped was never looked at, so that its are as good as new."""


def check_draft(model: Model, draft: Model, settings: DecodingSettings, needed: int) -> None:
    """Refuses a draft that cannot run ahead of the model; `needed` is the longest text."""
    ours, theirs = model.tokenizer, draft.tokenizer
    alike = (
        model.heads["vocabulary"].size == draft.heads["vocabulary"].size
        if ours is None or theirs is None
        else ours.fingerprint == theirs.fingerprint
    )
    if not alike:
        raise EtymonError("the draft model has another tokenizer: take one that was trained with the same")
    if draft.encoder_decoder != model.encoder_decoder:
        raise EtymonError(
            f"{draft.family.title} does not read as {model.family.title} does: it cannot be its draft"
        )
    for name in ("choices", "window", "contrastive"):
        if getattr(settings, name):
            raise EtymonError(
                f"a draft and {name.replace('contrastive', 'penalty_alpha')} exclude each other: choose one"
            )
    if settings.beams > 1:
        raise EtymonError("a draft and a beam search exclude each other: choose one")
    room = draft.decoder_positions
    if room is not None and needed > room:
        raise EtymonError(
            f"the text may grow to {needed} tokens, but the draft model has {room} positions: ask for fewer new tokens"
        )


class Speculation:
    """One decode by two models, which have both read the prompts."""

    def __init__(self, stepper: Stepper, draft: Stepper, processing: Processing, writing: Writing) -> None:
        self.stepper, self.draft, self.processing, self.writing = stepper, draft, processing, writing
        self.settings, self.count = writing.settings, writing.settings.draft_tokens
        self.rows = list(range(len(writing.texts)))
        self.numbers = np.empty(0)
        if self.settings.sample:
            self.numbers = writing.uniforms(max(writing.limits) + self.count + 1, 3)
        # Rows that are nearly through draft beyond their end as the others do: what is too much is never taken.
        stepper.spills = draft.spills = True

    def run(self, scores_RV: Tensor) -> list[list[Sequence]]:
        """The texts of all rows; `scores_RV` are the model's of the first token."""
        scores_RV = forked(scores_RV, self.writing, self.processing, self.stepper, self.draft)
        first_R = self._picked(self._shown(scores_RV), [0] * len(self.rows), SETTLE)
        self.processing.append(first_R)
        gained = first_R[:, None].tolist()
        own = own_log_probs(scores_RV, first_R)[:, None].tolist()
        unread = gained  # by the draft; the model has read all but the last token of a text
        while True:
            going_on = [
                place
                for place, row in enumerate(self.rows)
                if all(self.writing.add(row, *one) for one in zip(gained[place], own[place], strict=True))
            ]
            if not going_on:
                return self.writing.results()
            if len(going_on) < len(self.rows):
                chosen = torch.tensor(going_on, device=scores_RV.device)
                for each in (self.processing, self.stepper, self.draft):
                    each.select(chosen)
                self.rows = [self.rows[place] for place in going_on]
                unread = [unread[place] for place in going_on]
            gained, own, unread = self._round(unread)

    def _round(self, unread: list[list[int]]) -> tuple[list[list[int]], list[list[float]], list[list[int]]]:
        """What every row gains, what the model gives it, and what of it the draft has not read."""
        before = self.stepper.state.lengths
        drafted = [length + len(some) for length, some in zip(self.draft.state.lengths, unread, strict=True)]
        tokens_Rk, q_RkV = self._drafted(unread)
        texts = [self.writing.texts[row] for row in self.rows]
        self.stepper.extend([[text[-1], *more] for text, more in zip(texts, tokens_Rk.tolist(), strict=True)])
        scores_RnV = self.stepper.scores(None).unflatten(0, (len(self.rows), self.count + 1))
        p_RnV = self._judged(scores_RnV, tokens_Rk)
        kept_R, settled_R = self._settled(p_RnV, q_RkV, tokens_Rk)
        self.processing.take_back(self.count - kept_R)
        self.processing.append(settled_R)
        tokens_Rn = torch.cat([tokens_Rk, settled_R[:, None]], 1).scatter(
            1, kept_R[:, None], settled_R[:, None]
        )
        own_Rn = own_log_probs(scores_RnV, tokens_Rn)
        kept = kept_R.tolist()
        read = [min(each, self.count - 1) for each in kept]  # the draft's last token was never fed to it
        self.stepper.state.crop([length + 1 + each for length, each in zip(before, kept, strict=True)])
        self.draft.state.crop([length + each for length, each in zip(drafted, read, strict=True)])
        gained = [row[: each + 1] for row, each in zip(tokens_Rn.tolist(), kept, strict=True)]
        own = [row[: each + 1] for row, each in zip(own_Rn.tolist(), kept, strict=True)]
        return gained, own, [row[each:] for row, each in zip(gained, read, strict=True)]

    def _drafted(self, unread: list[list[int]]) -> tuple[Tensor, Tensor]:
        """The draft's next tokens and what they were chosen by."""
        vocabulary = self.processing.vocabulary
        self.draft.extend(unread)
        scores_RV = self.draft.scores(self.draft.last)
        tokens, shown = [], []
        for ahead in range(self.count):
            # The same tokenizer, but perhaps another number of vectors beyond its tokens.
            missing = vocabulary - scores_RV.shape[1]
            shown.append(self._shown(F.pad(scores_RV, (0, missing), value=NEVER)))
            tokens.append(self._picked(shown[-1], [ahead] * len(self.rows), DRAFT))
            self.processing.append(tokens[-1])
            if ahead < self.count - 1:
                scores_RV = self.draft.step(tokens[-1])
        self.processing.take_back(self.count)
        return torch.stack(tokens, 1), torch.stack(shown, 1)

    def _judged(self, scores_RnV: Tensor, tokens_Rk: Tensor) -> Tensor:
        """What the model would choose by, behind each of the drafted tokens."""
        shown = []
        for ahead in range(self.count + 1):
            shown.append(self._shown(scores_RnV[:, ahead]))
            if ahead < self.count:
                self.processing.append(tokens_Rk[:, ahead])
        return torch.stack(shown, 1)

    def _settled(self, p_RnV: Tensor, q_RkV: Tensor, tokens_Rk: Tensor) -> tuple[Tensor, Tensor]:
        """How many drafted tokens of every row stay, and the token behind them."""
        if not self.settings.sample:
            own_Rn = likeliest(p_RnV)
            kept_R = (own_Rn[:, :-1] == tokens_Rk).cumprod(1).sum(1)
            return kept_R, own_Rn.gather(1, kept_R[:, None])[:, 0]
        p_RnV, q_RkV = (scores.double().softmax(-1) for scores in (p_RnV, q_RkV))
        p_Rk, q_Rk = (
            each[:, : self.count].gather(2, tokens_Rk[:, :, None])[..., 0] for each in (p_RnV, q_RkV)
        )
        accept_Rk = torch.stack(
            [self._uniforms([ahead] * len(self.rows), ACCEPT) for ahead in range(self.count)], 1
        )
        kept_R = (accept_Rk * q_Rk < p_Rk).cumprod(1).sum(1)
        rest_RnV = p_RnV - F.pad(q_RkV, (0, 0, 0, 1))  # behind the last draft there is no q
        rest_RV, p_RV = (each.take_along_dim(kept_R[:, None, None], 1)[:, 0] for each in (rest_RnV, p_RnV))
        rest_RV = rest_RV.clamp(min=0)
        # Rounding may leave nothing where both agree: either is the right distribution then.
        weights_RV = torch.where(rest_RV.sum(-1, keepdim=True) > 0, rest_RV, p_RV)
        return kept_R, self._picked(weights_RV.log(), kept_R.tolist(), SETTLE)

    def _shown(self, scores_RV: Tensor) -> Tensor:
        allowed_RV = self.processing(scores_RV)
        return warp(allowed_RV, self.settings) if self.settings.sample else allowed_RV

    def _picked(self, shown_RV: Tensor, ahead: list[int], use: int) -> Tensor:
        return draw(shown_RV, self._uniforms(ahead, use)) if self.settings.sample else likeliest(shown_RV)

    def _uniforms(self, ahead: list[int], use: int) -> Tensor:
        places = [len(self.writing.texts[row]) + each for row, each in zip(self.rows, ahead, strict=True)]
        return torch.from_numpy(self.numbers[self.rows, places, use]).to(self.stepper.model.device)
