"""Our models as models of Transformers, for folders that it has no class for.

Such a folder names these classes in the `auto_map` of its `config.json` and holds a `modeling_etymon.py` that
imports them. So `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` opens it where Etymon
is installed. Etymon itself never runs a file of a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, modeling_outputs

from etymon.families.loading import load
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context

OUTPUTS: Any = modeling_outputs  # which are typed by kinds of tensors that nobody makes
IGNORED = -100
"""The label of what does not count, in Transformers."""


class EtymonConfig(PreTrainedConfig):
    """A folder's `config.json`, whatever its keys."""

    model_type = "etymon"

    def __init__(self, **values: Any) -> None:
        self.model_type = values.pop("model_type", self.model_type)  # type: ignore[misc]
        super().__init__(**values)

    @classmethod
    def from_pretrained(cls, name: Any, **options: Any) -> Any:  # type: ignore[override]
        # The classes of all our families: a type of its own would only bring a warning.
        values, others = cls.get_config_dict(name, **options)
        returns_others = others.pop("return_unused_kwargs", False)
        config = cls(**values)
        return (config, others) if returns_others else config


class EtymonModel(PreTrainedModel):
    """Hidden states of a text; of an encoder and a decoder, the encoder's."""

    config_class = EtymonConfig
    main_input_name = "input_ids"
    head: str | None = None
    """The head of ours that it has to have."""
    inner: Model

    def __init__(self, config: PreTrainedConfig, inner: Model | None = None) -> None:
        if inner is None:
            raise ValueError(
                "a model is opened with its weights: use from_pretrained, or etymon.build for a new one"
            )
        super().__init__(config)
        self.inner = inner

    @classmethod
    def from_pretrained(cls, name: Any, *_: Any, **options: Any) -> Any:  # type: ignore[override]
        """The model in a folder or behind a hub id, opened by Etymon, which compares files and digests."""
        # Transformers would look for parameters by the names of its own modules, and ours are mapped.
        config = options.get("config")
        revision = options.get("revision")
        inner = load(str(name), revision=None if revision == "main" else revision, heads=cls._heads())
        # A new head answers at random: better refused than believed.
        if inner.new_heads:
            raise ValueError(f"{name} has no {cls.head} head: open it with another class")
        if not isinstance(config, PreTrainedConfig):
            config = EtymonConfig.from_pretrained(str(name), revision=revision)
        opened = cls(config, inner)
        kind = options.get("dtype", options.get("torch_dtype"))
        if isinstance(kind, str) and kind != "auto":
            kind = getattr(torch, kind)
        if isinstance(kind, torch.dtype):
            opened.to(kind)  # type: ignore[arg-type]
        opened.eval()
        if opened.can_generate():
            opened.generation_config.use_cache = False  # Transformers' caches are of its own layers
        # Whatever is missing or left over was refused by `load`.
        if options.get("output_loading_info"):
            empty: dict[str, Any] = {
                "missing_keys": [],
                "unexpected_keys": [],
                "mismatched_keys": [],
                "error_msgs": [],
            }
            return opened, empty
        return opened

    @classmethod
    def _heads(cls) -> frozenset[str] | None:
        return None if cls.head is None else frozenset({cls.head})

    # As our own folder, which brings its `auto_map` with it again.
    def save_pretrained(self, folder: str | Path, **options: Any) -> None:  # type: ignore[override]
        save(self.inner, folder)

    def get_input_embeddings(self) -> nn.Module:
        table: nn.Module = next(
            part
            for part in self.inner.body.modules()
            if isinstance(part, nn.Embedding) or hasattr(part, "table")
        )
        return table

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> Any:
        batch, mask_RT = self._batch(input_ids, attention_mask, token_type_ids)
        return OUTPUTS.BaseModelOutput(last_hidden_state=_rectangle(self.inner.last_layer(batch), mask_RT))

    def _batch(
        self, ids_RT: Tensor, mask_RT: Tensor | None, segments_RT: Tensor | None = None
    ) -> tuple[Batch, Tensor]:
        """Rows without their padding, and where their cells are: no model of ours computes padding."""
        mask_RT = torch.ones_like(ids_RT, dtype=torch.bool) if mask_RT is None else mask_RT.bool()
        rows = [ids_T[mask_T].tolist() for ids_T, mask_T in zip(ids_RT, mask_RT, strict=True)]
        segments = None
        if segments_RT is not None and "segments" in self.inner.capabilities:
            segments = [part_T[mask_T].tolist() for part_T, mask_T in zip(segments_RT, mask_RT, strict=True)]
        return Batch.of(rows, segments=segments, device=ids_RT.device), mask_RT


class _WithVocabulary(EtymonModel):
    head = "vocabulary"

    def _logits(self, hidden_ND: Tensor, batch: Batch) -> Tensor:
        head: Any = self.inner.heads["vocabulary"]
        logits_NV: Tensor = head.logits(hidden_ND, None, Context(batch))
        return logits_NV


class EtymonForCausalLM(_WithVocabulary, GenerationMixin):
    """Logits of the next token; what is generated is read again for every token."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> Any:
        batch, mask_RT = self._batch(input_ids, attention_mask)
        logits_RTV = _rectangle(self._logits(self.inner.hidden(batch)[0], batch), mask_RT)
        # Labels are the inputs, as in Transformers: the shift is ours to make.
        loss = None if labels is None else _loss(logits_RTV[:, :-1], labels[:, 1:])
        return OUTPUTS.CausalLMOutput(loss=loss, logits=logits_RTV)

    def prepare_inputs_for_generation(self, input_ids: Any, **inputs: Any) -> Any:  # type: ignore[override]
        return {"input_ids": input_ids, "attention_mask": inputs.get("attention_mask")}


class EtymonForMaskedLM(_WithVocabulary):
    """Logits of what stands in every place."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> Any:
        batch, mask_RT = self._batch(input_ids, attention_mask, token_type_ids)
        logits_RTV = _rectangle(self._logits(self.inner.states(batch), batch), mask_RT)
        return OUTPUTS.MaskedLMOutput(
            loss=None if labels is None else _loss(logits_RTV, labels), logits=logits_RTV
        )


class EtymonForSeq2SeqLM(_WithVocabulary):
    """Logits of a target after a source."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> Any:
        source, mask_RT = self._batch(input_ids, attention_mask)
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("an encoder-decoder needs decoder_input_ids or labels")
            # As it was trained: the start token, then the target but its last token.
            start_R1 = labels.new_full((len(labels), 1), self.inner.decoder_start)
            decoder_input_ids = torch.cat([start_R1, labels[:, :-1].clamp(min=0)], 1)
        target, target_mask = self._batch(decoder_input_ids, None)
        memory = self.inner.encode(source)
        hidden_ND = self.inner.decode(target, memory)[0]
        logits_RTV = _rectangle(self._logits(hidden_ND, target), target_mask)
        return OUTPUTS.Seq2SeqLMOutput(
            loss=None if labels is None else _loss(logits_RTV, labels),
            logits=logits_RTV,
            encoder_last_hidden_state=_rectangle(memory.hidden_MD, mask_RT),
        )

    def generate(self, input_ids: Tensor, **options: Any) -> Tensor:
        """Token ids by Etymon's own decoding: greedy, or with `num_beams`, up to `max_new_tokens`."""
        from etymon.generation.decoding import decode
        from etymon.settings.decoding import DecodingSettings

        mask_RT = options.get("attention_mask")
        rows = [
            ids_T[mask_T.bool()].tolist()
            for ids_T, mask_T in zip(
                input_ids, torch.ones_like(input_ids) if mask_RT is None else mask_RT, strict=True
            )
        ]
        settings = DecodingSettings(
            max_new_tokens=int(options.get("max_new_tokens", 64)), beams=int(options.get("num_beams", 1))
        )
        # Of several beams the best; with the start token before it, as Transformers gives it back.
        sequences = [each[0].ids for each in decode(self.inner, rows, settings)]
        pad = self.inner.token("pad") or 0
        longest = max(map(len, sequences))
        start = self.inner.decoder_start
        return torch.tensor(
            [[start, *map(int, ids), *[pad] * (longest - len(ids))] for ids in sequences],
            device=input_ids.device,
        )


class _WithTaskHead(EtymonModel):
    def _answer(self, ids: Tensor, mask: Tensor | None, segments: Tensor | None) -> tuple[Tensor, Tensor]:
        batch, mask_RT = self._batch(ids, mask, segments)
        assert self.head is not None
        return self.inner.answer(self.head, batch), mask_RT


class EtymonForSequenceClassification(_WithTaskHead):
    head = "classification"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> Any:
        logits_RL, _mask = self._answer(input_ids, attention_mask, token_type_ids)
        return OUTPUTS.SequenceClassifierOutput(
            loss=None if labels is None else cross_entropy(logits_RL, labels), logits=logits_RL
        )


class EtymonForTokenClassification(_WithTaskHead):
    head = "tagging"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> Any:
        logits_NL, mask_RT = self._answer(input_ids, attention_mask, token_type_ids)
        logits_RTL = _rectangle(logits_NL, mask_RT)
        return OUTPUTS.TokenClassifierOutput(
            loss=None if labels is None else _loss(logits_RTL, labels), logits=logits_RTL
        )


class EtymonForQuestionAnswering(_WithTaskHead):
    head = "span"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> Any:
        logits_N2, mask_RT = self._answer(input_ids, attention_mask, token_type_ids)
        start_RT, end_RT = _rectangle(logits_N2, mask_RT).unbind(-1)
        return OUTPUTS.QuestionAnsweringModelOutput(start_logits=start_RT, end_logits=end_RT)


def _rectangle(values_NX: Tensor, mask_RT: Tensor) -> Tensor:
    """Values of tokens in the cells of a padded rectangle, zeros where there is padding."""
    # Zeros and not what a model would say of padding: nobody may come to depend on that.
    rectangle = values_NX.new_zeros((*mask_RT.shape, *values_NX.shape[1:]))
    return rectangle.masked_scatter(mask_RT.view(*mask_RT.shape, *[1] * (values_NX.dim() - 1)), values_NX)


def _loss(logits_RTV: Tensor, labels_RT: Tensor) -> Tensor:
    return cross_entropy(logits_RTV.flatten(0, 1).float(), labels_RT.flatten(), ignore_index=IGNORED)
