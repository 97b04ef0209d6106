"""From texts to texts: prompts are encoded, new tokens decoded, streamed and cut at stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import choices_of, decode
from etymon.generation.sequences import Sequence as Decoded
from etymon.generation.settings import DecodingSettings
from etymon.generation.stopping import StopFilter, cut
from etymon.text.tokenizer import Tokenizer, TokenStream

OnText = Callable[[int, int, str], None]
"""Called with the number of the prompt, of the text among its texts, and a piece of new text."""


@dataclass(frozen=True)
class Generation:
    """One new text."""

    prompt: str
    text: str
    """The new text alone, cut before the first stop string."""
    ids: list[int]
    """Every new token, those of the stop string and the end included."""
    log_prob: float
    score: float
    finished: bool
    """It came to an end by itself: an end token or a stop string, and not just the limit."""
    pieces: list[str] | None = None
    """Its tokens as the tokenizer spells them, and what the model gave each, if it was asked for."""
    token_log_probs: list[float] | None = None


def tokenizer_of(model: Model) -> Tokenizer:
    """The model's tokenizer, or a clear refusal."""
    if model.tokenizer is None:
        raise EtymonError(
            f"this {model.family.title} has no tokenizer, so it cannot read text: put tokenizer.json into its folder"
        )
    return model.tokenizer


def source_tokenizer_of(model: Model) -> Tokenizer:
    """The tokenizer of prompts: the source's own, where it has one."""
    return model.source_tokenizer or tokenizer_of(model)


def encode_prompts(model: Model, prompts: Sequence[str]) -> list[list[int]]:
    """Ids as a decode wants them: a source is framed as the family frames a text, a prompt is left open."""
    tokenizer = source_tokenizer_of(model)
    encoded = tokenizer.encode_batch(list(prompts))
    if model.encoder_decoder:
        encoded = [tokenizer.framing.frame(ids).ids for ids in encoded]
    return [ids.tolist() for ids in encoded]


def generate_texts(
    model: Model,
    prompts: Sequence[str],
    settings: DecodingSettings | None = None,
    on_text: OnText | None = None,
    *,
    batch_size: int = 32,
    draft: Model | None = None,
) -> list[Generation]:
    """The new texts of all prompts, `returns` for each in turn. What `on_text` hears of a text adds up to it exactly.

    A `draft` is a smaller model of the same tokenizer that runs ahead (see `decode`).
    """
    if batch_size < 1:
        raise EtymonError(f"batch_size is {batch_size}: it must be 1 or more")
    settings = settings or DecodingSettings()
    tokenizer = tokenizer_of(model)
    encoded = encode_prompts(model, prompts)
    choices = choices_of(model, settings) if settings.choices else {}

    def generation(prompt: str, sequence: Decoded) -> Generation:
        # A choice comes out as it was given, also from a tokenizer that cannot spell it.
        text = choices.get(tuple(sequence.ids))
        if text is None:
            text = cut(tokenizer.decode(sequence.ids, whole=True), settings.stop)
        shown = sequence.token_log_probs is not None
        return Generation(
            prompt,
            text,
            sequence.ids,
            sequence.log_prob,
            sequence.score,
            sequence.finished,
            [tokenizer.tokens[number] for number in sequence.ids] if shown else None,
            sequence.token_log_probs,
        )

    results: list[Generation] = []
    for first in range(0, len(prompts), batch_size):
        keys = list(range(first, min(first + batch_size, len(prompts))))
        streams = None
        if on_text is not None and not choices:
            streams = _Streams(tokenizer, settings.stop, on_text, first)
        decoded = decode(
            model,
            [encoded[key] for key in keys],
            settings,
            None if streams is None else streams.feed,
            keys=keys,
            draft=draft,
        )
        if streams is not None:
            streams.finish()
        for key, sequences in zip(keys, decoded, strict=True):
            found = [generation(prompts[key], sequence) for sequence in sequences]
            if on_text is not None and choices:
                for number, one in enumerate(found):
                    on_text(key, number, one.text)
            results += found
    return results


class _Streams:
    """Tokens of several texts to pieces of text: never half a character, never the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], on_text: OnText, first: int) -> None:
        self.tokenizer, self.stops, self.on_text, self.first = tokenizer, stops, on_text, first
        self.open: dict[tuple[int, int], tuple[TokenStream, StopFilter]] = {}

    def feed(self, row: int, number: int, token: int) -> None:
        if (row, number) not in self.open:
            self.open[row, number] = (self.tokenizer.stream(), StopFilter(self.stops))
        stream, gate = self.open[row, number]
        self._emit(row, number, gate.feed(stream.feed(token)))

    def finish(self) -> None:
        for (row, number), (stream, gate) in self.open.items():
            self._emit(row, number, gate.feed(stream.finish(whole=True)) + gate.finish())

    def _emit(self, row: int, number: int, piece: str) -> None:
        if piece:
            self.on_text(self.first + row, number, piece)
