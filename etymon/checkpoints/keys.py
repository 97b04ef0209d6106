"""The types of what is read by name out of the JSON files of a model folder: a file in which one is wrong is
refused as a whole.

Keys that are not listed here are none of our business, or are checked by a family's own table
(`settings.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from etymon.config import check_keys

# More labels than this are a damaged file, and would be allocated before anything is compared.
Count = Annotated[int, Field(ge=0, le=10**7)]


def _label_number(key: str) -> str:
    if not (key.isascii() and key.isdigit() and len(key) <= 7):
        raise ValueError("expected the number of a label")
    return key


LabelNumber = Annotated[str, AfterValidator(_label_number)]
# Transformers writes one id, several (ends of a text), or null.
TokenIds = int | list[int] | None


@dataclass(frozen=True)
class ConfigKeys:
    """Of any family's config.json."""

    model_type: str | None = None
    architectures: list[str] | None = None
    id2label: dict[LabelNumber, Any] | None = None
    label2id: dict[str, Any] | None = None
    num_labels: Count | None = None
    problem_type: str | None = None
    task_specific_params: dict[str, dict[str, Any]] | None = None
    bos_token_id: TokenIds = None
    eos_token_id: TokenIds = None
    pad_token_id: TokenIds = None
    sep_token_id: TokenIds = None
    cls_token_id: TokenIds = None
    mask_token_id: TokenIds = None
    decoder_start_token_id: TokenIds = None
    forced_bos_token_id: TokenIds = None
    forced_eos_token_id: TokenIds = None
    etymon_prefix: bool | None = None
    etymon_shifted: bool | None = None
    # Of T5: Transformers stores them beside `feed_forward_proj`, which says the same.
    dense_act_fn: str | None = None
    is_gated_act: bool | None = None


@dataclass(frozen=True)
class HistoryKeys:
    """Of history.json."""

    # A history.json without it is somebody else's, and not read.
    etymon: str
    heads: list[str] | None = None
    labels: list[str] | None = None
    history: list[dict[str, Any]] | None = None
    lora: dict[str, Any] | None = None
    carried: dict[str, Any] | None = None
    features: dict[str, Any] | None = None


@dataclass(frozen=True)
class EntryKeys:
    """Of a training in history.json."""

    objective: str | None = None
    length: int | None = None
    training: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    tasks: dict[str, dict[str, Any]] | None = None
    seen: dict[str, Any] | None = None
    grown: dict[str, Any] | None = None
    plugins: list[dict[str, str]] | None = None


@dataclass(frozen=True)
class TaskKeys:
    """Of a task in it."""

    name: str
    options: dict[str, Any]
    limits: dict[str, Any]
    labels: list[str] | None = None
    outputs: list[int] | None = None


@dataclass(frozen=True)
class LoraKeys:
    """Of the adapters in it."""

    modules: list[str] | None = None
    targets: list[str] | None = None


@dataclass(frozen=True)
class AdapterKeys:
    """Of adapter_config.json."""

    base_model_name_or_path: str | None = None
    revision: str | None = None
    # PEFT's own defaults.
    r: Annotated[int, Field(ge=1)] = 8
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool | None = None


def check_history(note: Mapping[str, Any], where: str) -> None:
    """Refuses a history.json of ours in which something has another type."""
    check_keys(HistoryKeys, note, where)
    check_keys(LoraKeys, note.get("lora") or {}, where)
    for entry in note.get("history") or ():
        check_keys(EntryKeys, entry, where)
        for task in (entry.get("task"), *(entry.get("tasks") or {}).values()):
            if task is not None:
                check_keys(TaskKeys, task, where)
