"""Our models in EleutherAI's lm-evaluation-harness: `python -m etymon.harness --model_args path=FOLDER
--tasks ...`.

The harness looks for no plugins, so this module registers a model called `etymon` and hands over to the
harness's own command line. Decoders, T5, BART and relatives answer with likelihoods, encoders with
pseudo-likelihoods, which is said in the log: every token of a continuation hidden in turn, given all others.

Legend: N tokens, D width, n targets.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.loading import load, model_folder
from etymon.generation.decoding import decode, first_tokens, start_token
from etymon.generation.input_rows import InputRow, score_rows
from etymon.generation.sentence_scores import scoring_method
from etymon.generation.text import cut_at_stop, source_tokenizer_of, tokenizer_of
from etymon.nn.vocabulary import Context
from etymon.settings.decoding import DecodingSettings

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise EtymonError("this needs lm-evaluation-harness: pip install 'etymon[harness]'") from error

logger = logging.getLogger("etymon.harness")

LONGEST = 2048
"""Tokens of a text for models without a limit, as the harness has it for its own."""
NEW_TOKENS = 256
BATCH = 32


@register_model("etymon")
class HarnessModel(TemplateLM):
    """`--model etymon --model_args path=FOLDER[,device=cpu]`: any family with a likelihood."""

    def __init__(
        self,
        path: str = "",
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        if not path:
            raise EtymonError("there is no model: say --model_args path=FOLDER")
        if others:
            raise EtymonError(f"path and device are all there is to say, not {', '.join(others)}")
        # The harness says cuda:0 unless it is told otherwise.
        where = device if device is not None and torch.cuda.is_available() else "cpu"
        self.model = load(model_folder(path, head="vocabulary"), device=where)
        self.words = tokenizer_of(self.model)
        self.method = scoring_method(self.model, seq2seq="target")
        if self.method == "no token replaced" or "likelihood of both" in self.method:
            raise EtymonError(f"{self.model.family.title} gives no likelihood of a text after another")
        self.backend = "seq2seq" if self.model.encoder_decoder else "causal"
        self.is_pseudo = self.method.startswith("pseudo") or self.method == "likelihood in its own order"
        if self.is_pseudo:
            logger.warning(
                "%s gives pseudo-likelihoods: every token given all others", self.model.family.title
            )

    # --- what the harness asks of a model

    @property
    def eot_token_id(self) -> int:
        ids = [self.words.id(role) for role in ("end", "separator", "begin")]
        return next(number for number in [*ids, 0] if number is not None)

    @property
    def prefix_token_id(self) -> int:
        # What the first token of a text is predicted from.
        return next(iter(first_tokens(self.model)), self.eot_token_id)

    @property
    def max_length(self) -> int:
        return self.model.positions or LONGEST

    @property
    def tokenizer_name(self) -> str:
        return self.words.fingerprint

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Of an encoder-decoder, a source is framed as it reads texts, unless that is not wanted."""
        if self.model.encoder_decoder and add_special_tokens is not False:
            tokenizer = source_tokenizer_of(self.model)
            return tokenizer.framing.frame(tokenizer.encode(string)).ids.tolist()
        return self.words.encode(string).tolist()

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Of every continuation the sum, and whether each of its tokens is the likeliest."""
        sums, greedy = np.zeros(len(requests)), np.ones(len(requests), bool)
        # Rows of one length lie side by side without padding.
        rows = sorted(self._rows(requests), key=lambda row: row.size)
        for number, _, readings in score_rows(self.model, rows, _read):
            for log_prob, rank in readings:
                sums[number] += log_prob
                greedy[number] &= rank == 0
        return list(zip(sums.tolist(), greedy.tolist(), strict=True))

    def _rows(self, requests: Sequence[tuple[Any, list[int], list[int]]]) -> Iterator[InputRow]:
        mask, framing = self.words.id("mask"), self.words.framing
        start = start_token(self.model)
        for number, (_, context, continuation) in enumerate(requests):
            target = np.array(continuation, np.int32)
            if self.model.encoder_decoder:
                source = np.array(context[-self.max_length :], np.int32)
                inputs = np.append(np.array([start], np.int32), target[:-1])
                yield InputRow(number, inputs, 0, target, source)
            elif not self.is_pseudo:
                ids = np.array([*context, *continuation], np.int32)[-(self.max_length + 1) :][:-1]
                yield InputRow(number, ids, len(ids) - len(target), target)
            else:
                # The prefix token of an empty context is part of what framing adds.
                given = [] if context == [self.prefix_token_id] else context
                kept = [*given, *continuation][-(self.max_length - framing.overhead()) :]
                framed = framing.frame(kept)
                places = np.flatnonzero(~framed.special)[-len(target) :]
                for place in places.tolist():
                    masked = framed.ids.copy()
                    masked[place] = mask
                    yield InputRow(number, masked, place, framed.ids[place : place + 1])

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows that do not overlap, as the harness has it."""
        windows = [
            (number, *make_disjoint_window(pair))
            for number, request in enumerate(requests)
            for pair in get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - (self.words.framing.overhead() if self.is_pseudo else 0),
                context_len=1,
            )
        ]
        sums = [0.0] * len(requests)
        scored = self._loglikelihood_tokens([(None, context, target) for _, context, target in windows])
        for (number, _, _), (log_prob, _) in zip(windows, scored, strict=True):
            sums[number] += log_prob
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy texts up to a stop string, or sampled ones where a task asks for it."""
        texts = []
        for request in requests:
            context, wanted = request.args
            stops = wanted.get("until") or ()
            stops = (stops,) if isinstance(stops, str) else tuple(stops)
            new = int(wanted.get("max_gen_toks") or NEW_TOKENS)
            ids = self.tok_encode(context)
            # As the harness has it: a context that is too long loses its beginning.
            if self.model.encoder_decoder:
                ids, room = ids[-self.max_length :], self.model.decoder_positions or new
                new = min(new, room - 1) if self.model.decoder_positions else new
            else:
                new = min(new, self.max_length - 1)
                ids = ids[-(self.max_length - new) :]
            temperature = float(wanted.get("temperature") or 0.0)
            sampled: dict[str, Any] = (
                {"temperature": temperature} if wanted.get("do_sample") and temperature else {}
            )
            settings = DecodingSettings(max_new_tokens=new, stop=stops, **sampled)
            ((sequence,),) = decode(self.model, [ids], settings)
            # Half a character at the end stays, as in the texts of the harness's own models.
            texts.append(cut_at_stop(self.words.decode(sequence.ids), stops))
        return texts


def _read(head: Any, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context) -> Tensor:
    """Log-probability and rank `[n, 2]` of every target."""
    log_probs_n = head.target_log_probs(hidden_ND, at, targets_n, context)
    return torch.stack([log_probs_n.double(), head.ranks(hidden_ND, at, targets_n, context).double()], 1)


def main() -> None:
    """The harness's command line, with our model as the default one."""
    from lm_eval.__main__ import cli_evaluate

    words = sys.argv[1:]
    if words and words[0].startswith("-") and "--model_args" in words and "--model" not in words:
        sys.argv[1:] = ["run", "--model", "etymon", *words]
    cli_evaluate()


if __name__ == "__main__":
    main()
