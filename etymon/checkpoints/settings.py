"""Reading and writing another library's `config.json`, row by row.

Strictness is for our own files; a foreign one goes through a family's table of four kinds of row: a field of our
shape, a constant that must hold (or the file is refused, with the reason), a value carried along untouched, and
what may be ignored. Anything else is refused, since an unknown key may change the maths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etymon.errors import EtymonError


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

    def read(self, value: Any, where: str) -> Any:
        if self.values is None:
            return value
        for ours, theirs in self.values.items():
            if theirs == value:
                return ours
        known = ", ".join(str(theirs) for theirs in self.values.values())
        raise EtymonError(f"{where} has {self.theirs} = {value!r}, which is not supported (known: {known})")


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
    "_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype",
    "output_past", "return_dict", "gradient_checkpointing",
    "finetuning_task", "_num_labels", "num_labels", "tokenizer_class", "prefix", "attn_implementation",
    "_attn_implementation", "_attn_implementation_autoset", "chunk_size_feed_forward", "language",
    "torchscript", "use_bfloat16",
    "pruned_heads", "tf_legacy_loss", "directionality", "model_name", "name", "license", "datasets",
)  # fmt: skip


@dataclass(frozen=True)
class SettingsMap:
    """A family's table. Keys that are absent take the shape's defaults, which are the published class's."""

    fields: Sequence[Field]
    constants: Sequence[Constant] = ()
    ignored: Sequence[str] = field(default_factory=tuple)

    def read(
        self, config: Mapping[str, Any], where: str, ignore: Sequence[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Our fields, and the values to carry along."""
        table = {row.theirs: row for row in (*self.fields, *OWN)}
        fixed = {row.theirs: row for row in self.constants}
        ours: dict[str, Any] = {}
        carried: dict[str, Any] = {}
        for key, value in config.items():
            if key in ignore:
                continue
            if key in table:
                ours[table[key].ours] = table[key].read(value, where)
            elif key in fixed:
                if value != fixed[key].value:
                    raise EtymonError(f"{where} has {key} = {value!r}: {fixed[key].reason}")
            elif key in CARRIED:
                carried[key] = value
            elif key not in IGNORED and key not in self.ignored:
                raise EtymonError(
                    f"{where} has the key {key!r} = {value!r}, which is not known and might change the model: "
                    f"if it does not, pass --ignore-config-key {key}"
                )
        return ours, carried

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
