"""Prompts that have their beginning in common, such as the same examples before many queries.

The beginning is read once, into a state. A batch of queries goes on from it, side by side, and when their completions are
scored the state is rewound: to the end of the query for the next completion, to the end of the beginning for the next
queries. Keys and values of the beginning are copied once a row of a batch, and neither once a query nor once a completion.

Legend: N tokens, R rows, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import check_ids, decode, eval_mode, first_token, first_tokens, start_token
from etymon.generation.likelihood import BATCH_TOKENS
from etymon.generation.settings import DecodingSettings
from etymon.generation.stepper import Stepper, begin, sharable
from etymon.generation.stopping import cut
from etymon.generation.text import Generation, encode_prompts, tokenizer_of

ROWS = 64
"""Prompts that are computed together at most."""
LINE = re.compile(r"(?=\n\S)")
"""Where texts are cut to be encoded: no pre-tokenizer of ours joins anything across the beginning of a line."""

OnProgress = Callable[[int, int], None]
"""Called with the prompts that are done, and how many there are."""


@dataclass(frozen=True)
class Prompt:
    """What a model goes on from: its own text behind one that other prompts share."""

    own: str
    shared: str = ""

    @property
    def text(self) -> str:
        return self.shared + self.own


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
        """Positions that are taken: by the source, or by the prompt and its longest completion."""
        return len(self.source) or len(self.context) + max(map(len, self.completions), default=0)


class Prompter:
    """Scores completions of prompts and generates from them."""

    def __init__(self, model: Model) -> None:
        title = model.family.title
        self.tokenizer = tokenizer_of(model)
        model.require_vocabulary("be prompted")
        if "state" not in model.capabilities:
            raise EtymonError(
                f"{title} reads both sides of a word at once and cannot go on from a prompt: prompt a decoder (GPT-2) or "
                "an encoder-decoder (T5)"
            )
        self.model = model
        self.shares = not (model.reads_prefix or model.encoder_decoder)
        """A beginning that sees what follows it is another one in every prompt: it cannot be shared."""
        self._first = first_tokens(model)
        self.apart = 0
        """Completions that were scored so far and had to be encoded apart from their prompts."""
        self._known: dict[str, list[int]] = {}
        parts = [ids.tolist() for ids in self.tokenizer.encode_batch(["a\nb", "a", "\nb"], quiet=True)]
        self._by_line = parts[0] == parts[1] + parts[2]

    # --- text to tokens

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts that have lines in common: each line is encoded once."""
        lined = [self._lines(text) for text in texts]
        new = list(dict.fromkeys(line for lines in lined for line in lines if line not in self._known))
        self._known |= {line: ids.tolist() for line, ids in zip(new, self.tokenizer.encode_batch(new))}
        return [[number for line in lines for number in self._known[line]] for lines in lined]

    def _lines(self, text: str) -> list[str]:
        return LINE.split(text) if self._by_line else [text]

    def ask(self, prompt: str, completions: Sequence[str]) -> EncodedPrompt:
        """A prompt and its completions, encoded as one text where that leaves the prompt's own tokens as they are.

        If a token would stand on both sides of the border, the two are encoded apart. A prompt stands behind the
        end-of-text token, if the model has one. An encoder-decoder's completions are texts of their own, ended.
        """
        if self.model.encoder_decoder:
            framing, start = self.tokenizer.framing, start_token(self.model)
            assert start is not None
            targets = self.tokens([one.strip() for one in completions])
            framed = [framing.frame(np.array(ids, np.int32)).ids.tolist() for ids in targets]
            return EncodedPrompt([start], framed, encode_prompts(self.model, [prompt])[0])
        # Only the last line meets the completions: the lines before it are encoded as they are, whatever follows.
        last = self._lines(prompt)[-1]
        end, *wholes = self.tokens([last, *(last + one for one in completions)])
        found, apart = [], 0
        for text, whole, own in zip(completions, wholes, self.tokens(completions), strict=True):
            joined = whole[: len(end)] == end
            found.append(whole[len(end) :] if joined else own)
            apart += not joined
            if not found[-1]:
                raise EtymonError(f"the choice {text!r} has no tokens: there is nothing to score")
        context = [*self._first, *self.tokens([prompt])[0]] or [first_token(self.model)]
        return EncodedPrompt(context, found, [], apart)

    # --- what comes after

    @torch.inference_mode()
    def score(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Sequence[str]],
        on_progress: OnProgress | None = None,
    ) -> list[list[Likelihood]]:
        """For every prompt the likelihoods of its completions: those of `score_texts` with a target."""
        asked = [self.ask(prompt.text, own) for prompt, own in zip(prompts, completions, strict=True)]
        self.apart += sum(each.apart for each in asked)
        check_ids([each.source for each in asked], self.model.source_vocabulary)
        written = [ids for each in asked for ids in (each.context, *each.completions)]
        check_ids(written, self.model.shape.vocabulary)
        results: list[list[Likelihood]] = [[] for _ in prompts]
        done = 0
        with eval_mode(self.model):
            for group in self._groups(prompts):
                # Neighbours of similar length waste less.
                order = sorted(group, key=lambda number: len(asked[number].context))
                for number, sums in zip(order, self._scored([asked[each] for each in order]), strict=True):
                    lengths = map(len, asked[number].completions)
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
        """For every prompt one new text, from the very tokens that completions are scored behind."""
        settings = replace(settings, returns=1)
        asked = [self.ask(prompt.text, []) for prompt in prompts]
        found: dict[int, Generation] = {}
        for group in self._groups(prompts):
            longest = max(asked[number].length for number in group)
            size = max(1, min(ROWS, BATCH_TOKENS // longest) // settings.beams)
            for first in range(0, len(group), size):
                part = group[first : first + size]
                rows = [asked[number].source or asked[number].context for number in part]
                for number, (one,) in zip(part, decode(self.model, rows, settings, keys=part), strict=True):
                    text = cut(self.tokenizer.decode(one.ids, whole=True), settings.stop)
                    found[number] = Generation(
                        prompts[number].text, text, one.ids, one.log_prob, one.score, one.finished
                    )
                if on_progress is not None:
                    on_progress(len(found), len(prompts))
        return [found[number] for number in range(len(prompts))]

    def _groups(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The numbers of prompts that share a text, and of all that share none."""
        if not self.shares:
            return [list(range(len(prompts)))] if prompts else []
        alike: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            alike.setdefault(prompt.shared, []).append(number)
        alone = [numbers[0] for numbers in alike.values() if len(numbers) == 1]
        return [*(numbers for numbers in alike.values() if len(numbers) > 1), *([alone] if alone else [])]

    def _scored(self, asked: list[EncodedPrompt]) -> Iterator[list[float]]:
        """The log-probabilities of every prompt's completions, in turn."""
        model, stepper = self.model, Stepper(self.model, normalised=True)
        # Whatever tokens the prompts have in common is shared, also beyond the text that was said to be.
        shared = sharable(model, [each.context for each in asked]) if self.shares else 0
        longest = max(len(ids) for each in asked for ids in each.completions)
        room = max(len(each.context) for each in asked) + longest
        rows = max(1, min(len(asked), ROWS, BATCH_TOKENS // (room + max(len(each.source) for each in asked))))
        if shared:
            stepper.memory, stepper.state = None, begin(model, asked[0].context[:shared], rows, room)
            beginning = stepper.state.mark()
        for first in range(0, len(asked), rows):
            part = asked[first : first + rows]
            if shared:
                stepper.state.rewind(beginning)
                if len(part) < rows:
                    stepper.select(torch.arange(len(part)))
                stepper.extend([each.context[shared:] for each in part])
                first_RV = stepper.scores(stepper.last)
            else:
                prompts = [each.source or each.context for each in part]
                first_RV = stepper.prefill(prompts, longest, start_token(model))
            yield from self._completed(stepper, part, first_RV)

    def _completed(self, stepper: Stepper, part: list[EncodedPrompt], first_RV: Tensor) -> list[list[float]]:
        """The same for prompts that were just read."""
        sums = [first_RV[row, [ids[0] for ids in each.completions]].tolist() for row, each in enumerate(part)]
        longer = [[n for n, ids in enumerate(each.completions) if len(ids) > 1] for each in part]
        context = stepper.state.mark()
        for turn in range(max(map(len, longer))):
            # A row that is through goes on with some token, for nobody: it could leave only if others were copied.
            turns = [
                each.completions[mine[turn]] if turn < len(mine) else each.completions[0][:1] * 2
                for each, mine in zip(part, longer, strict=True)
            ]
            stepper.state.rewind(context)
            stepper.extend([ids[:-1] for ids in turns])
            targets_N = torch.tensor([token for ids in turns for token in ids[1:]], device=self.model.device)
            found = stepper.target_log_probs(targets_N).double().split([len(ids) - 1 for ids in turns])
            for row, mine in enumerate(longer):
                if turn < len(mine):
                    sums[row][mine[turn]] += float(found[row].sum())
        return sums
