"""From prompts to new tokens: greedy, by sampling, or by beam search.

Every row is on its own: neither padding nor the other rows of a batch change what it becomes.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.beam import beam_search
from etymon.generation.processors import Processing, draw, warp
from etymon.generation.sequences import Sequence
from etymon.generation.settings import DEFAULT_NEW_TOKENS, DecodingSettings
from etymon.generation.stepping import Stepper
from etymon.generation.stopping import watcher

OnToken = Callable[[int, int, int], None]
"""Called with the row, the number of the text among the row's texts, and the new token."""


@torch.inference_mode()
def decode(
    model: Model,
    prompts: list[list[int]],
    settings: DecodingSettings | None = None,
    on_token: OnToken | None = None,
    *,
    keys: list[int] | None = None,
) -> list[list[Sequence]]:
    """For every prompt its new texts, best first (sampled ones in the order of their draws).

    For an encoder-decoder the prompts are source texts. An empty prompt of a decoder starts from its end-of-text
    token. `on_token` hears of each token as it is chosen, or of a beam search's results at the end of a row.
    Sampled texts are functions of (seed, key of the row, number of the text): `keys` are 0, 1, 2, ... unless told.
    """
    settings = settings or DecodingSettings()
    _check_model(model)
    if not prompts:
        return []
    start = start_token(model)
    prompts = [list(map(int, prompt)) for prompt in prompts]
    if start is None:
        prompts = [prompt or [first_token(model)] for prompt in prompts]
    vocabulary = int(model.heads["vocabulary"].size)  # type: ignore[arg-type]
    check_ids(prompts, vocabulary)
    limits = _limits(model, prompts, settings)
    end_ids = _end_ids(model, settings)
    check_ids([list(end_ids)], vocabulary)
    stopped = None
    if settings.stop:
        if model.tokenizer is None:
            raise EtymonError("stop strings need the model's tokenizer, and it has none: use end_ids instead")
        stopped = watcher(model.tokenizer, settings.stop)
    with evaluating(model):
        stepper = Stepper(model, normalised=settings.beams > 1)
        scores_RV = stepper.prefill(prompts, max(limits), start)
        processing = Processing(
            settings,
            prompts if start is None else [[start]] * len(prompts),
            vocabulary=vocabulary,
            end_ids=end_ids,
            absent=absent_ids(model, vocabulary),
            device=model.device,
        )
        if settings.beams > 1:
            return beam_search(
                stepper, processing, scores_RV, settings, limits, end_ids, stopped=stopped, on_token=on_token
            )
        keys = list(range(len(prompts))) if keys is None else keys
        return _follow(
            stepper,
            processing,
            scores_RV,
            settings,
            limits,
            end_ids,
            keys,
            stopped=stopped,
            on_token=on_token,
        )


def _follow(
    stepper: Stepper,
    processing: Processing,
    scores_RV: Tensor,
    settings: DecodingSettings,
    limits: list[int],
    end_ids: tuple[int, ...],
    keys: list[int],
    *,
    stopped: Callable[[list[int]], bool] | None,
    on_token: OnToken | None,
) -> list[list[Sequence]]:
    """Greedy decoding and sampling: one text a row, each token settled when it is chosen."""
    copies, device = settings.returns, scores_RV.device
    total = len(limits) * copies
    if copies > 1:
        forked = torch.arange(len(limits), device=device).repeat_interleave(copies)
        stepper.fork(copies)
        processing.select(forked)
        scores_RV = scores_RV[forked]
    uniforms = np.empty((0, 0))
    if settings.sample:
        generators = [
            np.random.default_rng((settings.seed, key, copy)) for key in keys for copy in range(copies)
        ]
        uniforms = np.stack([generator.random(max(limits)) for generator in generators])
    tokens: list[list[int]] = [[] for _ in range(total)]
    log_probs = [0.0] * total
    finished = [False] * total
    rows = list(range(total))
    for step in range(max(limits)):
        allowed_RV = processing(scores_RV)
        if settings.sample:
            uniforms_R = torch.from_numpy(uniforms[rows, step]).to(device)
            chosen_R = draw(warp(allowed_RV, settings), uniforms_R)
        else:
            chosen_R = allowed_RV.argmax(-1)
        own_R = scores_RV.gather(1, chosen_R[:, None])[:, 0] - scores_RV.logsumexp(-1)
        going_on = []
        for place, (row, token, own) in enumerate(zip(rows, chosen_R.tolist(), own_R.tolist(), strict=True)):
            tokens[row].append(token)
            log_probs[row] += own
            if on_token is not None:
                on_token(row // copies, row % copies, token)
            finished[row] = token in end_ids or (stopped is not None and stopped(tokens[row]))
            if not finished[row] and len(tokens[row]) < limits[row // copies]:
                going_on.append(place)
        if not going_on:
            break
        processing.append(chosen_R)
        if len(going_on) < len(rows):
            kept = torch.tensor(going_on, device=device)
            rows = [rows[place] for place in going_on]
            chosen_R = chosen_R[kept]
            processing.select(kept)
            stepper.select(kept)
        scores_RV = stepper.step(chosen_R)
    results = [
        Sequence(ids, log_prob, log_prob, done)
        for ids, log_prob, done in zip(tokens, log_probs, finished, strict=True)
    ]
    return [results[first : first + copies] for first in range(0, total, copies)]


# --- what can be known before work starts


def _check_model(model: Model) -> None:
    if "vocabulary" not in model.heads:
        raise EtymonError(
            f"this {model.family.title} has no vocabulary head and cannot generate: load a language model"
        )
    if "state" not in model.capabilities:
        raise EtymonError(
            f"{model.family.title} does not generate from left to right: it fills blanks (etymon fill)"
        )


def check_ids(rows: list[list[int]], vocabulary: int) -> None:
    for row in rows:
        if row and not 0 <= min(row) <= max(row) < vocabulary:
            wrong = max(row) if max(row) >= vocabulary else min(row)
            raise EtymonError(f"token id {wrong} is outside the model's vocabulary of {vocabulary} tokens")


def start_token(model: Model) -> int | None:
    """The token that a decoder over an encoder begins with; None if there is no encoder."""
    if not model.encoder_decoder:
        return None
    # The tokenizer knows no such role: the checkpoint's configuration, or else the family's custom.
    start = model.carried.get("decoder_start_token_id")
    if start is None and model.family.decoder_start is not None:
        start = model.token(model.family.decoder_start)
    if start is None:
        raise EtymonError(
            "the model does not say what its decoder starts with: set decoder_start_token_id in config.json"
        )
    return int(start)


def first_token(model: Model) -> int:
    first = model.token("begin")
    first = model.token("end") if first is None else first
    if first is None:
        raise EtymonError(
            "the prompt is empty and the model has no end-of-text token to start from: give a prompt"
        )
    return first


def _end_ids(model: Model, settings: DecodingSettings) -> tuple[int, ...]:
    if settings.end_ids:
        return settings.end_ids
    listed = model.carried.get("eos_token_id")
    if isinstance(listed, list):
        return tuple(listed)
    end = model.token("end")
    return () if end is None else (end,)


def _limits(model: Model, prompts: list[list[int]], settings: DecodingSettings) -> list[int]:
    """How many tokens each row may get."""
    limits = []
    for prompt in prompts:
        used, positions = len(prompt), model.positions
        if model.encoder_decoder:
            if positions is not None and used > positions:
                raise EtymonError(
                    f"the source has {used} tokens, but the model reads {positions}: shorten it"
                )
            used, positions = 0, model.body.decoder.positions
        room = DEFAULT_NEW_TOKENS if positions is None else positions - used
        if positions is not None and room < 1:
            raise EtymonError(
                f"the prompt has {used} tokens and the model {positions} positions: there is no room for new "
                "tokens, shorten the prompt"
            )
        asked = settings.max_new_tokens
        if asked is None:  # as usual, or the room that is left
            asked = max(min(DEFAULT_NEW_TOKENS, room), settings.min_new_tokens)
        if positions is not None and asked > room:
            raise EtymonError(
                f"{used} tokens of prompt and {asked} new ones are {used + asked}, but the model has {positions} "
                f"positions: ask for at most {room} new tokens, or shorten the prompt"
            )
        limits.append(asked)
    return limits


def absent_ids(model: Model, vocabulary: int) -> Tensor | None:
    """Ids that the model has a vector for and the tokenizer no token: a padded vocabulary, or a gap."""
    if model.tokenizer is None:
        return None
    gaps = [number for number, token in enumerate(model.tokenizer.tokens) if token == ""]
    absent = gaps + list(range(model.tokenizer.size, vocabulary))
    return torch.tensor(absent, device=model.device) if absent else None


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Dropout is off, and afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
