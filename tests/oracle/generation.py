"""Decoding as a case asks for it: the reference's keywords translated into our settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from etymon.families.model import Model
from tests.oracle.case import Case
from tests.oracle.judge import Verdict, judge_sequences

SETTINGS = {
    "max_new_tokens": "max_new_tokens",
    "min_new_tokens": "min_new_tokens",
    "num_beams": "beams",
    "num_return_sequences": "returns",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "repetition_penalty": "repetition_penalty",
}
# They choose among equal ways, or say what to return.
NEUTRAL = {"use_cache", "use_mems", "return_dict_in_generate", "output_scores"}
# These mean nothing without sampling, and those nothing without beams: the reference lets them pass.
ONLY_SAMPLING, ONLY_BEAMS = {"temperature", "top_k", "top_p"}, {"length_penalty", "early_stopping"}


def run_generations(case: Case, model: Model, verdict: Verdict) -> None:
    """Decodes everything that a case asks for."""
    if not case.generations:
        return
    try:
        from etymon.generation import DecodingSettings, decode
    except ImportError as error:
        verdict.problems.append(f"generation is not available: {error}")
        return
    for wanted in case.generations:
        name, tensors = wanted["name"], case.tensors({"tensors": wanted.get("tensors", {})})
        width = 1 if model.encoder_decoder else tensors["input_ids"].shape[1]
        given = {**_defaults(case), **(wanted.get("const") or {})}
        settings, unknown = translated(given, width)
        unknown += sorted(set(tensors) - {"input_ids", "attention_mask"})
        if unknown:
            verdict.problems.append(f"gen.{name}: not understood: {', '.join(unknown)}")
            continue
        prompts = prompts_of(tensors, given.get("pad_token_id"), settings["end_ids"])
        whole = None if model.encoder_decoder else tensors["input_ids"].tolist()
        try:
            with histories(whole), stopping(case.manifest["library_version"]):
                found = decode(model, prompts, DecodingSettings(**settings))
        except Exception as error:
            verdict.problems.append(f"gen.{name}: {type(error).__name__}: {error}")
            continue
        sequences = [(list(one.ids), float(one.score)) for row in found for one in row]
        judge_sequences(case, name, width, sequences, verdict)


@contextmanager
def histories(padded: list[list[int]] | None) -> Iterator[None]:
    """Shows the rules against repetition the prompts with their padding.

    The reference takes the pads of a padded row for words that were said: it penalises them, and n-grams with them.
    Here rows know nothing of padding, so that is put in from outside, for the comparison alone.
    """
    from etymon.generation import decoding

    class Padded(decoding.ScoreProcessor):
        def __init__(self, settings: Any, histories: list[list[int]], **options: Any) -> None:
            super().__init__(settings, histories if padded is None else padded, **options)

    with patch.object(decoding, "ScoreProcessor", Padded):
        yield


@contextmanager
def stopping(version: str) -> Iterator[None]:
    """Beam search ends as it did in the release that wrote a case: old ones hope for longer."""
    from etymon.generation import beam

    def best_candidate(running: beam.Beams, candidates: beam.Beams) -> torch.Tensor:
        return candidates.scores[:, :1]

    old = version.startswith("4.37.")
    with patch.object(beam, "best_sum", best_candidate if old else beam.best_sum):
        yield


def _defaults(case: Case) -> dict[str, Any]:
    """What the reference takes from the checkpoint where a call says nothing."""
    stored = case.folder / "generation_config.json"
    found = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    return {key: found[key] for key in ("eos_token_id", "pad_token_id") if found.get(key) is not None}


def translated(given: Mapping[str, Any], width: int) -> tuple[dict[str, Any], list[str]]:
    """Our settings, and the keywords that have none; `width` is the reference's length of a prompt."""
    end = given.get("eos_token_id")
    settings: dict[str, Any] = {"end_ids": (end,) if isinstance(end, int) else tuple(end or ())}
    unknown = []
    beams = given.get("num_beams", 1) > 1
    for key, value in given.items():
        if key in NEUTRAL | ONLY_SAMPLING | {"eos_token_id", "pad_token_id"} or (
            key in ONLY_BEAMS and not beams
        ):
            continue
        if key == "max_length":
            settings.setdefault("max_new_tokens", value - width)
        elif key in SETTINGS and value != "never":
            settings[SETTINGS[key]] = value
        elif key != "do_sample" or value:
            unknown.append(f"{key}={value!r}")
    return settings, unknown


def prompts_of(
    tensors: Mapping[str, torch.Tensor], pad: int | None, ends: tuple[int, ...]
) -> list[list[int]]:
    """The rows without padding; without a mask, pads are told by their id, as the reference does."""
    ids, mask = tensors["input_ids"], tensors.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(ids) if pad is None or pad in ends else ids != pad
    return [row[real.bool()].tolist() for row, real in zip(ids, mask, strict=True)]
