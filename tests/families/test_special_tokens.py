"""What a folder says about its special tokens and about generation is kept, and used, whatever a family's custom is."""

from __future__ import annotations

import json
import logging
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etymon
from etymon.checkpoints.settings import GENERATION_KEYS
from etymon.families import REGISTRY, get_family
from etymon.families.model import Model
from etymon.families.special_tokens import START_KEY, TOKEN_KEYS, start_id, token_ids
from etymon.generation import DecodingSettings, decode
from etymon.objectives.denoising import Seq2SeqBatch
from tests import tiny
from tests.families import folders

FAMILIES = sorted(REGISTRY)
NO_CLASS = ("elmo", "rnn", "transformer", "transformer-xl")
"""Families that the installed Transformers has no class for."""
CONFIGS = {
    "gpt1": "OpenAIGPTConfig", "gpt2": "GPT2Config", "gpt3": "GPTNeoConfig", "gptj": "GPTJConfig", "bert": "BertConfig",
    "t5": "T5Config", "roberta": "RobertaConfig", "albert": "AlbertConfig", "distilbert": "DistilBertConfig",
    "electra": "ElectraConfig", "bart": "BartConfig", "xlnet": "XLNetConfig",
}  # fmt: skip
SOURCE = [9, 14, 11, 8]
NEW_TOKENS = 8
LEGACY = {
    "num_beams": 2, "max_length": 13, "min_length": 3, "no_repeat_ngram_size": 2, "length_penalty": 1.5,
    "early_stopping": True, "repetition_penalty": 1.2, "suppress_tokens": [12], "top_k": 7,
}  # fmt: skip
"""Settings of generation, as they also stand in the `config.json` of older folders."""
NEUTRAL = {
    "num_beams": 1, "max_length": None, "min_length": 0, "no_repeat_ngram_size": 0, "length_penalty": 1.0,
    "early_stopping": False, "repetition_penalty": 1.0, "suppress_tokens": None,
}  # fmt: skip
"""What makes Transformers decode greedily, whatever the folder says."""


def lively(family: str) -> Model:
    """A tiny model with a tokenizer, whose texts vary."""
    known = get_family(family)
    changes = folders.NEO if family == "gpt3" else {}
    fields = {**tiny.shape(family), "vocabulary": tiny.tokenizer(family).size, **changes}
    model = etymon.build(known, shape=fields, heads={"vocabulary"})
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    model.tokenizer = tiny.tokenizer(family)
    return model.eval()


def generates(model: Model) -> bool:
    return "state" in model.capabilities


def written(model: Model, **settings: Any) -> list[int]:
    return decode(model, [SOURCE], DecodingSettings(max_new_tokens=NEW_TOKENS, **settings))[0][0].ids


def read(folder: Path, file: str) -> dict[str, Any]:
    return json.loads((folder / file).read_text()) if (folder / file).is_file() else {}


def change(folder: Path, file: str, **values: Any) -> None:
    (folder / file).write_text(json.dumps({**read(folder, file), **values}))


def unusual_folder(family: str, files: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Saves a model and lets its files name other special tokens than its tokenizer; what they now say.

    The end is a token that it writes, so that it matters where a text stops.
    """
    model = lively(family)
    etymon.save(model, folder)
    rng = random.Random(zlib.crc32(f"{family} {files}".encode()))
    free = range(3, 13)  # small: a RoBERTa has as many positions less as its pad is large
    keys = [*TOKEN_KEYS.values(), "forced_bos_token_id"]
    keys += [START_KEY] if model.encoder_decoder else []
    config: dict[str, Any] = dict(zip(keys, rng.sample(free, len(keys)), strict=True))
    if not model.encoder_decoder:
        config.pop("forced_bos_token_id")
    generation: dict[str, Any] = {}
    if generates(model):
        model.carried = {key: value for key, value in config.items() if key != "eos_token_id"}
        unseen = next(number for number in range(20, 40) if number not in written(model, end_ids=(19,)))
        config["eos_token_id"] = written(model, end_ids=(19,))[3]
        config["forced_eos_token_id"] = unseen
    change(folder, "config.json", **config)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if files == "config":
        change(folder, "config.json", **LEGACY)
        config |= LEGACY
    elif generates(model):
        # Other tokens than config.json has, and two ends.
        moved = {key: config[key] + 11 for key in config if key in GENERATION_KEYS}
        model.carried = moved | {"eos_token_id": 19}
        generation = {**LEGACY, **moved, "eos_token_id": [unseen, written(model)[2]]}
        generation["forced_eos_token_id"] = rng.choice(range(40, 60))
        change(folder, "generation_config.json", **generation)
    return config, generation


@pytest.mark.parametrize("files", ["config", "both"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_folder_says_of_its_tokens_survives_and_is_used(
    family: str, files: str, tmp_path: Path
) -> None:
    source, again = tmp_path / "source", tmp_path / "again"
    config, generation = unusual_folder(family, files, source)
    first = etymon.load(source)
    etymon.save(first, again)
    assert {key: read(again, "config.json")[key] for key in config} == config
    if generation:
        assert read(again, "generation_config.json") == generation
    found = []
    for model in (first, etymon.load(again)):
        for role, key in TOKEN_KEYS.items():
            assert key not in config or model.token(role) == config[key]
        if model.encoder_decoder:
            assert model.decoder_start == config[START_KEY]
            assert start_id(model, generating=True) == (generation or config)[START_KEY]
            prepared = Seq2SeqBatch.of("loss", [(np.array(SOURCE), np.array([7, 8, 9]))])
            assert prepared.inputs(model).ids.tolist() == [config[START_KEY], 7, 8]
            found.append(pytest.approx(prepared.loss(model, 0.0).item()))
        if generates(model):
            end = (generation or config)["eos_token_id"]
            assert token_ids(model, "end", generating=True) == tuple(end if isinstance(end, list) else [end])
            found.append(ids := written(model))
            assert len(ids) < NEW_TOKENS  # it has met its end
    half = len(found) // 2
    assert found[:half] == found[half:]


@pytest.mark.parametrize("files", ["config", "both"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NO_CLASS])
@torch.no_grad()
def test_transformers_finds_the_same_before_and_after(family: str, files: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    source, again = tmp_path / "source", tmp_path / "again"
    config, _ = unusual_folder(family, files, source)
    ours = etymon.load(source)
    etymon.save(ours, again)
    ids = torch.tensor([SOURCE])
    labels = torch.tensor([[7, 8, 9]]) if ours.encoder_decoder else ids
    found, logits = [], []
    for folder in (source, again):
        theirs = getattr(transformers, read(folder, "config.json")["architectures"][0])
        theirs = theirs.from_pretrained(folder).eval()
        told = {key: getattr(theirs.config, key, None) for key in config if key.endswith("_token_id")}
        out = theirs(input_ids=ids, labels=labels)
        found.append([told, pytest.approx(out.loss.item())])
        logits.append(out.logits)
        if not generates(ours):
            continue
        given = {"attention_mask": torch.ones_like(ids)}
        settings = theirs.generation_config.to_dict()
        found[-1] += [{key: value for key, value in settings.items() if key != "_from_model_config"}]
        found[-1] += [theirs.generate(ids, **given).tolist()]
        if family == "xlnet":  # which reads its text anew for every token there, and may see more of it
            continue
        greedy = theirs.generate(ids, **given, **NEUTRAL, do_sample=False, max_new_tokens=NEW_TOKENS)
        assert greedy[0, 1 if ours.encoder_decoder else len(SOURCE) :].tolist() == written(ours)
        if ours.encoder_decoder:
            prepared = Seq2SeqBatch.of("loss", [(np.array(SOURCE), labels[0].numpy())])
            assert float(prepared.loss(ours, 0.0)) / 3 == pytest.approx(out.loss.item(), rel=1e-5)
    assert found[0] == found[1]
    torch.testing.assert_close(*logits)


def test_what_a_family_takes_for_granted_is_what_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    for family, name in CONFIGS.items():
        usual = getattr(transformers, name)()
        told = {role: getattr(usual, key, None) for role, key in TOKEN_KEYS.items()}
        known = get_family(family).special_ids
        assert known == {role: number for role, number in told.items() if number is not None}, family


def test_every_setting_of_generation_is_known() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = set(transformers.GenerationConfig().to_dict())
    assert theirs - {"transformers_version", "_from_model_config"} <= set(GENERATION_KEYS)


# --- saved without a tokenizer


@pytest.mark.parametrize("family", ["t5", "bart"])
@torch.no_grad()
def test_a_model_without_a_tokenizer_has_a_loss_in_transformers(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = lively(family)
    model.tokenizer = None
    etymon.save(model, tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    loss = theirs(input_ids=torch.tensor([SOURCE]), labels=torch.tensor([[7, 8, 9]])).loss
    prepared = Seq2SeqBatch.of("loss", [(np.array(SOURCE), np.array([7, 8, 9]))])
    assert float(prepared.loss(model, 0.0)) / 3 == pytest.approx(loss.item(), rel=1e-5)
    greedy = theirs.generate(torch.tensor([SOURCE]), max_new_tokens=NEW_TOKENS)
    assert greedy[0, 1:].tolist() == written(model) == written(etymon.load(tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_without_a_tokenizer_names_what_its_class_takes_for_granted(
    family: str, tmp_path: Path
) -> None:
    """And null, which is no token, where that is outside the vocabulary."""
    model = lively(family)
    model.tokenizer = None
    etymon.save(model, tmp_path)
    config = read(tmp_path, "config.json")
    for role, number in get_family(family).special_ids.items():
        assert config[TOKEN_KEYS[role]] == (number if number < model.shape.vocabulary else None)
    assert (START_KEY in config) == model.encoder_decoder


# --- ids that no token has


def test_ids_outside_the_vocabulary_are_said_once_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, again = tmp_path / "source", tmp_path / "again"
    etymon.save(lively("gpt2"), source)
    end = tiny.tokenizer("gpt2").id("end")
    change(source, "config.json", bos_token_id=50256, eos_token_id=50256, pad_token_id=-1, sep_token_id=999)
    change(source, "generation_config.json", eos_token_id=[50256, 5], bos_token_id=True, num_beams=3)
    with caplog.at_level(logging.WARNING, "etymon"):
        model = etymon.load(source)
    (note,) = [record.getMessage() for record in caplog.records]
    assert "config.json: bos_token_id 50256, eos_token_id 50256, pad_token_id -1, sep_token_id 999;" in note
    assert "generation_config.json: bos_token_id True, eos_token_id [50256, 5])" in note
    assert (model.token("begin"), model.token("pad")) == (end, None)  # the tokenizer's, where it has one
    assert token_ids(model, "end", generating=True) == (5,)
    caplog.clear()
    etymon.save(model, again)
    with caplog.at_level(logging.WARNING, "etymon"):
        etymon.load(again)
    assert not caplog.records
    assert (
        read(again, "config.json")["bos_token_id"] == end
        and read(again, "config.json")["pad_token_id"] is None
    )
    generation = read(again, "generation_config.json")
    assert (generation["eos_token_id"], generation["num_beams"]) == ([5], 3)


def test_a_pad_that_positions_are_counted_from_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = lively("roberta")
    etymon.save(model, tmp_path / "source")
    rows = model.body.embeddings.positions.weight.shape[0]
    change(tmp_path / "source", "config.json", pad_token_id=-1)
    etymon.save(loaded := etymon.load(tmp_path / "source"), tmp_path / "again")
    assert loaded.positions == rows and not caplog.records
    assert read(tmp_path / "again", "config.json")["pad_token_id"] == -1
