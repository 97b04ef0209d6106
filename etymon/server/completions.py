"""`/v1/completions`: OpenAI's protocol over the texts that a decoder writes."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import check_ids, decode, first_token
from etymon.generation.sequences import Sequence as Decoded
from etymon.generation.text import encode_prompts, new_generation, source_tokenizer_of, tokenizer_of
from etymon.server.errors import ApiError
from etymon.server.jobs import DeadlineError, NewToken, ScoredToken, TextJob, WrittenTexts
from etymon.server.responses import json_response
from etymon.server.schemas import CompletionRequest
from etymon.server.state import ServerState
from etymon.server.store import ServedModel
from etymon.settings.decoding import COLDEST, DecodingSettings
from etymon.text.tokenizer import BYTE_KINDS, Tokenizer, token_bytes

# `top_p` of 0 means the likeliest token alone.
SMALLEST_MASS = 1e-9
# Unicode's line breaks, spelled out; those of ASCII are spelled out by JSON itself.
LINE_BREAKS = {number: f"\\u{number:04x}" for number in (0x85, 0x2028, 0x2029)}


@dataclass(frozen=True)
class PromptTokens:
    """A prompt as text and as tokens."""

    text: str
    ids: list[int]


def read_prompts(served: ServedModel, given: Any) -> list[PromptTokens]:
    """The prompts of a request: texts, or token ids."""
    model = served.model
    inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    if isinstance(inputs[0], str):
        encoded = encode_prompts(model, inputs)
        prompts = [PromptTokens(text, ids) for text, ids in zip(inputs, encoded, strict=True)]
    else:
        check_ids(inputs, model.source_vocabulary)
        reader = source_tokenizer_of(model)
        # A padded vocabulary has ids without a token, which have no text.
        decodable = [[number for number in ids if number < reader.size] for ids in inputs]
        prompts = [
            PromptTokens(reader.decode(part), ids) for part, ids in zip(decodable, inputs, strict=True)
        ]
    if model.encoder_decoder:
        return prompts
    # As `generate` does: an empty prompt starts from the end-of-text token.
    return [
        prompt if prompt.ids else PromptTokens(prompt.text, [first_token(model, generating=True)])
        for prompt in prompts
    ]


def decoding_settings(body: CompletionRequest, limit: int, seed: int) -> DecodingSettings:
    """The same words as those of `etymon generate`."""
    # OpenAI's default: `etymon generate` is greedy unless told.
    temperature = 1.0 if body.temperature is None else body.temperature
    sampling: dict[str, Any] = {}
    returns = body.best_of or body.n or 1
    if body.beams > 1:
        sampling = {"beams": body.beams, "returns": body.n or 1}
    # Colder than that, scores would be no numbers any more: it is taken for 0.
    elif temperature >= COLDEST:
        sampling = {
            "sample": True,
            "temperature": temperature,
            "top_k": body.top_k,
            "top_p": max(SMALLEST_MASS, 1.0 if body.top_p is None else body.top_p),
            "min_p": body.min_p,
            "typical_p": body.typical_p,
            "returns": returns,
        }
    return DecodingSettings(
        # Of the prompt alone (0) nothing is written, and the settings know no such number.
        max_new_tokens=max(1, limit),
        min_new_tokens=body.min_tokens,
        no_repeat_ngram=body.no_repeat_ngram,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        stop=body.stops,
        log_probs=True,
        seed=seed,
        **sampling,
    )


def draw_seed(body: CompletionRequest) -> int:
    """The request's seed, or another one every time."""
    return secrets.randbits(63) if body.seed is None else body.seed % 2**64


def new_token_limit(model: Model, prompt: list[int], wanted: int | None, state: ServerState) -> int:
    """How many new tokens a prompt may get. Refuses what the model or the server has no room for."""
    used, positions = len(prompt), model.decoder_positions
    if model.encoder_decoder:
        if model.positions is not None and used > model.positions:
            message = f"the prompt has {used} tokens, and the model reads {model.positions}: shorten it"
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")
        # The decoder's positions are its own.
        used = 0
    room = state.limits.tokens if positions is None else positions - used
    limit = min(16, room) if wanted is None else wanted
    if limit > room or room < 0:
        raise ApiError(
            400,
            f"{used} tokens of prompt and {limit} new ones are {used + limit}, and the model has "
            f"{positions or room} positions: ask for at most {max(0, room)} new tokens, or shorten the "
            "prompt",
            param="max_tokens",
            code="context_length_exceeded",
        )
    # The model's own limit first: its message says more.
    state.require_tokens(len(prompt) + limit, "the prompt with its new tokens")
    return limit


async def complete(state: ServerState, body: CompletionRequest, request: Request) -> Response:
    """Writes the texts of a request, and sends them at the end or as they come."""
    served = await state.open(body.model, "vocabulary", ability="completions")
    model = served.model
    if body.echo and model.encoder_decoder:
        message = f"{model.family.title} reads a source and writes another text: leave echo out"
        raise ApiError(400, message, param="echo", code="unsupported")
    # Elsewhere, since a long text takes a while: streams of others go on meanwhile.
    prompts = await asyncio.to_thread(read_prompts, served, body.prompt)
    limits = [new_token_limit(model, prompt.ids, body.max_tokens, state) for prompt in prompts]
    completion = Completion(body, tokenizer_of(model), prompts)
    request.scope["etymon"] |= {"texts": [prompt.text for prompt in prompts]}
    if body.beams > 1:
        return await completion.search(state, served, limits, request)
    decoder = await state.decoder(served, request)
    # What a slow reader has not read yet waits here: never more than the tokens that were asked for.
    events: asyncio.Queue[tuple[int, NewToken | None]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listener(number: int) -> Callable[[NewToken | None], None]:
        def put(token: NewToken | None) -> None:
            with suppress(RuntimeError):  # the server has stopped, and nobody listens any more
                loop.call_soon_threadsafe(events.put_nowait, (number, token))

        return put

    # One for all prompts: each draws by its number as well.
    seed = draw_seed(body)
    jobs = [
        TextJob(
            prompt.ids,
            decoding_settings(body, limit, seed),
            limit,
            key=number,
            # To rank texts, their own log-probabilities are enough.
            top=body.logprobs if body.logprobs is not None else 0 if completion.ranks else None,
            scores_prompt=bool(body.echo and body.logprobs is not None),
            on_token=listener(number) if body.stream else None,
            deadline=state.deadline,
        )
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    state.submit(lambda: state.scheduler.submit_texts(decoder, jobs))
    if not body.stream:
        written = await state.wait(request, jobs)
        # By prompt: each has waited for its own.
        for texts in written:
            state.metrics.observe("etymon_first_token_seconds", texts.first_token)
        answer = completion.answer(written)
        request.scope["etymon"] |= {"usage": answer["usage"]}
        return json_response(answer)
    for number, job in enumerate(jobs):
        # When all of a prompt's texts have ended, or it has failed, the stream has to know.
        job.future.add_done_callback(partial(_put_end, listener(number)))
    stream = completion.stream(state, jobs, events, request)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _put_end(put: Callable[[None], None], future: object) -> None:
    put(None)


class Completion:
    """One request's answer, in parts or as a whole."""

    def __init__(self, body: CompletionRequest, tokenizer: Tokenizer, prompts: list[PromptTokens]) -> None:
        self.body, self.tokenizer, self.prompts = body, tokenizer, prompts
        self.id, self.created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self.copies = body.n or 1
        self.ranks = body.best_of is not None and body.best_of > self.copies
        self.prompt_tokens = sum(len(prompt.ids) for prompt in prompts)

    def answer(self, written: list[WrittenTexts]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        new_tokens = 0
        for number, texts in enumerate(written):
            new_tokens += sum(len(sequence.ids) for sequence in texts.sequences)
            order = list(range(len(texts.sequences)))
            if self.ranks:  # the likeliest by the token, as OpenAI defines the best
                order.sort(key=lambda copy: -_mean(texts.sequences[copy]))
            # Greedy texts of one prompt are all the same one.
            for copy in (order * self.copies)[: self.copies]:
                choices.append(
                    self._choice(len(choices), number, texts.sequences[copy], texts.scores[copy], texts)
                )
        return {**self.head(), "choices": choices, "usage": self.usage(new_tokens)}

    def head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.body.model}

    def usage(self, new_tokens: int) -> dict[str, int]:
        total = self.prompt_tokens + new_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": new_tokens, "total_tokens": total}

    def _choice(
        self, index: int, number: int, sequence: Decoded, scores: list[ScoredToken], texts: WrittenTexts
    ) -> dict[str, Any]:
        body, prompt = self.body, self.prompts[number]
        text = new_generation("", sequence, self.tokenizer, body.stops).text if body.max_tokens != 0 else ""
        logprobs = None
        if body.logprobs is not None:
            choice_scores = [*texts.prompt_scores, *scores] if body.echo else scores
            begin = 0 if body.echo else len(prompt.text)
            logprobs, _ = self.logprobs(choice_scores, begin)
        choice = {
            "index": index,
            "text": prompt.text + text if body.echo else text,
            "logprobs": logprobs,
            "finish_reason": "stop" if sequence.finished else "length",
        }
        return {**choice, "token_ids": sequence.ids} if body.return_token_ids else choice

    def logprobs(self, scores: list[ScoredToken], offset: int) -> tuple[dict[str, Any], int]:
        """Log-probabilities in OpenAI's form, and where the next token's text begins."""
        # Pieces of a stream add up to the text, whatever the tokenizer does with spaces; tokens by themselves
        # do not.
        offsets = []
        stream = self.tokenizer.stream(skip_special=False)
        for score in scores:
            offsets.append(offset)
            offset += len(stream.feed(score.id)) if score.id < self.tokenizer.size else 0
        tops: list[dict[str, float] | None] = []
        for score in scores:
            top: dict[str, float] = {}
            for number, value in score.top:
                # Two tokens may be spelled alike: the likelier one comes first.
                top.setdefault(token_text(self.tokenizer, number), value)
            # As OpenAI does: the token itself is always among them.
            if score.log_prob is not None and self.body.logprobs:
                top.setdefault(token_text(self.tokenizer, score.id), score.log_prob)
            tops.append(None if score.log_prob is None else top)
        logprobs = {
            "tokens": [token_text(self.tokenizer, score.id) for score in scores],
            "token_logprobs": [score.log_prob for score in scores],
            "top_logprobs": tops,
            "text_offset": offsets,
        }
        return logprobs, offset

    async def stream(
        self,
        state: ServerState,
        jobs: list[TextJob],
        events: asyncio.Queue[tuple[int, NewToken | None]],
        request: Request,
    ) -> AsyncIterator[bytes]:
        """Server-sent events: a part of a text each, then the usage if it was asked for."""
        body, new_tokens, ended = self.body, 0, 0
        offsets = [[0 if body.echo else len(prompt.text)] * self.copies for prompt in self.prompts]
        began: set[tuple[int, int]] = set()
        try:
            while ended < len(jobs):
                number, token = await events.get()
                if token is None:
                    error = jobs[number].future.exception()
                    if error is not None:
                        raise error
                    ended += 1
                    if body.max_tokens == 0:  # the prompt alone
                        (choice,) = self.answer([jobs[number].future.result()])["choices"][:1]
                        yield self._event([{**choice, "index": number * self.copies}])
                    continue
                new_tokens += 1
                if new_tokens == 1:
                    state.metrics.observe("etymon_first_token_seconds", jobs[number].first_token)
                # Greedy texts of one prompt are all the same one.
                copies = range(self.copies) if jobs[number].copies == 1 else [token.copy]
                for copy in copies:
                    if choice := self._part(number, copy, token, jobs[number], offsets, began):
                        yield self._event([choice])
            usage = self.usage(new_tokens)
            request.scope["etymon"] |= {"usage": usage}
            # As a last event without choices, as OpenAI sends it.
            if body.stream_options is not None and body.stream_options.include_usage:
                yield self._event([], usage)
            yield b"data: [DONE]\n\n"
        except DeadlineError:
            yield _error_event(state.too_late())
        except Exception as error:
            refusal = ApiError(400, str(error)) if isinstance(error, EtymonError) else None
            yield _error_event(
                refusal or ApiError(500, "the text was lost by a mistake of the server: ask again")
            )
        finally:  # also where the client has gone: its rows are free before the next step
            for job in jobs:
                job.cancel()

    def _part(
        self,
        number: int,
        copy: int,
        token: NewToken,
        job: TextJob,
        offsets: list[list[int]],
        began: set[tuple[int, int]],
    ) -> dict[str, Any] | None:
        body, text, scores = self.body, token.piece, [token.score]
        # The prompt comes with the first token, when its own log-probabilities are there.
        if body.echo and (number, copy) not in began:
            text, scores = self.prompts[number].text + text, [*job.prompt_scores, token.score]
        began.add((number, copy))
        if not (text or token.reason or body.logprobs is not None or body.return_token_ids):
            return None  # a part of a character, or of what may become a stop string
        logprobs = None
        if body.logprobs is not None:
            logprobs, offsets[number][copy] = self.logprobs(scores, offsets[number][copy])
        index = number * self.copies + copy
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": token.reason}
        return {**choice, "token_ids": [token.score.id]} if body.return_token_ids else choice

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        # Not through `json_text`: this runs once a token, and all its numbers are finite.
        event = {**self.head(), "choices": choices, **({} if usage is None else {"usage": usage})}
        # Some readers of lines end them at these as well, and would see half an event.
        text = json.dumps(event, ensure_ascii=False).translate(LINE_BREAKS)
        return f"data: {text}\n\n".encode("utf-8", "replace")

    async def search(
        self, state: ServerState, served: ServedModel, limits: list[int], request: Request
    ) -> Response:
        """By beams: whole texts at the end, computed by itself."""
        body, ids = self.body, [prompt.ids for prompt in self.prompts]
        # The key below has the settings in it: only equal searches are computed together.
        settings = decoding_settings(body, max(limits), 0)

        def run(items: list[tuple[list[int], int]]) -> list[list[Decoded]]:
            prompts, row_limits = [ids for ids, _ in items], [limit for _, limit in items]
            return decode(served.model, prompts, settings, limits=row_limits)

        items = list(zip(ids, limits, strict=True))
        answers = await state.call(request, ("beams", served.name, settings), items, run)
        written = [WrittenTexts(beams, [[] for _ in beams], [], 0.0) for beams in answers]
        answer = self.answer(written)
        if not body.stream:
            return json_response(answer)
        events = [self._event([choice]) for choice in answer["choices"]]
        return Response(b"".join([*events, b"data: [DONE]\n\n"]), media_type="text/event-stream")


def _mean(sequence: Decoded) -> float:
    return sequence.log_prob / max(1, len(sequence.ids))


def _error_event(error: ApiError) -> bytes:
    return f"data: {json.dumps(error.body())}\n\n".encode()


def token_text(tokenizer: Tokenizer, number: int) -> str:
    """A token by itself; bytes that are no whole character are spelled out, as OpenAI spells them."""
    if number >= tokenizer.size:
        return f"id:{number}"
    token = tokenizer.tokens[number]
    # Special tokens have no bytes of their own in a byte-level vocabulary.
    if number in tokenizer.special_ids:
        return token
    if tokenizer.kind in BYTE_KINDS:
        raw = token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return token.replace("\u2581", " ")
