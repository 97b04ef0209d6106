"""Plugin files for tests."""

from __future__ import annotations

from pathlib import Path

from tests import tiny

REVERSE = '''
from etymon.objectives.causal import CausalExample, CausalLM


class Reverse(CausalLM):
    """Text from its end."""

    name = "reverse"

    def prepare(self, split, row, rng):
        start, stop = row.tolist()
        ids = split.stream(start, stop, self.separator)[::-1].copy()
        return CausalExample(ids[:-1], ids[1:])
'''
EVERY_THIRD = """
import numpy as np


def every_third(sample, rng):
    return np.flatnonzero(sample.is_text)[int(rng.integers(3)) :: 3]
"""
FAMILY = """
from dataclasses import replace

from etymon.families import gpt2
from etymon.families.family import classes

FAMILY = replace(
    gpt2.FAMILY, name="gpt-mine", title="Mine", model_type="gpt-mine", architectures=classes("Mine", "LMHeadModel"),
    fits_transformers=lambda shape: False,
)
"""
TASK = """
from etymon.tasks.classify import Classify


class Mood(Classify):
    name = "mood"
"""


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_text() -> Path:
    return write("text.txt", "\n\n".join(tiny.texts()))
