"""Speculative decoding (Leviathan et al. 2023): a small draft model runs ahead, and the model reads what it
wrote at once.

Greedy: drafted tokens stay as far as they are the model's own, and the first other one is the model's.
Sampling: a token that was drawn from the draft's q stays with probability min(1, p / q); the first that does
not is drawn anew from (p - q)+, which makes it a draw from p (section 2.3). After drafts that all stay, the
model adds one more. So every round gains one token at least, and the texts are those of the model alone: the
same ones, or the same distribution.

What was read in vain is cropped from the states, row by row: rows may keep different numbers of drafted
tokens.

Legend: R rows, k drafted tokens, n = k + 1, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.processors import NEVER, ScoreProcessor, draw, likeliest, token_log_probs, warp
from etymon.generation.sequences import Continuations, Sequence
from etymon.generation.stepper import Stepper, fork_rows
from etymon.settings.decoding import DecodingSettings

DRAFT, ACCEPT, RESAMPLE = range(3)
"""The uniform numbers of every token of a text. Those of drafts that are dropped serve again: nobody saw what
they led to."""


def check_draft(model: Model, draft: Model, settings: DecodingSettings, longest: int) -> None:
    """Refuses a draft that cannot run ahead of the model; `longest` is the length of the longest text."""
    ours, theirs = model.tokenizer, draft.tokenizer
    if ours is not None and theirs is not None:
        same_tokens = ours.fingerprint == theirs.fingerprint
    else:
        same_tokens = model.heads["vocabulary"].size == draft.heads["vocabulary"].size
    if not same_tokens:
        raise EtymonError("the draft model has another tokenizer: take one that was trained with the same")
    if draft.encoder_decoder != model.encoder_decoder:
        raise EtymonError(
            f"{draft.family.title} does not read as {model.family.title} does: it cannot be its draft"
        )
    others = {
        "choices": settings.choices,
        "window": settings.window,
        "penalty_alpha": settings.contrastive,
        "a beam search": settings.beams > 1,
    }
    for name in (name for name, is_set in others.items() if is_set):
        raise EtymonError(f"a draft and {name} exclude each other: choose one")
    positions = draft.decoder_positions
    if positions is not None and longest > positions:
        raise EtymonError(
            f"the text may grow to {longest} tokens, but the draft model has {positions} positions: "
            "ask for fewer new tokens"
        )


class Speculation:
    """One decode by two models, which have both read the prompts."""

    def __init__(
        self, stepper: Stepper, draft: Stepper, processor: ScoreProcessor, texts: Continuations
    ) -> None:
        self.stepper, self.draft, self.processor, self.texts = stepper, draft, processor, texts
        self.settings, self.count = texts.settings, texts.settings.draft_tokens
        self.rows = list(range(len(texts.ids)))
        self.uniforms = np.empty(0)
        if self.settings.sample:
            self.uniforms = texts.uniforms(max(texts.limits) + self.count + 1, 3)
        # Rows that are nearly through draft beyond their end as the others do: what is too much is never
        # kept.
        stepper.exceeds_positions = draft.exceeds_positions = True

    def run(self, scores_RV: Tensor) -> list[list[Sequence]]:
        """The texts of all rows; `scores_RV` are the model's of the first token."""
        scores_RV = fork_rows(self.texts.copies, scores_RV, self.processor, self.stepper, self.draft)
        first_R = self._pick(self._allowed(scores_RV), 0, RESAMPLE)
        self.processor.append(first_R)
        gained = first_R[:, None].tolist()
        log_probs = token_log_probs(scores_RV, first_R)[:, None].tolist()
        unread = gained  # by the draft; the model has read all but the last token of a text
        while True:
            going_on = [
                place
                for place, row in enumerate(self.rows)
                if all(
                    self.texts.add(row, *pair) for pair in zip(gained[place], log_probs[place], strict=True)
                )
            ]
            if not going_on:
                return self.texts.results()
            if len(going_on) < len(self.rows):
                kept = torch.tensor(going_on, device=scores_RV.device)
                for part in (self.processor, self.stepper, self.draft):
                    part.select(kept)
                self.rows = [self.rows[place] for place in going_on]
                unread = [unread[place] for place in going_on]
            gained, log_probs, unread = self._round(unread)

    def _round(self, unread: list[list[int]]) -> tuple[list[list[int]], list[list[float]], list[list[int]]]:
        """The tokens that every row gains, their log-probabilities, and those of them that the draft has not
        read."""
        model_lengths = np.array(self.stepper.state.lengths)
        draft_lengths = np.array(self.draft.state.lengths) + [len(ids) for ids in unread]
        tokens_Rk, q_RkV = self._run_ahead(unread)
        last_R1 = torch.tensor([self.texts.ids[row][-1:] for row in self.rows], device=tokens_Rk.device)
        # One pass of the model over all drafted tokens: what speculation is for.
        self.stepper.extend(torch.cat([last_R1, tokens_Rk], 1).tolist())
        scores_RnV = self.stepper.scores(None).unflatten(0, (len(self.rows), self.count + 1))
        allowed = []
        for ahead in range(self.count + 1):
            allowed.append(self._allowed(scores_RnV[:, ahead]))
            if ahead < self.count:
                self.processor.append(tokens_Rk[:, ahead])
        # The rules saw all drafts so far; those that do not stay are taken back from their histories.
        kept_R, next_R = self._verify(torch.stack(allowed, 1), q_RkV, tokens_Rk)
        self.processor.take_back(self.count - kept_R)
        self.processor.append(next_R)
        next_R1, kept = next_R[:, None], kept_R.cpu().numpy()
        tokens_Rn = torch.cat([tokens_Rk, next_R1], 1).scatter(1, kept_R[:, None], next_R1)
        read = np.minimum(kept, self.count - 1)  # the draft's last token was never fed to it
        self.stepper.state.crop((model_lengths + 1 + kept).tolist())
        self.draft.state.crop((draft_lengths + read).tolist())
        columns = (tokens_Rn.tolist(), token_log_probs(scores_RnV, tokens_Rn).tolist())
        gained, log_probs = ([row[:end] for row, end in zip(rows, kept + 1, strict=True)] for rows in columns)
        return gained, log_probs, [row[first:] for row, first in zip(gained, read, strict=True)]

    def _run_ahead(self, unread: list[list[int]]) -> tuple[Tensor, Tensor]:
        """The draft's next tokens and the scores that they were chosen by."""
        self.draft.extend(unread)
        scores_RV = self.draft.scores(self.draft.last)
        # The same tokenizer, but perhaps another number of vectors beyond its tokens.
        missing = self.processor.vocabulary - scores_RV.shape[1]
        tokens: list[Tensor] = []
        allowed = []
        for ahead in range(self.count):
            if ahead:
                scores_RV = self.draft.step(tokens[-1])
            # The draft follows the same rules: a token that they forbid would never be accepted.
            allowed.append(self._allowed(F.pad(scores_RV, (0, missing), value=NEVER)))
            tokens.append(self._pick(allowed[-1], ahead, DRAFT))
            self.processor.append(tokens[-1])
        self.processor.take_back(self.count)
        return torch.stack(tokens, 1), torch.stack(allowed, 1)

    def _verify(self, p_RnV: Tensor, q_RkV: Tensor, tokens_Rk: Tensor) -> tuple[Tensor, Tensor]:
        """How many drafted tokens of every row stay, and the token after them."""
        if not self.settings.sample:
            best_Rn = likeliest(p_RnV)
            # `cumprod` turns "is the same" into "all up to here are the same".
            kept_R = (best_Rn[:, :-1] == tokens_Rk).cumprod(1).sum(1)
            return kept_R, best_Rn.gather(1, kept_R[:, None])[:, 0]
        # In 64 bits: where p and q nearly agree, p - q is little more than their rounding.
        p_RnV, q_RkV = (scores.double().softmax(-1) for scores in (p_RnV, q_RkV))
        p_Rk, q_Rk = (
            probs[:, : self.count].gather(2, tokens_Rk[:, :, None])[..., 0] for probs in (p_RnV, q_RkV)
        )
        accept_Rk = torch.stack([self._uniforms(ahead, ACCEPT) for ahead in range(self.count)], 1)
        # u < p / q without a division by 0; the first that is refused ends the row.
        kept_R = (accept_Rk * q_Rk < p_Rk).cumprod(1).sum(1)
        rest_RnV = p_RnV - F.pad(q_RkV, (0, 0, 0, 1))  # after the last draft there is no q
        rest_RV, p_RV = (probs.take_along_dim(kept_R[:, None, None], 1)[:, 0] for probs in (rest_RnV, p_RnV))
        rest_RV = rest_RV.clamp(min=0)
        # Rounding may leave nothing where both agree: either is the right distribution then.
        weights_RV = torch.where(rest_RV.sum(-1, keepdim=True) > 0, rest_RV, p_RV)
        return kept_R, self._pick(weights_RV.log(), kept_R.cpu().numpy(), RESAMPLE)

    def _allowed(self, scores_RV: Tensor) -> Tensor:
        allowed_RV = self.processor(scores_RV)
        return warp(allowed_RV, self.settings) if self.settings.sample else allowed_RV

    def _pick(self, scores_RV: Tensor, ahead: int | np.ndarray, use: int) -> Tensor:
        return draw(scores_RV, self._uniforms(ahead, use)) if self.settings.sample else likeliest(scores_RV)

    def _uniforms(self, ahead: int | np.ndarray, use: int) -> Tensor:
        """The numbers of the tokens that many places beyond the end of every text."""
        places = np.array([len(self.texts.ids[row]) for row in self.rows]) + ahead
        return torch.from_numpy(self.uniforms[self.rows, places, use]).to(self.stepper.model.device)
