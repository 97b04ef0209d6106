"""A model: a family's body and the heads that somebody asked for, how heads read it, and what it is.

Legend: N tokens, n positions that a head reads, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etymon.checkpoints.sentences import Sentences
from etymon.errors import EtymonError
from etymon.families.backbone import Backbone
from etymon.families.family import Family, Where
from etymon.families.positions import neighbour_rules
from etymon.families.special_tokens import start_id, token_ids
from etymon.nn import features as feature_heads
from etymon.nn import pointer
from etymon.nn.batch import Batch, QueryPositions
from etymon.nn.blocks import Stack
from etymon.nn.features import FeatureSettings
from etymon.nn.initialise import initialise, stored_buffers
from etymon.nn.int8 import shrink
from etymon.nn.lora import LoraSettings, merge
from etymon.nn.trace import trace

if TYPE_CHECKING:
    from etymon.text.tokenizer import Tokenizer


# Keys of our own in `config.json`: for models that read a prompt in both directions, for those that predict a
# masked token from the place before it, for those whose task heads read features, and for those whose weights
# have eight bits.
PREFIX_KEY = "etymon_prefix"
SHIFTED_KEY = "etymon_shifted"
FEATURES_KEY = "etymon_features"
WEIGHTS_KEY = "etymon_weights"


class Model(Backbone):
    """`body` turns tokens into hidden states; `heads`, by name, turn hidden states into what a task wants.

    Parameters are blank until `initialise` or a checkpoint fills them (see `etymon.load` and `etymon.build`).
    """

    def __init__(
        self,
        family: Family,
        shape: Any,
        heads: Iterable[str] = (),
        labels: Sequence[str] = ("0", "1"),
        features: FeatureSettings | None = None,
    ) -> None:
        super().__init__(family, shape, heads, labels, features)
        # Of an encoder whose words are not the decoder's.
        self.source_tokenizer: Tokenizer | None = None
        # Values of a foreign `config.json` that are not ours to read, and its `generation_config.json`, None
        # if it had none: both are written back.
        self.carried: dict[str, Any] = {}
        self.generation: dict[str, Any] | None = None
        self.history: list[dict[str, Any]] = []  # how it was trained, one entry a run
        self.sentences = Sentences()  # how one vector is made of a text
        # Heads that the checkpoint did not have, and that begin with first values.
        self.new_heads: tuple[str, ...] = ()
        # Adapters (`etymon.nn.lora.adapt`), the folder or hub id of the model that they were put on, and the
        # parameters of heads that train, and are stored, with them.
        self.lora: LoraSettings | None = None
        self.lora_base = ""
        self.lora_heads: tuple[str, ...] = ()
        # Whether `layers` runs the body without dropout and without a gradient, even while heads train.
        self.frozen_body = False

    def initialise(self, seed: int = 0, only: Sequence[str] | None = None) -> Model:
        """Draws first values by the family's rules; `only` limits it to the named heads."""
        near = neighbour_rules(self.shape, is_causal="causal" in self.family.capabilities)
        rules = [*pointer.INITIAL, *feature_heads.INITIAL, *near, *self.family.initial(self.shape)]
        begins = tuple(f"heads.{name}." for name in only or ())
        initialise(self, rules, seed, None if only is None else lambda name: name.startswith(begins))
        return self

    # --- how heads read it

    def read(self, head: str, hidden_ND: Tensor, batch: Batch, at: Tensor | None = None) -> Tensor:
        """A task head's output at the positions its family reads (or at the flat positions `at`)."""
        if head in self.family.feature_heads:
            raise EtymonError(
                f"the head {head!r} reads features of every layer, and not the last states alone"
            )
        return self.read_from(head, self.pick(head, hidden_ND, batch, at))

    def pick(self, head: str, hidden_ND: Tensor, batch: Batch, at: Tensor | None = None) -> Tensor:
        """The states that a head reads in its family (or those at the flat positions `at`)."""
        if at is None and self._reads_at(head) == "mean":
            return batch.layout.mean(hidden_ND)
        at = self._places(head, batch) if at is None else at
        return hidden_ND if at is None else hidden_ND.index_select(0, at)

    def pick_states(self, head: str, batch: Batch, at: Tensor | None = None) -> Tensor:
        """The same of a batch: where single places are read, the last layer computes no others."""
        at = self._places(head, batch) if at is None else at
        return self.pick(head, self.states(batch), batch) if at is None else self.states(batch, at)

    def read_from(self, head: str, x_nD: Tensor) -> Tensor:
        """A task head's output of the states `pick` gives."""
        if (before := self.family.heads[head].after) is not None:
            x_nD = self.heads[before](x_nD)
        return self.heads[head](x_nD)

    def _reads_at(self, head: str) -> Where:
        after = self.family.heads[head].after
        at = self.family.heads[after or head].at
        return at(self.shape) if callable(at) else at

    def _places(self, head: str, batch: Batch) -> Tensor | None:
        """The flat positions that a head reads in its family; None for all."""
        return {"first": batch.layout.first, "last": batch.layout.last}.get(self._reads_at(head))

    def answer(self, head: str, batch: Batch, at: Tensor | None = None) -> Tensor:
        """What a task head says of texts: one row of outputs for every text or, if it looks at all of them,
        every token."""
        if head in self.family.feature_heads:
            return self.answer_from(head, self.layers(batch), batch, at)
        return self.read_from(head, self.pick_states(head, batch, at))

    def answer_from(
        self, head: str, layers_ND: Sequence[Tensor], batch: Batch, at: Tensor | None = None
    ) -> Tensor:
        """The same of a head that reads features, of `layers` that were computed before: a frozen body's do
        not change."""
        # Words that only their letters tell apart have one vector in a task.
        if "letters" in self.family.capabilities:
            unknown = self.token("unknown") or 0
            batch = replace(batch, ids=batch.ids.where(batch.ids < self.shape.vocabulary, unknown))
        return self.heads[head](layers_ND, batch, at)

    def layers(self, batch: Batch) -> list[Tensor]:
        """The states `[N, D]` of every layer, the input of the first before them; of an encoder and a
        decoder, the encoder's."""
        was_training = self.body.training
        needs_gradient = torch.is_grad_enabled() and not self.frozen_body
        self.body.train(was_training and not self.frozen_body)
        try:
            with torch.set_grad_enabled(needs_gradient), trace(self, attention=False) as seen:
                last = self.last_layer(batch)
        finally:
            self.body.train(was_training)
        return next((stack.hidden for stack in seen.values() if stack.hidden), [last])

    def last_layer(self, batch: Batch) -> Tensor:
        """The last of these alone."""
        return self.encode(batch).hidden_MD if self.encoder_decoder else self.hidden(batch)[0]

    def states(self, batch: Batch, at: Tensor | None = None) -> Tensor:
        """The hidden states `[N, D]` that task heads look at, or those at some flat positions. A decoder over
        an encoder reads the same text behind its start."""
        last, memory = self.body, None
        if self.encoder_decoder and last.decoder is None:
            last = last.encoder
        elif self.encoder_decoder:
            last, memory = last.decoder, self.encode(batch)
            ids_N = batch.ids.roll(1)
            ids_N[batch.layout.first] = self.decoder_start
            batch = replace(batch, ids=ids_N, segments=None, views={})
        # The last layer of a plain stack need not compute what nobody reads.
        if at is not None and isinstance(getattr(last, "stack", None), Stack):
            return last.stack(last.embeddings(batch), batch, memory, at=at)
        whole_ND: Tensor = self.hidden(batch)[0] if last is self.body else last(batch, memory)
        return whole_ND if at is None else whole_ND.index_select(0, at)

    def hidden_behind_masks(self, batch: Batch, at_n: Tensor) -> Tensor:
        """Hidden states `[n, D]` of what stands behind the mask tokens at these places, which are in order. A
        model of two streams asks its query stream, unless its last training was on mask tokens."""
        if self.predicts_shifted:
            return self.hidden(batch)[0].index_select(0, at_n - 1)  # a framed text has a token before it
        last = str(self.history[-1].get("objective", "")) if self.history else ""
        if "two-stream" not in self.capabilities or last.startswith("masked"):
            return self.states(batch, at_n)
        counts = batch.layout.row[at_n].bincount(minlength=batch.layout.rows).tolist()
        return self.two_stream(batch, QueryPositions(at_n, counts))[0]

    # --- what it is

    @property
    def decoder_start(self) -> int:
        """The token that a decoder over an encoder begins with, but for generation
        (`etymon.families.special_tokens`)."""
        return start_id(self)

    def require_vocabulary(self, doing: str) -> None:
        """Refuses what only a language model can do."""
        if self._vocabulary is None:
            raise EtymonError(
                f"this {self.family.title} has no vocabulary head and cannot {doing}: load a language model",
                code="wrong-family",
            )

    @property
    def reads_prefix(self) -> bool:
        """Whether it was trained to read a prompt in both directions, and so does when it goes on from
        one."""
        return bool(self.carried.get(PREFIX_KEY) or getattr(self.body, "reads_prefix", False))

    @reads_prefix.setter
    def reads_prefix(self, reads: bool) -> None:
        others = {key: value for key, value in self.carried.items() if key != PREFIX_KEY}
        self.carried = {**others, PREFIX_KEY: True} if reads else others

    @property
    def predicts_shifted(self) -> bool:
        """Whether it was trained to predict a masked token from the state of the place before it."""
        return bool(self.carried.get(SHIFTED_KEY))

    @predicts_shifted.setter
    def predicts_shifted(self, shifted: bool) -> None:
        others = {key: value for key, value in self.carried.items() if key != SHIFTED_KEY}
        self.carried = {**others, SHIFTED_KEY: True} if shifted else others

    @property
    def features(self) -> FeatureSettings | None:
        """How its task heads read features; None if they do not."""
        return self.family.features

    @property
    def positions(self) -> int | None:
        """The longest row it can read, if there is a limit."""
        return self.body.positions

    @property
    def decoder_positions(self) -> int | None:
        """The same of what it writes, which in an encoder-decoder is apart."""
        return (self.body.decoder if self.encoder_decoder else self.body).positions

    @property
    def window(self) -> int | None:
        """How much of a long text it reads at once: its positions, or as many of them as it learnt, where its
        history tells."""
        lengths = [entry["length"] for entry in self.history if "length" in entry]
        if self.positions is None or not lengths or "started_from" in self.history[0]:
            return self.positions
        return min(self.positions, max(lengths))

    @property
    def source_vocabulary(self) -> int:
        """How many words an encoder, or the only stack, knows."""
        return int(getattr(self.shape, "source_vocabulary", None) or self.shape.vocabulary)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def drops(self) -> bool:
        """Whether two passes differ in training: there is some dropout, of a part by itself or of attention's
        weights."""
        resting = set(self.body.modules()) if self.frozen_body else set()
        parts = (part for part in self.modules() if part not in resting)
        rates = (getattr(part, name, 0.0) for part in parts for name in ("rate", "dropout"))
        return any(isinstance(rate, float) and rate > 0 for rate in rates)

    @property
    def int8(self) -> bool:
        """Its weights have eight bits: it computes, and cannot be trained."""
        return self.carried.get(WEIGHTS_KEY) == "int8"

    def quantize(self) -> Model:
        """Itself, with weights of eight bits from now on."""
        if not self.int8:
            shrink(merge(self).to("cpu").eval(), self.shape.vocabulary)
            self.carried = {**self.carried, WEIGHTS_KEY: "int8"}
        return self

    quantized = quantize  # its name in older scripts

    def stored_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds: every parameter once, and the buffers that are stored (BART's bias of
        words)."""
        return {**dict(self.named_parameters()), **stored_buffers(self)}

    def parameter_count(self) -> int:
        """Every parameter once, tied ones not twice."""
        with torch.device("meta"):
            whole = self if not self.int8 else Model(self.family, self.shape, self.head_names, self.labels)
        return sum(parameter.numel() for parameter in whole.parameters())

    def token(self, role: str) -> int | None:
        """The id of a special token by role (see `etymon.families.special_tokens` for who decides)."""
        return next(iter(token_ids(self, role)), None)

    def _repr_html_(self) -> str:
        from etymon.families.inline import model_html

        return model_html(self)
