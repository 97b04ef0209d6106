"""Prompts that have their beginning in common, such as the same examples before many queries.

The beginning is read once, into a state. A batch of queries goes on from it, side by side, and when their
completions are scored the state is rewound: to the end of the query for the next completion, to the end of
the beginning for the next queries. Keys and values of the beginning are copied once a row of a batch, and
neither once a query nor once a completion.

Legend: N tokens, R rows, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import check_ids, decode, first_token, first_tokens, start_token
from etymon.generation.input_rows import BATCH_TOKENS
from etymon.generation.stepper import Stepper, prefix_state, sharable
from etymon.generation.text import Generation, encode_prompts, new_generation, tokenizer_of
from etymon.nn.layers import eval_mode
from etymon.settings.decoding import DecodingSettings

ROWS = 64
"""Prompts that are computed together at most."""
LINE = re.compile(r"(?=\n\S)")
"""Where texts are cut to be encoded: no pre-tokenizer of ours joins anything across the beginning of a
line."""

OnProgress = Callable[[int, int], None]
"""Called with the prompts that are done, and how many there are."""


@dataclass(frozen=True)
class Prompt:
    """What a model goes on from: a text of its own behind one that other prompts share."""

    query: str
    shared: str = ""

    @property
    def text(self) -> str:
        return self.shared + self.query


@dataclass(frozen=True)
class Likelihood:
    """The natural logarithm of a completion's probability after its prompt."""

    log_prob: float
    tokens: int


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt and its completions as tokens. Of an encoder-decoder the prompt is the `source`."""

    context: list[int]
    completions: list[list[int]]
    source: list[int]
    apart: int = 0
    """How many completions could not be encoded as the end of the whole text."""

    @property
    def length(self) -> int:
        """Positions that it takes: those of the source, or of the prompt and its longest completion."""
        return len(self.source) or len(self.context) + max(map(len, self.completions), default=0)


class Prompter:
    """Scores completions of prompts and generates from them."""

    def __init__(self, model: Model) -> None:
        self.tokenizer = tokenizer_of(model)
        model.require_vocabulary("be prompted")
        if "state" not in model.capabilities:
            raise EtymonError(
                f"{model.family.title} reads both sides of a word at once and cannot go on from a prompt: "
                "prompt a decoder (GPT-2) or an encoder-decoder (T5)",
                code="wrong-family",
            )
        self.model = model
        # A beginning that sees what follows it is another one in every prompt: it cannot be shared.
        self.shares = not (model.reads_prefix or model.encoder_decoder)
        self.apart = 0
        """Completions that were scored so far and had to be encoded apart from their prompts."""
        self._ids_by_line: dict[str, list[int]] = {}
        whole, *lines = (
            ids.tolist() for ids in self.tokenizer.encode_batch(["a\nb", "a", "\nb"], quiet=True)
        )
        self._by_line = whole == lines[0] + lines[1]

    # --- text to tokens

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts that have lines in common: each line is encoded once."""
        by_text = [self._lines(text) for text in texts]
        new = list({line: None for lines in by_text for line in lines if line not in self._ids_by_line})
        encoded = self.tokenizer.encode_batch(new)
        self._ids_by_line |= {line: ids.tolist() for line, ids in zip(new, encoded, strict=True)}
        return [[id_ for line in lines for id_ in self._ids_by_line[line]] for lines in by_text]

    def _lines(self, text: str) -> list[str]:
        return LINE.split(text) if self._by_line else [text]

    def encode(self, prompt: str, completions: Sequence[str]) -> EncodedPrompt:
        """A prompt and its completions, encoded as one text where that leaves the prompt's tokens as they
        are.

        If a token would stand on both sides of the border, the two are encoded apart. A prompt stands behind
        the end-of-text token, if the model has one. An encoder-decoder's completions are texts by themselves,
        ended.
        """
        if self.model.encoder_decoder:
            start = start_token(self.model)
            assert start is not None
            targets = self.encode_texts([completion.strip() for completion in completions])
            frame = self.tokenizer.framing.frame
            framed = [frame(np.array(ids, np.int32)).ids.tolist() for ids in targets]
            return EncodedPrompt([start], framed, encode_prompts(self.model, [prompt])[0])
        # Only the last line meets the completions: the lines before it are encoded as they are, whatever
        # follows.
        last = self._lines(prompt)[-1]
        end, *wholes = self.encode_texts([last, *(last + completion for completion in completions)])
        encoded, apart = self.encode_texts(completions), 0
        for number, whole in enumerate(wholes):
            if whole[: len(end)] == end:
                encoded[number] = whole[len(end) :]
            else:
                apart += 1
            if not encoded[number]:
                raise EtymonError(
                    f"the choice {completions[number]!r} has no tokens: there is nothing to score"
                )
        # As in training, where documents follow one another with the end token between them.
        context = [*first_tokens(self.model), *self.encode_texts([prompt])[0]] or [first_token(self.model)]
        return EncodedPrompt(context, encoded, [], apart)

    # --- what comes after

    @torch.inference_mode()
    def score(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Sequence[str]],
        on_progress: OnProgress | None = None,
    ) -> list[list[Likelihood]]:
        """The likelihoods of every prompt's completions: those of `score_texts` with a target."""
        encoded = [
            self.encode(prompt.text, texts) for prompt, texts in zip(prompts, completions, strict=True)
        ]
        self.apart += sum(prompt.apart for prompt in encoded)
        check_ids([prompt.source for prompt in encoded], self.model.source_vocabulary)
        rows = [ids for prompt in encoded for ids in (prompt.context, *prompt.completions)]
        check_ids(rows, self.model.shape.vocabulary)
        results: list[list[Likelihood]] = [[] for _ in prompts]
        done = 0
        with eval_mode(self.model):
            for group in self._groups(prompts):
                # Neighbours of similar length waste less.
                order = sorted(group, key=lambda number: len(encoded[number].context))
                for number, sums in zip(order, self._sums([encoded[n] for n in order]), strict=True):
                    lengths = map(len, encoded[number].completions)
                    results[number] = [Likelihood(*pair) for pair in zip(sums, lengths, strict=True)]
                    done += 1
                    if on_progress is not None:
                        on_progress(done, len(prompts))
        return results

    def generate(
        self,
        prompts: Sequence[Prompt],
        settings: DecodingSettings,
        on_progress: OnProgress | None = None,
    ) -> list[Generation]:
        """A new text for every prompt, from the very tokens that completions are scored behind."""
        settings = replace(settings, returns=1)
        encoded = [self.encode(prompt.text, []) for prompt in prompts]
        texts: dict[int, Generation] = {}
        for group in self._groups(prompts):
            longest = max(encoded[number].length for number in group)
            size = max(1, min(ROWS, BATCH_TOKENS // longest) // settings.beams)
            for first in range(0, len(group), size):
                part = group[first : first + size]
                rows = [encoded[number].source or encoded[number].context for number in part]
                for number, (sequence,) in zip(
                    part, decode(self.model, rows, settings, keys=part), strict=True
                ):
                    texts[number] = new_generation(
                        prompts[number].text, sequence, self.tokenizer, settings.stop
                    )
                if on_progress is not None:
                    on_progress(len(texts), len(prompts))
        return [texts[number] for number in range(len(prompts))]

    def _groups(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The numbers of prompts that share a text, and of all that share none."""
        if not self.shares:
            return [list(range(len(prompts)))] if prompts else []
        by_text: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            by_text.setdefault(prompt.shared, []).append(number)
        alone = [numbers[0] for numbers in by_text.values() if len(numbers) == 1]
        return [*(numbers for numbers in by_text.values() if len(numbers) > 1), *([alone] if alone else [])]

    def _sums(self, prompts: list[EncodedPrompt]) -> Iterator[list[float]]:
        """The log-probabilities of every prompt's completions, in turn."""
        model, stepper = self.model, Stepper(self.model, normalised=True)
        # Tokens that the prompts have in common are shared, also beyond the text that they name as shared.
        shared = sharable(model, [prompt.context for prompt in prompts]) if self.shares else 0
        longest = max(len(ids) for prompt in prompts for ids in prompt.completions)
        room = max(len(prompt.context) for prompt in prompts) + longest
        tokens = room + max(len(prompt.source) for prompt in prompts)
        rows = max(1, min(len(prompts), ROWS, BATCH_TOKENS // tokens))
        if shared:
            stepper.memory = None
            stepper.state = prefix_state(model, prompts[0].context[:shared], rows, room)
            beginning = stepper.state.mark()
        for first in range(0, len(prompts), rows):
            part = prompts[first : first + rows]
            if shared:
                stepper.state.rewind(beginning)
                if len(part) < rows:
                    stepper.select(torch.arange(len(part)))
                stepper.extend([prompt.context[shared:] for prompt in part])
                first_RV = stepper.scores(stepper.last)
            else:
                inputs = [prompt.source or prompt.context for prompt in part]
                first_RV = stepper.prefill(inputs, longest, start_token(model))
            firsts = [[ids[0] for ids in prompt.completions] for prompt in part]
            # Completions' first tokens are predicted by the prompt itself: those of one token need nothing
            # more.
            sums = [first_RV[row, ids].tolist() for row, ids in enumerate(firsts)]
            longer = [[n for n, ids in enumerate(prompt.completions) if len(ids) > 1] for prompt in part]
            context = stepper.state.mark()
            for numbers in zip_longest(*longer):
                # A row without a further completion reads some token in vain: to leave, others would be
                # copied.
                turn = [
                    ids[:1] * 2 if number is None else prompt.completions[number]
                    for number, ids, prompt in zip(numbers, firsts, part, strict=True)
                ]
                stepper.state.rewind(context)
                stepper.extend([ids[:-1] for ids in turn])
                targets_N = torch.tensor([id_ for ids in turn for id_ in ids[1:]], device=model.device)
                log_probs = stepper.target_log_probs(targets_N).double().split([len(ids) - 1 for ids in turn])
                for row, number in enumerate(numbers):
                    if number is not None:
                        sums[row][number] += float(log_probs[row].sum())
            yield from sums
