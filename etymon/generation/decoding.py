"""From prompts to new tokens: greedy, by sampling, by beam search, by contrastive search, or among choices.

Every row is computed by itself: neither padding nor the other rows of a batch change its text.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.families.special_tokens import forced_ids, start_id, token_ids
from etymon.generation.beam import beam_search
from etymon.generation.choices import choice_log_probs, choices_by_ids, choose
from etymon.generation.contrastive import contrastive_search
from etymon.generation.processors import ScoreProcessor, draw, likeliest, token_log_probs, warp
from etymon.generation.sequences import Continuations, OnToken, Sequence
from etymon.generation.speculative import Speculation, check_draft
from etymon.generation.stepper import SlidingStepper, Stepper, fork_rows
from etymon.nn.layers import eval_mode
from etymon.settings.decoding import DEFAULT_NEW_TOKENS, DecodingSettings


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
    """The new texts of every prompt, best first (sampled ones in the order of their draws).

    For an encoder-decoder the prompts are source texts. An empty prompt of a decoder starts from its
    end-of-text token. `on_token` is called for each token as it is chosen, in a beam search when a row is
    finished. Sampled texts are functions of (seed, key of the row, number of the text): `keys` are 0, 1, 2,
    ... by default. `limits` are `max_new_tokens` for every row by itself. A `draft` is a smaller model with
    the same tokenizer, which runs ahead: the texts are those of the model, only sooner.
    """
    settings = settings or DecodingSettings()
    check_generates(model)
    if not prompts:
        return []
    start = start_token(model, generating=True)
    prompts = [list(map(int, prompt)) for prompt in prompts]
    if start is None:
        prompts = [prompt or [first_token(model, generating=True)] for prompt in prompts]
    histories = prompts if start is None else [[start]] * len(prompts)
    vocabulary = int(model.heads["vocabulary"].size)  # type: ignore[arg-type]
    check_ids(prompts, vocabulary if start is None else model.source_vocabulary)
    # A folder may name several end tokens, and its generation_config.json others than its config.json.
    end_ids = settings.end_ids or token_ids(model, "end", generating=True)
    check_ids([list(end_ids)], vocabulary)
    choices = list(choices_by_ids(model, settings.choices))
    limits = token_limits(model, prompts, settings, limits, max(map(len, choices), default=None))
    longest = max(limits)
    if draft is not None:
        check_generates(draft)
        check_draft(model, draft, settings, max(map(sum, zip(map(len, histories), limits, strict=True))))
        longest += settings.draft_tokens + 1  # room in the caches for drafts that are dropped again
    keys = keys or list(range(len(prompts)))
    texts = Continuations(settings, limits, keys, end_ids, model.tokenizer, on_token)
    processor = score_processor(model, settings, histories, limits, end_ids)
    with eval_mode(model):
        slides = settings.window and model.decoder_positions is not None
        # Beams and choices add scores of several tokens up: those must be log-probabilities. A single token
        # is chosen by logits as well, without a pass over the vocabulary to normalise them.
        normalised = settings.beams > 1 or bool(choices)
        stepper = (SlidingStepper if slides else Stepper)(model, normalised=normalised)
        if settings.contrastive:
            stepper.shares_prompts = False  # the search compares with every hidden state of a prompt
        scores_RV = stepper.prefill(prompts, longest, start)
        if choices:
            return choose(stepper, scores_RV, choices, texts)
        if settings.beams > 1:
            return beam_search(stepper, processor, scores_RV, texts)
        if settings.contrastive:
            return contrastive_search(stepper, processor, scores_RV, texts)
        if draft is None:
            return _token_by_token(stepper, processor, scores_RV, texts)
        with eval_mode(draft):
            ahead = Stepper(draft, normalised=False)
            ahead.prefill(prompts, longest, start_token(draft, generating=True))
            return Speculation(stepper, ahead, processor, texts).run(scores_RV)


@torch.inference_mode()
def score_answers(
    model: Model, prompts: list[list[int]], answers: SequenceOf[tuple[int, ...]]
) -> list[list[float]]:
    """The log-probability of every answer behind every prompt, or given it as the source of an
    encoder-decoder: exactly the model's own, of all the answer's tokens."""
    check_generates(model)
    start, vocabulary = start_token(model, generating=True), int(model.heads["vocabulary"].size)  # type: ignore[arg-type]
    check_ids(prompts, vocabulary if start is None else model.source_vocabulary)
    longest = max(map(len, answers))
    token_limits(model, prompts, DecodingSettings(), None, longest)  # refuses what there is no room for
    with eval_mode(model):
        stepper = Stepper(model, normalised=True)
        scores_RV = stepper.prefill(prompts, longest, start)
        rows = choice_log_probs(stepper, scores_RV, answers)
    return [[math.fsum(tokens) for tokens in row] for row in rows]


def _token_by_token(
    stepper: Stepper, processor: ScoreProcessor, scores_RV: Tensor, texts: Continuations
) -> list[list[Sequence]]:
    """Greedy decoding and sampling. `scores_RV` are those of the first token."""
    settings, device, longest = texts.settings, scores_RV.device, max(texts.limits)
    scores_RV = fork_rows(texts.copies, scores_RV, processor, stepper)
    uniforms = torch.from_numpy(texts.uniforms(longest)[:, :, 0]).to(device) if settings.sample else None
    rows = list(range(len(texts.ids)))
    for step in range(longest):
        allowed_RV = processor(scores_RV)
        if uniforms is None:
            chosen_R = likeliest(allowed_RV)
        else:
            chosen_R = draw(warp(allowed_RV, settings), uniforms[rows, step])
        going_on = texts.add_all(rows, chosen_R, token_log_probs(scores_RV, chosen_R))
        if not going_on:
            break
        processor.append(chosen_R)
        if len(going_on) < len(rows):
            # Finished rows leave the batch, so that nothing is computed for them any more.
            kept = torch.tensor(going_on, device=device)
            rows = [rows[place] for place in going_on]
            chosen_R = chosen_R[kept]
            processor.select(kept)
            stepper.select(kept)
        # `step` last: the token of the last turn is not read, since nothing follows it.
        scores_RV = stepper.step(chosen_R)
    return texts.results()


def score_processor(
    model: Model,
    settings: DecodingSettings,
    histories: list[list[int]],
    limits: list[int],
    end_ids: tuple[int, ...],
) -> ScoreProcessor:
    """The rules for the scores of rows with these histories: those of the settings and of the model's
    folder."""
    vocabulary = int(model.heads["vocabulary"].size)  # type: ignore[arg-type]
    return ScoreProcessor(
        settings,
        histories,
        vocabulary=vocabulary,
        end_ids=end_ids,
        absent=absent_ids(model, vocabulary),
        device=model.device,
        limits=limits,
        first_ids=forced_ids(model, "forced_bos_token_id") if model.encoder_decoder else (),
        last_ids=forced_ids(model, "forced_eos_token_id"),
    )


# --- what is checked before work starts


def check_generates(model: Model) -> None:
    """Refuses a model that does not write from left to right."""
    model.require_vocabulary("generate")
    if "state" not in model.capabilities:
        hint = ": it fills blanks (etymon fill)" if "bidirectional" in model.capabilities else ""
        raise EtymonError(
            f"{model.family.title} does not generate from left to right{hint}", code="wrong-family"
        )


def check_ids(rows: list[list[int]], vocabulary: int) -> None:
    """Refuses ids that are outside the vocabulary."""
    for row in rows:
        if row and not 0 <= min(row) <= max(row) < vocabulary:
            wrong = max(row) if max(row) >= vocabulary else min(row)
            raise EtymonError(f"token id {wrong} is outside the model's vocabulary of {vocabulary} tokens")


def start_token(model: Model, *, generating: bool = False) -> int | None:
    """The token that a decoder over an encoder begins with; None if there is no encoder."""
    return start_id(model, generating=generating) if model.encoder_decoder else None


def first_tokens(model: Model, *, generating: bool = False) -> list[int]:
    """The token before every text: the begin token or else the end-of-text token. Empty for the published
    models of GPT-1, which have neither."""
    roles = (token_ids(model, role, generating=generating) for role in ("begin", "end"))
    return [ids[0] for ids in roles if ids][:1]


def first_token(model: Model, *, generating: bool = False) -> int:
    """The same where there must be a token to start from."""
    if not (ids := first_tokens(model, generating=generating)):
        raise EtymonError(
            "the prompt is empty and the model has no end-of-text token to start from: give a prompt"
        )
    return ids[0]


def token_limits(
    model: Model,
    prompts: list[list[int]],
    settings: DecodingSettings,
    row_limits: list[int] | None,
    longest_choice: int | None,
) -> list[int]:
    """The most new tokens of every row. Refuses prompts that leave no room for them."""
    limits = []
    positions = model.decoder_positions
    for number, prompt in enumerate(prompts):
        used = len(prompt)
        if model.encoder_decoder:
            if model.positions is not None and used > model.positions:
                raise EtymonError(
                    f"the source has {used} tokens, but the model reads {model.positions}: shorten it",
                    code="too-long",
                )
            used = 0  # the decoder's positions are its own
        room = sys.maxsize if settings.window or positions is None else positions - used
        if room < 1:
            raise EtymonError(
                f"the prompt has {used} tokens and the model {positions} positions: there is no room for new "
                "tokens, shorten the prompt, or let a window slide (etymon generate --window)",
                code="too-long",
            )
        wanted = longest_choice or (settings.max_new_tokens if row_limits is None else row_limits[number])
        if wanted is None:
            wanted = max(min(DEFAULT_NEW_TOKENS, room), settings.min_new_tokens)
        if wanted > room:
            verb = "ask for at most" if longest_choice is None else "choices may have"
            hint = ", or let a window slide (etymon generate --window)" if longest_choice is None else ""
            raise EtymonError(
                f"{used} tokens of prompt and {wanted} new ones are {used + wanted}, but the model has "
                f"{positions} positions: {verb} {room} new tokens, shorten the prompt{hint}",
                code="too-long",
            )
        limits.append(wanted)
    return limits


def absent_ids(model: Model, vocabulary: int) -> Tensor | None:
    """Ids that the model has a vector for and the tokenizer no token: a padded vocabulary (published T5
    folders have 32,128 vectors for 32,100 tokens), or a gap."""
    if model.tokenizer is None:
        return None
    gaps = [number for number, token in enumerate(model.tokenizer.tokens) if token == ""]
    absent = gaps + list(range(model.tokenizer.size, vocabulary))
    return torch.tensor(absent, device=model.device) if absent else None
