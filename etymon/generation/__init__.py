"""Decoding: from prompts to new tokens and texts."""

from __future__ import annotations

from etymon.generation.decoding import decode
from etymon.generation.sequences import Sequence
from etymon.generation.text import Generation, generate_texts
from etymon.settings.decoding import DecodingSettings

__all__ = ["DecodingSettings", "Generation", "Sequence", "decode", "generate_texts"]
