"""Reading and writing another library's `config.json`, row by row.

Strictness is for our own files; a foreign one goes through a family's table of four kinds of row: a field of our
shape, a constant that must hold, a value carried along untouched, and what may be ignored. Of all other keys, those that
Transformers reads to compute such a model (`config_keys`) are refused unless they have its default: they may change the
maths. The rest are passed over. All that is refused is told in one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError

TABLE = Path(__file__).with_name("config_keys.json")


@dataclass(frozen=True)
class TransformersKeys:
    """Of one `model_type`: the `keys` that are read, the values that some have by default, and other names of keys."""

    keys: frozenset[str]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str]
    """Other name -> key."""


@cache
def config_keys(model_type: str) -> TransformersKeys | None:
    """The keys of a model of Transformers; None if it has no such model."""
    found = _models().get(model_type)
    return (
        None
        if found is None
        else TransformersKeys(frozenset(found["keys"]), found["defaults"], found["aliases"])
    )


@cache
def _models() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))["models"]


OWN_TYPE = "etymon-"
"""Before the `model_type` of a folder whose maths Transformers does not have, so that it does not open it."""


@dataclass(frozen=True)
class Field:
    """Our field and their key; `values` translates (ours -> theirs). A field of our own is written `unless` it has
    the value that everybody else takes for granted."""

    ours: str
    theirs: str
    values: Mapping[Any, Any] | None = None
    unless: Any = None

    def written(self, value: Any) -> Any:
        return value if self.values is None else self.values[value]

    def read(self, value: Any) -> Any:
        """Our value, or a ValueError that says why there is none."""
        if self.values is None:
            return value
        for ours, theirs in self.values.items():
            if theirs == value:
                return ours
        known = ", ".join(str(theirs) for theirs in self.values.values())
        raise ValueError(f"{self.theirs} = {_shown(value)} is not supported (known: {known})")


@dataclass(frozen=True)
class Constant:
    """Their key must have this value: anything else is a model that this family does not build."""

    theirs: str
    value: Any
    reason: str
    write: bool = True


RESIDUAL_SCALE = Field("residual_scale", "etymon_residual_scale", unless=1.0)
"""The same row in every family."""
OWN = (
    Field("pointer", "etymon_pointer", unless=0),
    Field("cutoffs", "etymon_cutoffs", unless=()),
    Field("divisor", "etymon_divisor", unless=1),
)
"""In every family whose shape has the field and that publishes no such."""
GENERATION_KEYS = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "force_bos_token_to_be_generated", "forced_decoder_ids", "suppress_tokens",
    "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "constraints", "force_words_ids", "max_length",
    "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "early_stopping", "do_sample",
    "num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "penalty_alpha", "dola_layers", "low_memory",
    "temperature", "top_k", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "renormalize_logits", "remove_invalid_values", "exponential_decay_length_penalty", "token_healing",
    "guidance_scale", "watermarking_config", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "generation_kwargs", "use_cache", "use_mtp",
    "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "compile_config", "disable_compile",
    "continuous_batching_config", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "assistant_ensemble_weight",
    "target_lookbehind", "prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type",
)  # fmt: skip
"""Of Transformers' `GenerationConfig`, old and new: where a folder has no `generation_config.json`, its `config.json` says them."""
CARRIED = (
    *GENERATION_KEYS, "sep_token_id", "cls_token_id", "mask_token_id", "id2label", "label2id", "problem_type",
    "task_specific_params", "etymon", "etymon_prefix", "etymon_weights", "etymon_features",
)  # fmt: skip
IGNORED = (
    # Names, versions, and where weights lie.
    "architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "finetuning_task",
    "num_labels", "transformers_weights", "tie_encoder_decoder", "pruned_heads",
    # What is given back, how it is computed, and in which precision.
    "return_dict", "torchscript", "trainer_compatible", "gradient_checkpointing", "chunk_size_feed_forward",
    "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation",
    "_experts_implementation", "distributed_config", "fusion_config", "torch_dtype", "dtype", "_is_quantized",
    "_pre_quantization_dtype",
    # First values, and chance in training.
    "initializer_range", "initializer_factor", "init_std", "attention_dropout", "summary_first_dropout",
    "summary_last_dropout",
)  # fmt: skip
"""Keys that Transformers reads and that change nothing about what a model with its weights computes."""
OWN_CODE = "auto_map"
"""Names the classes of a folder that brings code of its own."""

_passed_over: ContextVar[frozenset[str]] = ContextVar("keys to pass over", default=frozenset())


@contextmanager
def pass_over(keys: Sequence[str]) -> Iterator[None]:
    """Within it, whatever model is opened, these keys of its `config.json` are not looked at."""
    token = _passed_over.set(_passed_over.get() | {*keys})
    try:
        yield
    finally:
        _passed_over.reset(token)


@dataclass(frozen=True)
class SettingsMap:
    """A family's table. Keys that are absent take `usual` values, or else the shape's defaults, which are the published
    class's. `head_keys` are beginnings of keys that only some heads read (Transformers' summary of a sequence)."""

    fields: Sequence[Field]
    constants: Sequence[Constant] = ()
    ignored: Sequence[str] = field(default_factory=tuple)
    usual: Mapping[str, Any] = field(default_factory=dict)
    head_keys: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"summary_": ("choice",)})

    def read(
        self, config: Mapping[str, Any], where: str, heads: frozenset[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Our fields, and the values to carry along. Of keys that only heads read, those of other `heads` than the folder
        holds do not matter (None: all do)."""
        known = config_keys(str(config.get("model_type")).removeprefix(OWN_TYPE))
        table = {row.theirs: row for row in (*self.fields, *OWN)}
        ours: dict[str, Any] = {}
        carried: dict[str, Any] = {}
        offending: dict[str, str] = {}
        plain = self._plain(_not_passed_over(config), known, offending)
        for key, value in {**self.usual, **plain}.items():
            try:
                if key in table:
                    ours[table[key].ours] = table[key].read(value)
                elif key in CARRIED:
                    carried[key] = value
                else:
                    self._check(key, value, known)
            except ValueError as error:
                readers = next(
                    (read for begin, read in self.head_keys.items() if key.startswith(begin)), None
                )
                if heads is None or readers is None or heads & {*readers}:
                    offending[key] = str(error)
        if offending:
            options = " ".join(f"--ignore-config-key {key}" for key in offending)
            raise EtymonError(
                f"{where} describes a model that is not built here: {'; '.join(offending.values())} "
                f"(if that does not matter: {options})"
            )
        return ours, carried

    def told(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The keys that count: without those to pass over, and with what is usual where they say nothing."""
        return {**self.usual, **_not_passed_over(config)}

    def _plain(
        self, config: Mapping[str, Any], known: TransformersKeys | None, offending: dict[str, str]
    ) -> dict[str, Any]:
        """The configuration with every key under its own name."""
        own = {*self.ignored, *(row.theirs for row in self.fields), *(row.theirs for row in self.constants)}
        aliases = (
            {} if known is None else {key: name for key, name in known.aliases.items() if key not in own}
        )
        plain = {key: value for key, value in config.items() if key not in aliases}
        for other, key in aliases.items():
            if other in config and plain.setdefault(key, config[other]) != config[other]:
                offending[other] = (
                    f"{other} = {_shown(config[other])} contradicts {key} = {_shown(plain[key])}"
                )
        return plain

    def _check(self, key: str, value: Any, known: TransformersKeys | None) -> None:
        """A ValueError if the key may change what the model computes, and says something else than is built."""
        fixed = next((row for row in self.constants if row.theirs == key), None)
        if fixed is not None:
            if value != fixed.value:
                raise ValueError(f"{key} = {_shown(value)}: {fixed.reason}")
        elif key == OWN_CODE and isinstance(value, Mapping) and any("AutoModel" in each for each in value):
            raise ValueError(f"{key} names code of the folder's own, which may compute anything")
        elif key in (*IGNORED, *self.ignored):
            return
        elif key.startswith("etymon") or known is None:
            raise ValueError(f"{key} = {_shown(value)} is not known and might change the model")
        elif key in known.keys and not (key in known.defaults and known.defaults[key] == value):
            raise ValueError(f"{key} = {_shown(value)} changes the model and is not supported")

    def write(self, shape: Mapping[str, Any]) -> dict[str, Any]:
        written = {
            row.theirs: row.written(shape[row.ours])
            for row in (*self.fields, *self.unpublished(shape))
            if row.unless is None or shape[row.ours] != row.unless
        }
        written.update({row.theirs: row.value for row in self.constants if row.write})
        return written

    def unpublished(self, shape: Mapping[str, Any]) -> list[Field]:
        """Our own rows that such a shape has and the family's table has not."""
        published = {row.ours for row in self.fields}
        return [row for row in OWN if row.ours in shape and row.ours not in published]


def _not_passed_over(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _passed_over.get()}


def _shown(value: Any) -> str:
    """A value in a message, which stays one line."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
