"""From texts to texts: prompts are encoded, new tokens decoded, streamed and cut at stop strings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.choices import choices_by_ids
from etymon.generation.decoding import decode
from etymon.generation.sequences import Sequence as Decoded
from etymon.report.inline import InlineRow
from etymon.settings.decoding import DecodingSettings
from etymon.text.token_stream import TokenStream
from etymon.text.tokenizer import Tokenizer

OnText = Callable[[int, int, str], None]
"""Called with the number of the prompt, of the text among its texts, and a piece of new text."""


if TYPE_CHECKING:
    from etymon.report.cells import Cell


@dataclass(frozen=True)
class Generation(InlineRow):
    """A new text."""

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
    """Its tokens as the tokenizer spells them, and the log-probability of each, where the settings ask for
    it."""
    token_log_probs: list[float] | None = None

    def table_row(self) -> dict[str, Cell]:
        return {"prompt": self.prompt, "text": self.text, "log-probability": round(self.log_prob, 2)}


def tokenizer_of(model: Model) -> Tokenizer:
    """The model's tokenizer. Refuses a model without."""
    if model.tokenizer is None:
        raise EtymonError(
            f"this {model.family.title} has no tokenizer, so it cannot read text: "
            "put tokenizer.json into its folder"
        )
    return model.tokenizer


def source_tokenizer_of(model: Model) -> Tokenizer:
    """The tokenizer of prompts: the encoder's, where the two sides have different ones."""
    return model.source_tokenizer or tokenizer_of(model)


def encode_prompts(model: Model, prompts: Sequence[str]) -> list[list[int]]:
    """Ids as `decode` takes them: a source is framed as the family frames a text, a prompt is left open."""
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
    """The new texts of all prompts, `returns` for each in turn. The pieces that `on_text` gets add up to the
    texts.

    A `draft` is a smaller model of the same tokenizer that runs ahead (see `decode`).
    """
    if batch_size < 1:
        raise EtymonError(f"batch_size is {batch_size}: it must be 1 or more")
    settings = settings or DecodingSettings()
    tokenizer = tokenizer_of(model)
    encoded = encode_prompts(model, prompts)
    choices = choices_by_ids(model, settings.choices)
    results: list[Generation] = []
    for first in range(0, len(prompts), batch_size):
        keys = list(range(first, min(first + batch_size, len(prompts))))
        streams = None if on_text is None or choices else _Streams(tokenizer, settings.stop, on_text, first)
        on_token = None if streams is None else streams.feed
        # Keys count over all batches, so that a text's draws do not depend on the batch size.
        batch = [encoded[key] for key in keys]
        for key, sequences in zip(
            keys, decode(model, batch, settings, on_token, keys=keys, draft=draft), strict=True
        ):
            for number, sequence in enumerate(sequences):
                # A choice comes out as it was given, also from a tokenizer that cannot spell it.
                choice = choices.get(tuple(sequence.ids))
                results.append(new_generation(prompts[key], sequence, tokenizer, settings.stop, choice))
                if on_text is not None and choice is not None:
                    on_text(key, number, choice)
        if streams is not None:
            streams.finish()
    return results


def new_generation(
    prompt: str, sequence: Decoded, tokenizer: Tokenizer, stops: Sequence[str], choice: str | None = None
) -> Generation:
    """A decoded sequence as text: that of the `choice`, or else of its tokens, cut before the first stop
    string."""
    # `whole`: where the limit cuts a character of several byte tokens, its first bytes are left out.
    text = cut_at_stop(tokenizer.decode(sequence.ids, whole=True), stops) if choice is None else choice
    pieces = None
    if sequence.token_log_probs is not None:
        pieces = [tokenizer.tokens[number] for number in sequence.ids]
    return Generation(prompt, text, pieces=pieces, **vars(sequence))


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


class StopFilter:
    """Lets streamed text through up to the first stop string, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.stopped = False
        self._held = ""

    def feed(self, piece: str, *, last: bool = False) -> str:
        """The text that is certain to stay; with the `last` piece, all that was held back."""
        if self.stopped:
            return ""
        text = self._held + piece
        certain = cut_at_stop(text, self.stops)
        self.stopped = len(certain) < len(text)
        if not (self.stopped or last):
            # The end of the text may be the beginning of a stop string: it waits for the next piece.
            beginnings = [stop[:size] for stop in self.stops for size in range(1, len(stop))]
            held = max((len(start) for start in beginnings if text.endswith(start)), default=0)
            certain = text[: len(text) - held]
        self._held = text[len(certain) :]
        return certain


class _Streams:
    """The tokens of a batch's texts as pieces of text for `on_text`: never half a character, never a part of
    a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], on_text: OnText, first: int) -> None:
        self.on_text, self.first = on_text, first
        self.texts = defaultdict[tuple[int, int], tuple[TokenStream, StopFilter]](
            lambda: (tokenizer.stream(), StopFilter(stops))
        )

    def feed(self, row: int, number: int, token: int) -> None:
        stream, stop_filter = self.texts[row, number]
        self._emit(row, number, stop_filter.feed(stream.feed(token)))

    def finish(self) -> None:
        for (row, number), (stream, stop_filter) in self.texts.items():
            self._emit(row, number, stop_filter.feed(stream.finish(whole=True), last=True))

    def _emit(self, row: int, number: int, piece: str) -> None:
        if piece:
            self.on_text(self.first + row, number, piece)
