"""What is BART's own: a bias that nobody trains, tokens that a text must begin and end with, old files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import etymon
from etymon.families.surgery import grow
from etymon.generation import DecodingSettings, decode
from tests.families.folders import assert_same, refusal, rewrite, tiny, without
from tests.tiny import tokenizer


def test_the_bias_of_words_is_stored_and_not_trained(tmp_path: Path) -> None:
    model = tiny("bart", {"vocabulary"})
    head = model.heads["vocabulary"]
    head.bias.copy_(torch.linspace(-2, 2, 31))
    assert "heads.vocabulary.bias" not in dict(model.named_parameters())
    etymon.save(model, tmp_path / "saved")
    again = etymon.load(tmp_path / "saved")
    assert torch.equal(again.heads["vocabulary"].bias, head.bias)
    larger = grow(model, 31, [[3, 4]])
    assert larger.heads["vocabulary"].bias.tolist() == pytest.approx(
        [*head.bias.tolist(), head.bias[3:5].mean().item()]
    )
    rewrite(tmp_path / "saved", without("final_logits_bias"))  # files of other heads, and old ones, have none
    assert not etymon.load(tmp_path / "saved").heads["vocabulary"].bias.any()


def test_untied_words_are_for_etymon_alone(tmp_path: Path) -> None:
    model = tiny("bart", {"vocabulary"}, tied=False)
    etymon.save(model, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "etymon-bart"
    assert_same(etymon.load(tmp_path / "saved"), model)


@pytest.mark.parametrize("key", ["normalize_before", "add_final_layer_norm", "is_decoder"])
def test_relatives_are_refused(tmp_path: Path, key: str) -> None:
    etymon.save(tiny("bart", {"vocabulary"}), tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: True}))
    assert key in refusal(tmp_path / "saved")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_forced_tokens_come_from_the_file_that_speaks_of_generation(tmp_path: Path, file: str) -> None:
    """They cost nothing, and a text that reaches its limit ends with the end."""
    saved, again = tmp_path / "saved", tmp_path / "again"
    etymon.save(tiny("bart", {"vocabulary"}), saved)
    if file == "config.json":
        (saved / "generation_config.json").unlink()
    # The older spelling of forced_bos_token_id, and that of bos_token_id.
    forced = (
        {"force_bos_token_to_be_generated": True} if file == "config.json" else {"forced_bos_token_id": 7}
    )
    forced |= {"bos_token_id": 7, "forced_eos_token_id": 2}
    (saved / file).write_text(json.dumps({**json.loads((saved / file).read_text()), **forced}))
    for folder in (saved, again):
        model = etymon.load(folder)
        for beams in (1, 3):
            for row in decode(
                model, [[4, 5, 6], [9]], DecodingSettings(max_new_tokens=4, beams=beams, end_ids=(30,))
            ):
                assert row[0].ids[0] == 7 and row[0].ids[-1] in (2, 30)
        etymon.save(model, again)
    assert json.loads((again / "generation_config.json").read_text())["forced_bos_token_id"] == 7


def test_the_decoder_starts_with_the_end() -> None:
    model = tiny("bart", {"vocabulary"}, vocabulary=tokenizer("bart").size)
    model.tokenizer = tokenizer("bart")
    framing = model.tokenizer.framing
    assert framing.start == "end" and framing.frame([9]).ids.tolist() == [
        model.token("begin"), 9, model.token("end"),
    ]  # fmt: skip
