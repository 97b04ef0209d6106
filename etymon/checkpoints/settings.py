"""A family's table for `config.json`, read and written row by row.

Our own files are read strictly. A foreign one goes through four kinds of row: a field of our shape, a
constant that must hold, a value carried along untouched, and what may be ignored. Of all other keys, those
that Transformers reads to compute such a model are refused unless they have its default, because they may
change the maths; the rest are passed over. All that is refused is listed in one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError

# The keys that Transformers' modelling code reads, searched for in its source by `python -m
# tests.config_keys`.
TABLE = Path(__file__).with_name("config_keys.json")
# Before the `model_type` of a folder whose maths Transformers does not have, so that it does not open it.
OWN_TYPE = "etymon-"


@dataclass(frozen=True)
class TransformersKeys:
    """Of one `model_type`: the keys that change what it computes, some of their defaults, and other names of
    keys."""

    keys: frozenset[str]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str]
    """Other name -> key."""


def config_keys(model_type: str) -> TransformersKeys | None:
    """The keys of a model of Transformers; None if it has no such model."""
    return _keys_by_model_type().get(model_type)


@cache
def _keys_by_model_type() -> dict[str, TransformersKeys]:
    models = json.loads(TABLE.read_text(encoding="utf-8"))["models"]
    return {
        model_type: TransformersKeys(frozenset(model["keys"]), model["defaults"], model["aliases"])
        for model_type, model in models.items()
    }


@dataclass(frozen=True)
class Field:
    """Our field and their key; `values` translates (ours -> theirs). A field that only we have is written
    `unless` it has the value that everybody else takes for granted."""

    ours: str
    theirs: str
    values: Mapping[Any, Any] | None = None
    unless: Any = ...  # always written

    def write(self, value: Any) -> Any:
        return value if self.values is None else self.values[value]

    def read(self, value: Any) -> Any:
        """Our value, or a ValueError that says why there is none."""
        if self.values is None:
            return value
        for ours, theirs in self.values.items():
            if theirs == value:
                return ours
        choices = ", ".join(map(str, self.values.values()))
        raise ValueError(f"{self.theirs} = {_format(value)} is not supported (known: {choices})")


@dataclass(frozen=True)
class Constant:
    """Their key must have this value: anything else is a model that this family does not build."""

    theirs: str
    value: Any
    reason: str
    write: bool = False


# Fields that only etymon has: rows of every family whose shape has the field and that publishes no such.
OWN = (
    Field("residual_scale", "etymon_residual_scale", unless=1.0),
    # How the weights began: nothing of it is left to compute.
    Field("neighbours", "etymon_neighbours", unless=0.0),
    Field("matches", "etymon_matches", unless=0.0),
    Field("pointer", "etymon_pointer", unless=0),
    Field("cutoffs", "etymon_cutoffs", unless=()),
    Field("divisor", "etymon_divisor", unless=1),
    Field("position_kind", "etymon_position_kind", unless="learned"),
)
# Of Transformers' `GenerationConfig`, old and new: where a folder has no `generation_config.json`, its
# `config.json` says them.
GENERATION_KEYS = """
    bos_token_id eos_token_id pad_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    force_bos_token_to_be_generated forced_decoder_ids suppress_tokens begin_suppress_tokens bad_words_ids
    sequence_bias constraints force_words_ids max_length max_new_tokens min_length min_new_tokens max_time
    stop_strings early_stopping do_sample num_beams num_beam_groups diversity_penalty length_penalty
    penalty_alpha dola_layers low_memory temperature top_k top_p top_h min_p typical_p epsilon_cutoff
    eta_cutoff repetition_penalty encoder_repetition_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size renormalize_logits remove_invalid_values exponential_decay_length_penalty
    token_healing guidance_scale watermarking_config num_return_sequences output_attentions
    output_hidden_states output_scores output_logits return_dict_in_generate generation_kwargs use_cache
    use_mtp cache_implementation cache_config max_cache_len prefill_chunk_size compile_config
    disable_compile continuous_batching_config is_assistant num_assistant_tokens
    num_assistant_tokens_schedule assistant_confidence_threshold assistant_early_exit assistant_lookbehind
    assistant_ensemble_weight target_lookbehind prompt_lookup_num_tokens max_matching_ngram_size
    speculation_type
""".split()
CARRIED = (
    *GENERATION_KEYS,
    *"""
        sep_token_id cls_token_id mask_token_id id2label label2id problem_type task_specific_params etymon
        etymon_prefix etymon_shifted etymon_weights etymon_features
    """.split(),
)
# Keys that Transformers reads and that change nothing about what a model with its weights computes.
IGNORED = (
    # Names, versions, and where weights lie.
    *"""
        architectures model_type transformers_version _name_or_path name_or_path _commit_hash finetuning_task
        num_labels transformers_weights tie_encoder_decoder pruned_heads
    """.split(),
    # What is given back, how it is computed, and in which precision.
    *"""
        return_dict torchscript trainer_compatible gradient_checkpointing chunk_size_feed_forward
        attn_implementation _attn_implementation _attn_implementation_internal experts_implementation
        _experts_implementation distributed_config fusion_config torch_dtype dtype _is_quantized
        _pre_quantization_dtype
    """.split(),
    # First values, and chance in training.
    *"""
        initializer_range initializer_factor init_std attention_dropout summary_first_dropout
        summary_last_dropout
    """.split(),
)
# Names the classes of a folder that brings code of its own.
OWN_CODE = "auto_map"
# The file by which Transformers opens folders of ours that it has no class for. We never read it.
CODE_FILE = "modeling_etymon.py"

_passed_over: ContextVar[frozenset[str]] = ContextVar("keys to pass over", default=frozenset())


@contextmanager
def pass_over(keys: Sequence[str]) -> Iterator[None]:
    """Within it, whatever model is opened, these keys of its `config.json` are not looked at."""
    token = _passed_over.set(_passed_over.get() | {*keys})
    try:
        yield
    finally:
        _passed_over.reset(token)


def _is_ours(auto_map: Any) -> bool:
    """Whether a folder names no other code than the file that we write."""
    module = CODE_FILE.removesuffix(".py")
    return isinstance(auto_map, Mapping) and all(
        str(each).startswith(f"{module}.Etymon") for each in auto_map.values()
    )


@dataclass(frozen=True)
class SettingsMap:
    """A family's table for `config.json`.

    Keys that are absent take their `usual` values, or else the shape's defaults, which are the published
    class's. `head_keys` are beginnings of keys that only some heads read (Transformers' summary of a
    sequence).

    What no row can say is left to two functions. `after_read(ours, carried, keys)` changes our fields and the
    carried values in place, given all keys that count; a ValueError refuses the file. `after_write(shape)`
    gives further keys.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    """Fields that are only called otherwise: ours -> theirs."""
    fields: Sequence[Field] = ()
    """Other fields."""
    constants: Sequence[Constant] = ()
    ignored: Sequence[str] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    head_keys: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"summary_": ("choice",)})
    after_read: Callable[[dict[str, Any], dict[str, Any], Mapping[str, Any]], None] | None = None
    after_write: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def rows(self) -> list[Field]:
        """All fields."""
        return [*(Field(ours, theirs) for ours, theirs in self.names.items()), *self.fields]

    def read(
        self, config: Mapping[str, Any], where: str, heads: frozenset[str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Our fields, and the values to carry along. Of keys that only heads read, those of other `heads`
        than the folder holds do not matter (None: all do)."""
        published = config_keys(str(config.get("model_type")).removeprefix(OWN_TYPE))
        keys = {key: value for key, value in config.items() if key not in _passed_over.get()}
        rows = {row.theirs: row for row in (*self.rows, *OWN)}
        ours: dict[str, Any] = {}
        carried: dict[str, Any] = {}
        problems: dict[str, str] = {}
        # Some keys have two names. A family's own rows go by the name that they give.
        row_names = {
            *self.ignored,
            *(row.theirs for row in self.fields),
            *(row.theirs for row in self.constants),
        }
        for alias, key in () if published is None else published.aliases.items():
            if alias in keys and alias not in row_names:
                value = keys.pop(alias)
                if keys.setdefault(key, value) != value:
                    problems[alias] = f"{alias} = {_format(value)} contradicts {key} = {_format(keys[key])}"
        keys = {**self.usual, **keys}
        for key, value in keys.items():
            try:
                if key in rows:
                    ours[rows[key].ours] = rows[key].read(value)
                elif key in CARRIED:
                    carried[key] = value
                else:
                    self._check(key, value, published)
            except ValueError as error:
                readers = next((read for begin, read in self.head_keys.items() if key.startswith(begin)), ())
                if heads is None or not readers or heads & {*readers}:
                    problems[key] = str(error)
        if problems:
            options = " ".join(f"--ignore-config-key {key}" for key in problems)
            raise EtymonError(
                f"{where} describes a model that is not built here: {'; '.join(problems.values())} "
                f"(if that does not matter: {options})",
                code="unknown-config",
            )
        if self.after_read is not None:
            try:
                self.after_read(ours, carried, keys)
            except ValueError as error:
                raise EtymonError(f"{where} {error}") from error
        return ours, carried

    def _check(self, key: str, value: Any, published: TransformersKeys | None) -> None:
        """A ValueError if the key may change what the model computes, and says something else than is
        built."""
        constant = next((row for row in self.constants if row.theirs == key), None)
        if constant is not None:
            if value != constant.value:
                raise ValueError(f"{key} = {_format(value)}: {constant.reason}")
        elif key == OWN_CODE and _is_ours(value):
            return
        elif key == OWN_CODE and isinstance(value, Mapping) and any("AutoModel" in name for name in value):
            raise ValueError(f"{key} names code of the folder's own, which may compute anything")
        elif key in (*IGNORED, *self.ignored):
            return
        elif key.startswith("etymon") or published is None:
            raise ValueError(f"{key} = {_format(value)} is not known and might change the model")
        elif key in published.keys and not (key in published.defaults and published.defaults[key] == value):
            raise ValueError(f"{key} = {_format(value)} changes the model and is not supported")

    def write(self, shape: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a `config.json` for the fields of a shape."""
        return {
            **{
                row.theirs: row.write(shape[row.ours])
                for row in (*self.rows, *self.own_rows(shape))
                if row.unless is ... or shape[row.ours] != row.unless
            },
            **{row.theirs: row.value for row in self.constants if row.write},
            **({} if self.after_write is None else self.after_write(shape)),
        }

    def own_rows(self, shape: Mapping[str, Any]) -> list[Field]:
        """Our own rows that such a shape has and the family's table has not."""
        published = {row.ours for row in self.rows}
        return [row for row in OWN if row.ours in shape and row.ours not in published]


def _format(value: Any) -> str:
    """A value in a message, which stays one line."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
