"""GPT-1's arrays, fairseq's RoBERTa and BART, and the original Transformer-XL: the outputs that Transformers gives with the same
weights; and files that hold anything else than tensors and settings are not opened."""

from __future__ import annotations

import argparse
import io
import json
import logging
import random
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families.imports.fairseq_settings import fairseq_settings
from etymon.families.imports.pickles import load_pickle
from etymon.nn.batch import Batch

FIXTURES = Path(__file__).parents[1] / "fixtures" / "pickles"
CASES = [
    ("gpt1", "OpenAIGPTLMHeadModel"),
    ("roberta", "RobertaForMaskedLM"),
    ("roberta-old", "RobertaForMaskedLM"),
    ("bart", "BartForConditionalGeneration"),
]


@pytest.mark.parametrize(("name", "cls"), CASES, ids=[name for name, _ in CASES])
def test_converted_it_gives_the_expected_outputs(name: str, cls: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    result = etymon.convert(FIXTURES / name, tmp_path / "out")
    assert result.heads == ("vocabulary",) and result.new_heads == ()
    model = getattr(transformers, cls).from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    expected = np.load(FIXTURES / name / "expected.npz")
    ids = torch.from_numpy(expected["ids"])
    more = {"decoder_input_ids": ids.flip(1)[:, :7]} if name == "bart" else {}
    with torch.no_grad():
        logits = model(input_ids=ids, **more).logits
    np.testing.assert_allclose(logits.numpy(), expected["logits"], rtol=0, atol=5e-6)


def with_omegaconf(folder: Path) -> Path:
    """The fixture of RoBERTa with its settings as objects of omegaconf."""
    shutil.copytree(FIXTURES / "roberta", folder)
    shutil.copy(FIXTURES / "roberta-omegaconf" / "model.pt", folder / "model.pt")
    return folder


def test_settings_that_are_objects_of_omegaconf_are_read_without_it(tmp_path: Path) -> None:
    """Written by omegaconf and fairseq's own dataclasses: choices, references and numbers of numpy among them."""
    before = set(sys.modules)
    models = [etymon.load(folder) for folder in (with_omegaconf(tmp_path / "new"), FIXTURES / "roberta")]
    assert models[0].shape == models[1].shape and models[0].shape.dropout == 0.1  # by a reference
    for ours, theirs in zip(*(model.state_dict().items() for model in models), strict=True):
        assert ours[0] == theirs[0] and torch.equal(ours[1], theirs[1])
    assert not {"omegaconf", "fairseq"} & (set(sys.modules) - before)


def test_code_beside_settings_of_omegaconf_is_not_run(tmp_path: Path) -> None:
    folder = with_omegaconf(tmp_path / "one")
    saved = torch.load(FIXTURES / "roberta" / "model.pt", weights_only=True)
    torch.save({**saved, "cfg": {"model": Dangerous(tmp_path / "harm")}}, folder / "model.pt")
    assert "holds code" in refusal(folder) and not (tmp_path / "harm").exists()


@pytest.mark.parametrize("is_zip", [True, False], ids=["today", "before torch 1.6"])
def test_an_object_of_omegaconf_may_have_any_attribute(
    is_zip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("omegaconf")
    module.Odd = type("Odd", (), {"__module__": "omegaconf"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "omegaconf", module)
    odd = module.Odd()
    odd.arguments = 5  # a stand-in keeps there what it was made from
    folder = with_omegaconf(tmp_path / "one")
    saved = torch.load(FIXTURES / "roberta" / "model.pt", weights_only=True)
    saved["cfg"]["model"]["odd"] = odd
    torch.save(saved, folder / "model.pt", _use_new_zipfile_serialization=is_zip)
    monkeypatch.undo()
    assert etymon.load(folder).shape == etymon.load(FIXTURES / "roberta").shape


def test_settings_in_any_form_are_plain_values() -> None:
    nested = {
        "model": argparse.Namespace(dropout="${common.rate}", encoder={"layers": 3}, missing="${no.such}"),
        "common": {"rate": 0.3},
    }
    settings = fairseq_settings({"args": None, "cfg": nested}, Path("model.pt"))
    assert settings["dropout"] == 0.3 and settings["encoder_layers"] == 3 and settings["missing"] is None
    circle: dict[str, Any] = {"model": {"a": "${model.a}"}}
    circle["again"] = circle
    assert fairseq_settings({"cfg": circle}, Path("model.pt"))["a"] is None
    with pytest.raises(EtymonError, match="has neither args nor cfg"):
        fairseq_settings({"args": None, "cfg": {"model": None}}, Path("model.pt"))


def test_the_original_transformer_xl_counts_its_clusters_from_the_end(tmp_path: Path) -> None:
    """Transformers has no such class any more: its old one's log-probabilities are compared with ours."""
    etymon.convert(FIXTURES / "transfo-xl", tmp_path / "out")
    expected = np.load(FIXTURES / "transfo-xl" / "expected.npz")
    for folder in (FIXTURES / "transfo-xl", tmp_path / "out"):
        model = etymon.load(folder)
        assert model.shape.cutoffs == (20, 40) and model.shape.divisor == 2 and not model.shape.own_biases
        rows = expected["ids"].tolist()
        with torch.no_grad():
            hidden, _ = model.hidden(Batch.of(rows), model.remember(len(rows)))
            scores = model.heads["vocabulary"].log_probs(hidden)  # type: ignore[operator]
        ours = scores.view(len(rows), -1, 64).numpy()
        np.testing.assert_allclose(ours, expected["log_probabilities"].reshape(ours.shape), rtol=0, atol=5e-6)


@pytest.mark.parametrize(("name", "source"), [("transformer", 64), ("transformer-shared", None)])
def test_fairseq_s_transformer_has_its_own_sinusoids(name: str, source: int | None, tmp_path: Path) -> None:
    """Transformers has it as FSMT, whose outputs are compared with ours, before and after saving."""
    etymon.convert(FIXTURES / name, tmp_path / "out")
    expected = np.load(FIXTURES / name / "expected.npz")
    for folder in (FIXTURES / name, tmp_path / "out"):
        model = etymon.load(folder)
        assert model.shape.source_vocabulary == source and model.shape.sinusoid_layout == "fairseq"
        targets = expected["ids"][:, ::-1][:, :7].tolist()
        with torch.no_grad():
            hidden, _ = model.decode(Batch.of(targets), model.encode(Batch.of(expected["ids"].tolist())))
            logits = model.heads["vocabulary"].logits(hidden)  # type: ignore[operator]
        ours = logits.view(expected["logits"].shape).numpy()
        np.testing.assert_allclose(ours, expected["logits"], rtol=0, atol=5e-6)


def test_a_transformer_that_is_not_built_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "transformer", tmp_path / "one"))
    state = load_pickle(FIXTURES / "transformer" / "checkpoint_best.pt")
    for change, expected in (
        ({"decoder_attention_heads": 4}, "other heads in its decoder than in its encoder"),
        (
            {"adaptive_softmax_cutoff": "100,200"},
            "adaptive_softmax_cutoff = '100,200', which is not built here",
        ),
        ({"encoder_normalize_before": True}, "other norms or widths in its decoder"),
    ):
        args = argparse.Namespace(**{**vars(state["args"]), **change})
        torch.save({"args": args, "model": state["model"]}, folder / "checkpoint_best.pt")
        assert expected in refusal(folder)


def test_fairseq_s_dictionary_renumbers_gpt2_s_tokens() -> None:
    tokenizer = etymon.load(FIXTURES / "roberta").tokenizer
    assert (
        tokenizer is not None
        and tokenizer.size == 269
        and tokenizer.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    )
    assert tokenizer.tokens[-4:] == ["madeupword0000", "madeupword0001", "madeupword0002", "<mask>"]
    encoder = json.loads((FIXTURES / "roberta" / "encoder.json").read_text(encoding="utf-8"))
    # The fixture's dictionary has GPT-2's ids backwards.
    for token in ("er", "Ġthe", "a"):
        assert tokenizer.tokens.index(token) == 4 + 260 - encoder[token]
    assert tokenizer.backend.encode("er the", add_special_tokens=False).tokens == ["er", "Ġthe"]


def test_gpt1_s_tokenizer_comes_along() -> None:
    tokenizer = etymon.load(FIXTURES / "gpt1").tokenizer
    assert tokenizer is not None
    assert tokenizer.backend.encode("The", add_special_tokens=False).tokens == ["the</w>"]


def test_the_optimiser_s_state_is_left_aside_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "etymon"):
        etymon.load(FIXTURES / "roberta-old")
    assert "left aside the optimiser's state" in caplog.text


# --- what is not opened


class Dangerous:
    """Would write a file if it were unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def refusal(folder: Path) -> str:
    with pytest.raises(EtymonError) as caught:
        etymon.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["bart", "transfo-xl"])
def test_code_in_a_file_is_not_run(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / name, tmp_path / name))
    torch.save({"model": {}, "args": Dangerous(tmp_path / "harm")}, folder / "model.pt")
    assert "holds code (pathlib.Path.touch)" in refusal(folder) or "holds code" in refusal(folder)
    assert not (tmp_path / "harm").exists()


def test_a_module_of_another_code_is_not_built(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    torch.save(torch.nn.Conv1d(2, 2, 1), tmp_path / "one" / "model.pt")
    assert "holds code (torch.nn.modules.conv.Conv1d)" in refusal(tmp_path / "one")


def test_stand_ins_have_attributes_and_no_code() -> None:
    from etymon.families.imports.transfo_xl import CLASSES

    before = set(sys.modules)
    opened = load_pickle(FIXTURES / "transfo-xl" / "model.pt", CLASSES)
    assert type(opened).__name__ == "StandIn" and opened.n_token == 64 and not hasattr(opened, "forward")
    assert "mem_transformer" not in set(sys.modules) - before


def test_a_file_that_arrived_in_part_is_called_damaged(tmp_path: Path) -> None:
    """PyTorch says "Invalid argument" of half an archive, as of nothing that a reader could mend."""
    whole = (FIXTURES / "roberta" / "model.pt").read_bytes()
    for part in (whole[: len(whole) // 2], whole[:-10]):
        (tmp_path / "model.pt").write_bytes(part)
        with pytest.raises(EtymonError, match="is damaged, or no file of PyTorch; download or copy it again"):
            load_pickle(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["bart", "transfo-xl", "roberta"])
def test_damaged_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / name, tmp_path / name))
    path = folder / "model.pt"
    whole = path.read_bytes()
    for seed in range(12):
        rng = random.Random(seed)
        place = rng.randrange(len(whole))
        path.write_bytes(
            whole[:place] if seed % 2 else whole[:place] + rng.randbytes(40) + whole[place + 40 :]
        )
        try:
            etymon.load(folder)  # a changed weight of such a file has no checksum to tell
        except EtymonError as error:
            assert "\n" not in str(error)


def test_what_is_missing_or_strange_is_said(tmp_path: Path) -> None:
    gpt1 = Path(shutil.copytree(FIXTURES / "gpt1", tmp_path / "gpt1"))
    (gpt1 / "config.json").unlink()
    assert "how many attention heads a width of 16 has: put a config.json with n_head beside it" in refusal(
        gpt1
    )
    (gpt1 / "config.json").write_text('{"n_head": 2}')
    np.save(gpt1 / "params_9.npy", np.zeros(3, np.float32))
    assert "they do not belong together, or a part is missing" in refusal(gpt1)
    np.save(gpt1 / "params_9.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "params_9.npy is damaged or no array" in refusal(gpt1)
    (gpt1 / "params_4.npy").unlink()
    assert "not all of params_0.npy" in refusal(gpt1)
    (gpt1 / "params_shapes.json").write_text("[[1, 2], 3]")
    assert "is not the list of shapes of a GPT-1" in refusal(gpt1)

    bart = Path(shutil.copytree(FIXTURES / "bart", tmp_path / "bart"))
    state = load_pickle(bart / "model.pt")
    # Copies: what is read is mapped, and the file is written anew here.
    state["model"] = {name: tensor.clone() for name, tensor in state["model"].items()}
    assert isinstance(state["args"], argparse.Namespace)
    buffer = io.BytesIO()
    torch.save({"model": state["model"]}, buffer)
    (bart / "model.pt").write_bytes(buffer.getvalue())
    assert "has neither args nor cfg" in refusal(bart)
    torch.save([1, 2], bart / "model.pt")
    assert "has no weights under 'model'" in refusal(bart)
    strange = {**state["model"], "decoder.adapter.weight": torch.ones(2)}
    torch.save({"model": strange, "args": state["args"]}, bart / "model.pt")
    assert "weights that no BART has: decoder.adapter.weight" in refusal(bart)
