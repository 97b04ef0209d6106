"""Folders that are saved here open in Transformers 4 as well, and compute the same there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import etymon
from etymon.families.model import Model
from etymon.nn.batch import Batch
from tests.families.folders import PRETRAINED, tiny
from tests.peers.environment import run_peer

HEADS = {name: heads for name, heads in PRETRAINED.items() if name not in ("transformer", "rnn")}
HEADS |= {"xlnet": {"vocabulary"}, "t5-1.1": {"vocabulary"}}
CHANGES = {"t5-1.1": {"tied": False, "feed_forward": "gated-gelu"}}
IDS = torch.tensor([[4, 7, 9, 2, 30, 11], [5, 6, 3, 8, 12, 20]])


def model_of(name: str) -> Model:
    return tiny(name.partition("-")[0], HEADS[name], **CHANGES.get(name, {})).eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("folders")
    for name in HEADS:
        etymon.save(model_of(name), place / name)
        save_file({"ids": IDS}, place / name / "ids.safetensors")
    run_peer("logits.py", place)
    return place


@pytest.mark.parametrize("name", HEADS)
def test_a_saved_folder_computes_the_same_in_transformers_4(name: str, folders: Path) -> None:
    model = model_of(name)
    batch = Batch.of(IDS.tolist())
    with torch.no_grad():
        if model.encoder_decoder:
            hidden, _ = model.decode(batch, model.encode(batch))
        else:
            hidden, _ = model.hidden(batch)
        head = "vocabulary" if "vocabulary" in model.heads else "replaced"
        logits = model.heads[head].logits(hidden) if head == "vocabulary" else model.read(head, hidden, batch)
    theirs = load_file(folders / name / "logits.safetensors")["logits"]
    torch.testing.assert_close(logits.reshape(theirs.shape), theirs, atol=2e-5, rtol=1e-4)
