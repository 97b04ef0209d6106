"""A model: a family's body and the heads that somebody asked for.

Legend: N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etymon.checkpoints.sentences import Sentences
from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.head_reader import HeadReader
from etymon.families.special_tokens import start_id, token_ids
from etymon.nn import features as feature_heads
from etymon.nn import pointer
from etymon.nn.attention import Memory
from etymon.nn.batch import Batch, Letters, QueryPositions
from etymon.nn.blocks import Body, EncoderDecoder
from etymon.nn.cache import KeyValueState, StreamState
from etymon.nn.features import FeatureSettings
from etymon.nn.initialise import initialise
from etymon.nn.int8 import shrink
from etymon.nn.lora import LoraSettings, merge
from etymon.nn.pointer import PointerVocabulary
from etymon.nn.vocabulary import DenseVocabulary

if TYPE_CHECKING:
    from etymon.text.tokenizer import Tokenizer


# Keys of our own in `config.json`: for models that read a prompt in both directions, for those whose task
# heads read features, and for those whose weights have eight bits.
PREFIX_KEY = "etymon_prefix"
FEATURES_KEY = "etymon_features"
WEIGHTS_KEY = "etymon_weights"


class Model(HeadReader):
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
        super().__init__()
        family = family if features is None else family.with_features(features)
        self.family, self.shape = family, shape
        names = frozenset(heads)
        for name in names - family.heads.keys():
            raise EtymonError(f"{family.title} has no head {name!r}: {did_you_mean(name, family.heads)}")
        # A head that only serves another one (BERT's pooler) is built with it and not listed.
        self.head_names = names - {family.heads[name].after for name in names}
        self.labels = tuple(labels)
        self.body: Any = family.body(shape, self.head_names - family.feature_heads)
        self.heads = nn.ModuleDict()
        for name in family.heads:
            if name in family.with_required(self.head_names):
                self.heads[name] = family.heads[name].build(shape, self.body, len(self.labels))
        window, vocabulary = getattr(shape, "pointer", 0), self._vocabulary
        if window and isinstance(vocabulary, DenseVocabulary):
            self.heads["vocabulary"] = PointerVocabulary(vocabulary, shape.dim, window)
        self.tokenizer: Tokenizer | None = None
        # Of an encoder whose words are not the decoder's.
        self.source_tokenizer: Tokenizer | None = None
        # Values of a foreign `config.json` that are not ours to read, and its `generation_config.json`, None
        # if it had none: both are written back.
        self.carried: dict[str, Any] = {}
        self.generation: dict[str, Any] | None = None
        self.history: list[dict[str, Any]] = []  # how it was trained, one entry a run
        self.sentences = Sentences()  # how one vector is made of a text
        self.new_heads: tuple[
            str, ...
        ] = ()  # that the checkpoint did not have and that were initialised instead
        # Adapters (`etymon.nn.lora.adapt`), the folder or hub id of the model that they were put on, and the
        # parameters of heads that train, and are stored, with them.
        self.lora: LoraSettings | None = None
        self.lora_base = ""
        self.lora_heads: tuple[str, ...] = ()
        # Whether `layers` runs the body without dropout and without a gradient, even while heads train.
        self.frozen_body = False

    def initialise(self, seed: int = 0, only: Sequence[str] | None = None) -> Model:
        """Draws first values by the family's rules; `only` limits it to the named heads."""
        rules = [*pointer.INITIAL, *feature_heads.INITIAL, *self.family.initial(self.shape)]
        begins = tuple(f"heads.{name}." for name in only or ())
        initialise(self, rules, seed, None if only is None else lambda name: name.startswith(begins))
        return self

    # --- what it computes

    def hidden(self, batch: Batch, state: Any = None, embedded: Tensor | None = None) -> tuple[Tensor, Any]:
        """Hidden states `[N, D]`; with a state (of `start` or of `remember`), of the new tokens only, which
        it then holds."""
        assert isinstance(self.body, Body), (
            f"{self.family.title} has an encoder and a decoder: encode, then decode"
        )
        if "letters" in self.capabilities and batch.letters is None and embedded is None:
            assert self.tokenizer is not None, (
                "a model that reads letters needs a tokenizer, or a batch with them"
            )
            letters, index = self.tokenizer.lexicon.spell(batch.ids.cpu().numpy())
            index_N = torch.from_numpy(index).to(batch.device)
            batch = replace(
                batch, letters=Letters(torch.from_numpy(letters).to(batch.device), index_N, index_N)
            )
        hidden_ND: Tensor = self.body(batch, state=state, embedded=embedded)
        if state is not None and isinstance(self._vocabulary, PointerVocabulary):
            assert state.window is not None, "a state of this model comes from its `start`"
            state.window.append(hidden_ND, batch.ids, batch.layout)
        return hidden_ND, state

    def encode(self, batch: Batch, embedded: Tensor | None = None) -> Memory:
        """The encoder's hidden states of a batch, for `decode`."""
        assert isinstance(self.body, EncoderDecoder), f"{self.family.title} is one stack: use hidden"
        return self.body.encode(batch, embedded)

    def decode(
        self, batch: Batch, memory: Memory, state: KeyValueState | None = None, embedded: Tensor | None = None
    ) -> tuple[Tensor, KeyValueState | None]:
        """The decoder's hidden states `[N, D]` of the new tokens, which the state then holds."""
        assert isinstance(self.body, EncoderDecoder), f"{self.family.title} is one stack: use hidden"
        return self.body.decode(batch, memory, state, embedded), state

    def start(self, rows: int, capacity: int = 0) -> KeyValueState:
        """An empty state for `rows` rows, with room for `capacity` tokens each."""
        state: KeyValueState = self.body.start(rows, capacity)
        if isinstance(self._vocabulary, PointerVocabulary):
            state.window = self._vocabulary.pointer.start()
        return state

    def remember(self, rows: int, length: int | None = None) -> StreamState:
        """What `rows` streams of text carry from segment to segment, before their first: `length` tokens, or
        the shape's number of them."""
        return self.body.remember(rows, length)

    def two_stream(
        self,
        batch: Batch,
        queries: QueryPositions,
        state: Any = None,
        embedded: Tensor | None = None,
        reuse: int | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states `[n, D]` of what stands in some places, given what comes before them in the batch's
        `order` and not them; without an order, given all but them. The state takes up the rows' first `reuse`
        tokens, the shape's number by default."""
        assert "two-stream" in self.capabilities, f"{self.family.title} has one stream: use hidden"
        return self.body.two_stream(batch, queries, state, embedded, reuse), state

    def hidden_behind_masks(self, batch: Batch, at_n: Tensor) -> Tensor:
        """Hidden states `[n, D]` of what stands behind the mask tokens at these places, which are in order. A
        model of two streams asks its query stream, unless its last training was on mask tokens."""
        last = str(self.history[-1].get("objective", "")) if self.history else ""
        if "two-stream" not in self.capabilities or last.startswith("masked"):
            return self.hidden(batch)[0].index_select(0, at_n)
        counts = batch.layout.row[at_n].bincount(minlength=batch.layout.rows).tolist()
        return self.two_stream(batch, QueryPositions(at_n, counts))[0]

    # --- what it is

    @property
    def decoder_start(self) -> int:
        """The token that a decoder over an encoder begins with, but for generation
        (`etymon.families.special_tokens`)."""
        return start_id(self)

    @property
    def _vocabulary(self) -> nn.Module | None:
        return dict(self.heads.items()).get("vocabulary")

    def require_vocabulary(self, doing: str) -> None:
        """Refuses what only a language model can do."""
        if self._vocabulary is None:
            raise EtymonError(
                f"this {self.family.title} has no vocabulary head and cannot {doing}: load a language model"
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
    def features(self) -> FeatureSettings | None:
        """How its task heads read features; None if they do not."""
        return self.family.features

    @property
    def capabilities(self) -> frozenset[str]:
        return self.family.capabilities

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
        stored = self.state_dict()
        buffers = {name: buffer for name, buffer in self.named_buffers() if name in stored}
        return {**dict(self.named_parameters()), **buffers}

    def parameter_count(self) -> int:
        """Every parameter once, tied ones not twice."""
        with torch.device("meta"):
            whole = self if not self.int8 else Model(self.family, self.shape, self.head_names, self.labels)
        return sum(parameter.numel() for parameter in whole.parameters())

    def token(self, role: str) -> int | None:
        """The id of a special token by role (see `etymon.families.special_tokens` for who decides)."""
        return next(iter(token_ids(self, role)), None)
