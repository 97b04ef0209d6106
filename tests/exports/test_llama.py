"""llama.cpp runs what `etymon export --to gguf` writes: `make check-gguf` builds it and runs these tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etymon.checkpoints.folder import EXPORT_RECORD
from etymon.errors import EtymonError
from etymon.exports.check import TEXTS, check_inputs, compare_answers, model_answers
from etymon.exports.target import STATES, CheckInputs
from etymon.exports.writing import export_model
from etymon.families import get_family
from etymon.families.model import Model
from etymon.generation.decoding import decode
from etymon.language import read_po
from etymon.settings.decoding import DecodingSettings
from etymon.text.tokenizer_training import train_tokenizer
from tests import messages
from tests.exports.exported import exported_model

pytest.importorskip("gguf", reason="gguf is not installed (etymon[gguf])")

from etymon.exports.gguf_target import FILE, GgufTarget, compare_tokens
from etymon.exports.llama_runner import ENVIRONMENT, LlamaRunner, find_llama

pytestmark = pytest.mark.llama
ROOT = Path(__file__).parents[2]
BUILT = Path(os.environ.get(ENVIRONMENT, ROOT / ".venv-llama"))


@pytest.fixture(autouse=True)
def llama(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (BUILT / "bin" / "python").exists():
        pytest.skip("llama.cpp is not built: make check-gguf")
    monkeypatch.setenv(ENVIRONMENT, str(BUILT))


def open_runner(path: Path) -> LlamaRunner:
    python = find_llama()
    assert python is not None
    return LlamaRunner(python, path)


def export(model: Model, head: str, folder: Path, quantization: str = "f32") -> Path:
    return export_model(model, GgufTarget(), quantization, folder / "exported", head).folder / FILE


@pytest.mark.parametrize(
    "family, head, fields",
    [
        ("gpt2", "vocabulary", {}),
        ("gpt2", "vocabulary", {"tied": False, "scaled_by_layer": True, "residual_scale": 0.5}),
        ("t5", "vocabulary", {}),
        ("t5", "vocabulary", {"feed_forward": "relu", "tied": False, "head_dim": 24, "decoder_layers": 1}),
        ("bert", STATES, {}),
        ("bert", "classification", {"residual_scale": 0.7}),
        ("roberta", STATES, {}),
        ("roberta", "classification", {}),
        ("distilbert", STATES, {}),
        ("bert", STATES, {"position_kind": "rotary"}),
        ("roberta", STATES, {"position_kind": "rotary"}),
    ],
)
def test_llama_cpp_says_what_the_model_says(
    family: str, head: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model, target = exported_model(family, head, **fields), GgufTarget()
    path = export(model, head, tmp_path)
    figures = compare_answers(target, open_runner(path), model, head, check_inputs(model, head))
    # As near as its table of GELU, and GELU by tanh, are.
    assert figures.worst < 5e-3
    assert figures.agreement > 0.99
    record = json.loads((path.parent / EXPORT_RECORD).read_text())
    assert record["checked_by"] == "llama.cpp" and record["check"]["texts_compared"] > 0


@pytest.mark.parametrize("quantization", ["f16", "q8_0"])
@pytest.mark.parametrize("family, head", [("gpt2", "vocabulary"), ("t5", "vocabulary"), ("roberta", STATES)])
def test_rounded_weights_run_as_well(family: str, head: str, quantization: str, tmp_path: Path) -> None:
    fields = {"dim": 64, "inner_dim": 96, **({"head_dim": 32} if family == "t5" else {})}
    model = exported_model(family, head, tokenizer=False, **fields)
    GgufTarget().write(model, head, tmp_path, quantization)
    inputs = CheckInputs([[7, 8, 9]], [[0, 11, 12]] if family == "t5" else None)
    (theirs,) = open_runner(tmp_path / FILE).answer(inputs)
    (ours,) = model_answers(model, head, inputs)
    assert np.abs(theirs - ours).max() < 0.1 * np.abs(ours).max()


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_greedy_tokens_are_the_same(family: str, tmp_path: Path) -> None:
    model = exported_model(family, "vocabulary")
    prompts = [[5, 6, 7, 8], [40, 41], [9, 80, 41, 12, 33]]
    settings = DecodingSettings(max_new_tokens=16, min_new_tokens=16, end_ids=(model.shape.vocabulary - 1,))
    ours = [row[0].ids for row in decode(model, prompts, settings)]
    start = model.decoder_start if family == "t5" else None
    theirs = open_runner(export(model, "vocabulary", tmp_path)).generate(prompts, 16, start)
    for prompt, expected, actual in zip(prompts, ours, theirs, strict=True):
        for place in range(16):
            if expected[place] == actual[place]:
                continue
            # Only where two words are as likely to 1e-3 may another one be taken, and the rest differ.
            written = actual[:place]
            row = [start, *written] if start is not None else [*prompt, *written]
            inputs = CheckInputs([prompt], [row]) if start is not None else CheckInputs([row])
            logits = model_answers(model, "vocabulary", inputs)[0][-1]
            assert logits[expected[place]] - logits[actual[place]] < 2e-3 * np.abs(logits).max()
            break


@pytest.mark.parametrize(
    "family, head", [("gpt2", "vocabulary"), ("bert", STATES), ("roberta", STATES), ("t5", "vocabulary")]
)
def test_a_thousand_lines_of_two_languages_have_the_same_ids(family: str, head: str, tmp_path: Path) -> None:
    """The messages of the library, in English and Chinese."""
    pairs = read_po(messages.CATALOGUE)
    lines = [text for _, *both in pairs for text in both if text.strip()]
    assert len(lines) > 2000
    known = get_family(family)
    choice = known.tokenizer
    tokenizer = train_tokenizer(
        choice.kind, lines, 3000, lowercase=choice.lowercase, strip_accents=choice.strip_accents,
        specials=choice.specials, sentinels=choice.sentinels, framing=known.framing,
    )  # fmt: skip
    model = exported_model(family, head, vocabulary=tokenizer.size)
    model.tokenizer = tokenizer
    GgufTarget().write(model, head, tmp_path, "f32")
    runner = open_runner(tmp_path / FILE)
    # A mask that is spelled out takes the space before it along, but not there.
    lines = [line for line in lines if not any(token in line for token in choice.specials.values())]
    ours = [row.tolist() for row in tokenizer.encode_batch(lines, quiet=True)]
    for line, expected, actual in zip(lines, ours, runner.tokenize(lines), strict=True):
        assert actual == expected, line
    framed = [tokenizer.framing.frame(row).ids.tolist() for row in ours[:50]]
    assert runner.tokenize(lines[:50], add_special=True) == framed


def test_a_tokenizer_that_is_another_is_found_out(tmp_path: Path) -> None:
    model, other = (exported_model("gpt2", "vocabulary", vocabulary=500) for _ in range(2))
    model.tokenizer = train_tokenizer("byte-bpe", TEXTS, 400, specials={"end": "<|endoftext|>"})
    GgufTarget().write(model, "vocabulary", tmp_path, "f32")
    assert other.tokenizer is not None
    with pytest.raises(EtymonError, match="cuts texts into other tokens"):
        compare_tokens(other.tokenizer, open_runner(tmp_path / FILE))


def test_a_file_that_does_not_open_is_an_error_of_a_line(tmp_path: Path) -> None:
    path = export(exported_model("gpt2", "vocabulary"), "vocabulary", tmp_path)
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(EtymonError, match=r"llama\.cpp did not run the file: ") as refusal:
        open_runner(path)
    assert "\n" not in str(refusal.value)
