"""Folders of families that Transformers has no class for open there with `trust_remote_code`; Etymon runs no code of a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from tests import tiny

transformers = pytest.importorskip("transformers")

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "transformer-xl": ("transformer-xl", "CausalLM", {}),
    "pointer": ("gpt2", "CausalLM", {"pointer": 8}),
    "rnn": ("rnn", "Seq2SeqLM", {}),
    "transformer": ("transformer", "Seq2SeqLM", {}),
    "relative bias": ("bert", "MaskedLM", {"position_kind": "relative_bias"}),
}
IDS = [[5, 9, 12, 7, 30], [8, 6, 11]]
PADDED = torch.tensor([IDS[0], [*IDS[1], 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers keeps copies of the code of folders in its cache."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


def saved(family: str, folder: Path, heads: Sequence[str] = ("vocabulary",), **shape: Any) -> Model:
    fields = {**tiny.shape(family), **shape, "vocabulary": tiny.tokenizer(family).size}
    model = etymon.build(family, heads=frozenset(heads), shape=fields)
    model.tokenizer = tiny.tokenizer(family)
    etymon.save(model, folder)
    return model.eval()


def logits(model: Model) -> list[torch.Tensor]:
    """Row by row, without padding."""
    head: Any = model.heads["vocabulary"]
    rows = []
    for ids in IDS:
        batch = Batch.of([ids])
        if model.encoder_decoder:
            target = Batch.of([[model.decoder_start, *ids[:-1]]])
            hidden = model.decode(target, model.encode(batch))[0]
            rows.append(head.logits(hidden, None, Context(target)))
        else:
            rows.append(head.logits(model.states(batch), None, Context(batch)))
    return rows


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_automatic_classes_open_it_and_compute_the_same(name: str, tmp_path: Path) -> None:
    family, kind, shape = MODELS[name]
    model = saved(family, tmp_path / "model", **shape)
    opener = getattr(transformers, f"AutoModelFor{kind}")
    opened = opener.from_pretrained(tmp_path / "model", trust_remote_code=True)
    labels = {"labels": PADDED.masked_fill(MASK == 0, -100)}
    outputs = opened(input_ids=PADDED, attention_mask=MASK, **labels)
    for row, expected in enumerate(logits(model)):
        torch.testing.assert_close(outputs.logits[row, : len(expected)], expected, atol=1e-5, rtol=1e-4)
    assert outputs.loss.isfinite()
    # It goes back as it came, and Etymon opens what was saved.
    opened.save_pretrained(tmp_path / "again")
    again = etymon.load(tmp_path / "again")
    for tensor, other in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(tensor, other)


@torch.no_grad()
def test_letters_are_read_as_ids_by_the_bare_model(tmp_path: Path) -> None:
    model = saved("elmo", tmp_path / "model")
    opened = transformers.AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True)
    assert model.tokenizer is not None
    ids = [min(number, model.tokenizer.size - 1) for number in IDS[0]]
    states = opened(input_ids=torch.tensor([ids, ids]), attention_mask=MASK).last_hidden_state
    expected = model.last_layer(Batch.of([ids, ids[:3]]))
    torch.testing.assert_close(states[MASK.bool()], expected, atol=1e-5, rtol=1e-4)
    assert (
        "AutoModelForMaskedLM" not in json.loads((tmp_path / "model" / "config.json").read_text())["auto_map"]
    )


@torch.no_grad()
def test_task_heads_answer_and_texts_are_written(tmp_path: Path) -> None:
    heads = {"classification": "SequenceClassification", "tagging": "TokenClassification"}
    for head, ending in heads.items():
        model = saved("transformer-xl", tmp_path / head, heads=(head,))
        opener = getattr(transformers, f"AutoModelFor{ending}")
        opened = opener.from_pretrained(tmp_path / head, trust_remote_code=True)
        outputs = opened(input_ids=PADDED[:1]).logits[0]
        torch.testing.assert_close(outputs, model.answer(head, Batch.of(IDS[:1])).view(outputs.shape))
    saved("transformer-xl", tmp_path / "model")
    writer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    written = writer.generate(PADDED[:1], max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert written.shape[1] > PADDED.shape[1] and torch.equal(written[:, :5], PADDED[:1])
    saved("rnn", tmp_path / "rnn")
    translator = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "rnn", trust_remote_code=True)
    assert translator.generate(PADDED, attention_mask=MASK, max_new_tokens=3).shape[0] == 2


def test_without_trust_nothing_is_run(tmp_path: Path) -> None:
    saved("transformer", tmp_path / "model")
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", trust_remote_code=False)


def test_etymon_never_runs_the_file_and_refuses_other_code(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    saved("transformer", folder)
    (folder / "modeling_etymon.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    etymon.load(folder, verify=False)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"]["AutoModel"] = "modeling_other.OtherModel"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(etymon.EtymonError, match="code of the folder's own"):
        etymon.load(folder, verify=False)


def test_ordinary_folders_bring_no_code(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "model")
    assert not (tmp_path / "model" / "modeling_etymon.py").exists()
    assert "auto_map" not in json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
