"""Pure functions on rows of scores, in the order and with the definitions of Transformers.

Scores are logits or log-probabilities: only the repetition penalty can tell them apart.

Legend: R rows, V vocabulary, T longest history, e end tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.settings.decoding import DecodingSettings

NEVER = float("-inf")


def penalise_repetition(scores_RV: Tensor, history_RT: Tensor, penalty: float) -> Tensor:
    """Makes tokens of the history less likely. Cells beyond a row's length hold V."""
    padded = F.pad(scores_RV, (0, 1))  # the spare column V takes what lies beyond a row's end
    seen = padded.gather(1, history_RT)
    # CTRL (section 4.1) divides every score, which would make negative ones likelier: those are multiplied.
    seen = torch.where(seen < 0, seen * penalty, seen / penalty)
    return padded.scatter(1, history_RT, seen)[:, :-1]


def penalise_counts(
    scores_RV: Tensor, history_RT: Tensor, given_R: Tensor, presence: float, frequency: float
) -> Tensor:
    """Takes `presence` off the scores of tokens that stand behind the `given_R` first ones of a row's
    history, and `frequency` for each time. Cells beyond a row's length hold V."""
    rows, vocabulary = scores_RV.shape
    places_T = torch.arange(history_RT.shape[1], device=scores_RV.device)
    new_RT = history_RT.masked_fill(places_T < given_R[:, None], vocabulary)
    counts = scores_RV.new_zeros(rows, vocabulary + 1)
    counts_RV = counts.scatter_add_(1, new_RT, torch.ones_like(new_RT, dtype=counts.dtype))[:, :-1]
    return scores_RV - presence * (counts_RV > 0) - frequency * counts_RV


def forbid_repeated_ngrams(scores_RV: Tensor, history_RT: Tensor, lengths_R: Tensor, size: int) -> Tensor:
    """Forbids tokens that would complete the same `size` tokens a second time. Cells beyond a row's length
    hold V."""
    rows, vocabulary = scores_RV.shape
    if history_RT.shape[1] < size:
        return scores_RV
    back = torch.arange(size - 1, 0, -1, device=scores_RV.device)
    suffix = history_RT.gather(1, (lengths_R[:, None] - back).clamp(min=0))
    windows = history_RT.unfold(1, size, 1)
    repeats = (windows[..., :-1] == suffix[:, None]).all(-1)
    # An incomplete window ends beyond its row, in a cell that holds V already: the spare column.
    banned = torch.where(repeats, windows[..., -1], vocabulary)
    mask = torch.zeros(rows, vocabulary + 1, dtype=torch.bool, device=scores_RV.device)
    return scores_RV.masked_fill(mask.scatter_(1, banned, True)[:, :-1], NEVER)


def keep_top_k(scores_RV: Tensor, count: int) -> Tensor:
    """Keeps the `count` best tokens (and those that tie with the last of them)."""
    if count >= scores_RV.shape[1]:
        return scores_RV
    least = scores_RV.topk(count).values[:, -1:]
    return scores_RV.masked_fill(scores_RV < least, NEVER)


def keep_top_p(scores_RV: Tensor, mass: float) -> Tensor:
    """Keeps the fewest best tokens that together hold `mass`; the one that crosses it belongs to them."""
    ascending, order = scores_RV.sort(-1)
    unlikely = ascending.softmax(-1).cumsum(-1) <= 1 - mass
    unlikely[:, -1] = False  # the best stays, however small the mass
    return scores_RV.masked_fill(unlikely.scatter(1, order, unlikely), NEVER)


def keep_min_p(scores_RV: Tensor, share: float) -> Tensor:
    """Keeps tokens with at least this share of the likeliest one's probability."""
    probs_RV = scores_RV.softmax(-1)
    return scores_RV.masked_fill(probs_RV < share * probs_RV.amax(-1, keepdim=True), NEVER)


def keep_typical(scores_RV: Tensor, mass: float) -> Tensor:
    """Keeps tokens about as surprising as is to be expected: those with -log p nearest to the entropy, the
    fewest that together hold `mass` (Meister et al. 2023)."""
    log_probs_RV = scores_RV.log_softmax(-1)
    # A token that was filtered out has p log p = 0 * -inf: `nansum` counts it as the 0 it is in the limit.
    entropy_R1 = -(log_probs_RV * log_probs_RV.exp()).nansum(-1, keepdim=True)
    distance_RV, order = (-log_probs_RV - entropy_R1).abs().sort(-1)
    below_RV = scores_RV.gather(1, order).softmax(-1).cumsum(-1) < mass
    last_R1 = below_RV.sum(-1, keepdim=True).clamp(max=below_RV.shape[1] - 1)
    far_RV = distance_RV > distance_RV.gather(1, last_R1)
    return scores_RV.masked_fill(far_RV.scatter(1, order, far_RV), NEVER)


def warp(scores_RV: Tensor, settings: DecodingSettings) -> Tensor:
    """The distribution to sample from: temperature, top-k, top-p, min-p, typical-p, in this order."""
    if settings.temperature != 1:
        scores_RV = scores_RV / settings.temperature
    if settings.top_k:
        scores_RV = keep_top_k(scores_RV, settings.top_k)
    if settings.top_p < 1:
        scores_RV = keep_top_p(scores_RV, settings.top_p)
    if settings.min_p:
        scores_RV = keep_min_p(scores_RV, settings.min_p)
    if settings.typical_p < 1:
        scores_RV = keep_typical(scores_RV, settings.typical_p)
    return scores_RV


def likeliest(scores_RV: Tensor) -> Tensor:
    """The best token of every row, also of `[R, n, V]`."""
    if scores_RV.device.type != "cpu" or scores_RV.dtype != torch.float32:
        return scores_RV.argmax(-1)
    # PyTorch's own search took twenty times as long as NumPy's on a processor.
    return torch.from_numpy(scores_RV.numpy().argmax(-1))


def draw(scores_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    """One token a row by the inverse of the cumulative distribution, from uniform numbers in [0, 1)."""
    # In 64 bits, so that rare tokens are not lost in the rounding of the sum.
    cumulative = scores_RV.softmax(-1).cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, uniforms_R[:, None].to(total) * total, right=True)
    # Rounding can reach the very end: then it is the last token that has any probability.
    return torch.minimum(chosen, torch.searchsorted(cumulative, total.contiguous()))[:, 0]


def token_log_probs(scores: Tensor, chosen: Tensor) -> Tensor:
    """The log-probabilities `[...]` that the model itself gives chosen tokens, from its scores `[..., V]`."""
    # On a processor `logsumexp` took twice as long: 168 µs for 8 rows of 50,257, this 87.
    return scores.log_softmax(-1).gather(-1, chosen[..., None])[..., 0]


class ScoreProcessor:
    """Applies the settings' rules to the scores of all rows, and keeps the histories that they need.

    A row's history is its prompt and new tokens; of an encoder-decoder the decoder's side only.
    """

    def __init__(
        self,
        settings: DecodingSettings,
        histories: list[list[int]],
        *,
        vocabulary: int,
        end_ids: tuple[int, ...],
        absent: Tensor | None,
        device: torch.device,
        limits: list[int] | None = None,
        first_ids: tuple[int, ...] = (),
        last_ids: tuple[int, ...] = (),
    ) -> None:
        self.settings, self.vocabulary, self.absent = settings, vocabulary, absent
        self.end_ids = torch.tensor(end_ids, dtype=torch.long, device=device)
        self.new_R = torch.zeros(len(histories), dtype=torch.long, device=device)
        # What a checkpoint says its texts begin with, and end with when they reach their limit (BART).
        self.first_ids, self.last_ids = (torch.tensor(ids, device=device) for ids in (first_ids, last_ids))
        self.limits_R = torch.tensor(limits or [0] * len(histories), device=device)
        self.history_RT: Tensor | None = None
        self.counts = bool(settings.presence_penalty or settings.frequency_penalty)
        if settings.repetition_penalty != 1 or settings.no_repeat_ngram or self.counts:
            rows = [torch.tensor(row, dtype=torch.long) for row in histories]
            self.lengths_R = self.given_R = torch.tensor([len(row) for row in rows], device=device)
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=vocabulary)
            self.history_RT = padded.to(device)

    def __call__(self, scores_RV: Tensor) -> Tensor:
        settings = self.settings
        if self.absent is not None:
            scores_RV = scores_RV.index_fill(1, self.absent, NEVER)
        if self.history_RT is not None and settings.repetition_penalty != 1:
            scores_RV = penalise_repetition(scores_RV, self.history_RT, settings.repetition_penalty)
        if self.history_RT is not None and self.counts:
            penalties = settings.presence_penalty, settings.frequency_penalty
            scores_RV = penalise_counts(scores_RV, self.history_RT, self.given_R, *penalties)
        if self.history_RT is not None and settings.no_repeat_ngram:
            scores_RV = forbid_repeated_ngrams(
                scores_RV, self.history_RT, self.lengths_R, settings.no_repeat_ngram
            )
        if len(self.end_ids) and (early_R := self.new_R < settings.min_new_tokens).any():
            ends_Re = scores_RV[:, self.end_ids].masked_fill(early_R[:, None], NEVER)
            scores_RV = scores_RV.index_copy(1, self.end_ids, ends_Re)
        for ids, new_R in ((self.first_ids, 0), (self.last_ids, self.limits_R - 1)):
            if len(ids) and (now_R := self.new_R == new_R).any():
                # Forced tokens cost nothing: their score is 0, as a log-probability of 1.
                forced_RV = torch.full_like(scores_RV, NEVER).index_fill(1, ids, 0.0)
                scores_RV = torch.where(now_R[:, None], forced_RV, scores_RV)
        return scores_RV

    def append(self, tokens_R: Tensor) -> None:
        """Adds a token to every row."""
        self.new_R = self.new_R + 1
        if self.history_RT is not None:
            padded = F.pad(self.history_RT, (0, 1), value=self.vocabulary)
            self.history_RT = padded.scatter(1, self.lengths_R[:, None], tokens_R[:, None])
            self.lengths_R = self.lengths_R + 1

    def take_back(self, tokens_R: Tensor | int) -> None:
        """Removes so many of every row's last tokens."""
        self.new_R = self.new_R - tokens_R
        if self.history_RT is not None:
            self.lengths_R = self.lengths_R - tokens_R
            history_RT = self.history_RT[:, : int(self.lengths_R.max())]
            beyond = torch.arange(history_RT.shape[1], device=history_RT.device) >= self.lengths_R[:, None]
            self.history_RT = history_RT.masked_fill(beyond, self.vocabulary)

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows, in that order."""
        self.new_R, self.limits_R = self.new_R[rows], self.limits_R[rows]
        if self.history_RT is not None:
            self.history_RT, self.lengths_R = self.history_RT[rows], self.lengths_R[rows]
            self.given_R = self.given_R[rows]
