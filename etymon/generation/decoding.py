"""From prompts to new tokens: greedy, by sampling, by beam search, by contrastive search, or among choices.

Every row is on its own: neither padding nor the other rows of a batch change what it becomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.families.special_tokens import forced_ids, start_id, token_ids
from etymon.generation.beam import beam_search
from etymon.generation.choices import choice_ids, choose
from etymon.generation.contrastive import contrastive_search
from etymon.generation.following import follow
from etymon.generation.processors import Processing
from etymon.generation.sequences import OnToken, Sequence, Writing
from etymon.generation.settings import DEFAULT_NEW_TOKENS, DecodingSettings
from etymon.generation.speculative import Speculation, check_draft
from etymon.generation.stepper import SlidingStepper, Stepper
from etymon.generation.stopping import watcher


@torch.inference_mode()
def decode(
    model: Model,
    prompts: list[list[int]],
    settings: DecodingSettings | None = None,
    on_token: OnToken | None = None,
    *,
    keys: list[int] | None = None,
    limits: list[int] | None = None,
    draft: Model | None = None,
) -> list[list[Sequence]]:
    """For every prompt its new texts, best first (sampled ones in the order of their draws).

    For an encoder-decoder the prompts are source texts. An empty prompt of a decoder starts from its end-of-text
    token. `on_token` hears of each token as it is chosen, or of a beam search's results at the end of a row.
    Sampled texts are functions of (seed, key of the row, number of the text): `keys` are 0, 1, 2, ... unless told.
    `limits` are `max_new_tokens` for every row by itself.
    A `draft` is a smaller model with the same tokenizer, which runs ahead: the texts are those of the model, only sooner.
    """
    settings = settings or DecodingSettings()
    _check_model(model)
    if not prompts:
        return []
    start = start_token(model, generating=True)
    prompts = [list(map(int, prompt)) for prompt in prompts]
    if start is None:
        prompts = [prompt or [first_token(model, generating=True)] for prompt in prompts]
    vocabulary = int(model.heads["vocabulary"].size)  # type: ignore[arg-type]
    check_ids(prompts, vocabulary if start is None else model.source_vocabulary)
    choices = [] if not settings.choices else list(choices_of(model, settings))
    limits = _limits(model, prompts, settings, limits, max(map(len, choices), default=None))
    end_ids = settings.end_ids or token_ids(model, "end", generating=True)
    check_ids([list(end_ids)], vocabulary)
    stopped = None
    if settings.stop:
        if model.tokenizer is None:
            raise EtymonError("stop strings need the model's tokenizer, and it has none: use end_ids instead")
        stopped = watcher(model.tokenizer, settings.stop)
    writing = Writing(settings, limits, keys or list(range(len(prompts))), end_ids, stopped, on_token)
    longest, histories = max(limits), prompts if start is None else [[start]] * len(prompts)
    if draft is not None:
        _check_model(draft)
        needed = max(len(row) + limit for row, limit in zip(histories, limits, strict=True))
        check_draft(model, draft, settings, needed)
        longest += settings.draft_tokens + 1
    processing = Processing(
        settings,
        histories,
        vocabulary=vocabulary,
        end_ids=end_ids,
        absent=absent_ids(model, vocabulary),
        device=model.device,
        limits=limits,
        first_ids=forced_ids(model, "forced_bos_token_id") if start is not None else (),
        last_ids=forced_ids(model, "forced_eos_token_id"),
    )
    with eval_mode(model):
        stepper = _stepper(model, settings)
        scores_RV = stepper.prefill(prompts, longest, start)
        if choices:
            return choose(stepper, scores_RV, choices, writing)
        if settings.beams > 1:
            return beam_search(stepper, processing, scores_RV, writing)
        if settings.contrastive:
            return contrastive_search(stepper, processing, scores_RV, writing)
        if draft is None:
            return follow(stepper, processing, scores_RV, writing)
        with eval_mode(draft):
            ahead = Stepper(draft, normalised=False)
            ahead.prefill(prompts, longest, start_token(draft, generating=True))
            return Speculation(stepper, ahead, processing, writing).run(scores_RV)


def _stepper(model: Model, settings: DecodingSettings) -> Stepper:
    slides = settings.window and model.decoder_positions is not None
    made = (SlidingStepper if slides else Stepper)(
        model, normalised=settings.beams > 1 or bool(settings.choices)
    )
    if settings.contrastive:
        made.shares = False  # every hidden state of a prompt is looked at
    return made


# --- what can be known before work starts


def _check_model(model: Model) -> None:
    model.require_vocabulary("generate")
    if "state" not in model.capabilities:
        raise EtymonError(
            f"{model.family.title} does not generate from left to right"
            + (": it fills blanks (etymon fill)" if "bidirectional" in model.capabilities else "")
        )


def check_ids(rows: list[list[int]], vocabulary: int) -> None:
    for row in rows:
        if row and not 0 <= min(row) <= max(row) < vocabulary:
            wrong = max(row) if max(row) >= vocabulary else min(row)
            raise EtymonError(f"token id {wrong} is outside the model's vocabulary of {vocabulary} tokens")


def start_token(model: Model, *, generating: bool = False) -> int | None:
    """The token that a decoder over an encoder begins with; None if there is no encoder."""
    return start_id(model, generating=generating) if model.encoder_decoder else None


def first_tokens(model: Model, *, generating: bool = False) -> list[int]:
    """What a text stands behind: the begin token or else the end-of-text token. Published models of GPT-1 have neither."""
    known = (token_ids(model, role, generating=generating) for role in ("begin", "end"))
    return [ids[0] for ids in known if ids][:1]


def first_token(model: Model, *, generating: bool = False) -> int:
    for first in first_tokens(model, generating=generating):
        return first
    raise EtymonError(
        "the prompt is empty and the model has no end-of-text token to start from: give a prompt"
    )


def choices_of(model: Model, settings: DecodingSettings) -> dict[tuple[int, ...], str]:
    """The settings' choices by their tokens."""
    if model.tokenizer is None:
        raise EtymonError("choices need the model's tokenizer, and it has none: put it into its folder")
    return choice_ids(model.tokenizer, settings.choices, ended=model.encoder_decoder)


def _limits(
    model: Model,
    prompts: list[list[int]],
    settings: DecodingSettings,
    own: list[int] | None,
    longest_choice: int | None,
) -> list[int]:
    """How many tokens each row may get."""
    limits = []
    for number, prompt in enumerate(prompts):
        used, positions = len(prompt), model.decoder_positions
        if model.encoder_decoder:
            if model.positions is not None and used > model.positions:
                raise EtymonError(
                    f"the source has {used} tokens, but the model reads {model.positions}: shorten it"
                )
            used = 0
        asked = settings.max_new_tokens if own is None else own[number]
        asked = asked if longest_choice is None else longest_choice
        if settings.window:
            limits.append(max(DEFAULT_NEW_TOKENS, settings.min_new_tokens) if asked is None else asked)
            continue
        room = DEFAULT_NEW_TOKENS if positions is None else positions - used
        if positions is not None and room < 1:
            raise EtymonError(
                f"the prompt has {used} tokens and the model {positions} positions: there is no room for new "
                "tokens, shorten the prompt, or let a window slide (etymon generate --window)"
            )
        if asked is None:  # as usual, or the room that is left
            asked = max(min(DEFAULT_NEW_TOKENS, room), settings.min_new_tokens)
        if positions is not None and asked > room:
            what = "ask for at most" if longest_choice is None else "choices may have"
            raise EtymonError(
                f"{used} tokens of prompt and {asked} new ones are {used + asked}, but the model has {positions} "
                f"positions: {what} {room} new tokens, shorten the prompt"
                + (", or let a window slide (etymon generate --window)" if longest_choice is None else "")
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
def eval_mode(model: Model) -> Iterator[None]:
    """Dropout is off, and afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
