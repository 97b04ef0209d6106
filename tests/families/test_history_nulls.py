"""What history.json says with null it does not say."""

from __future__ import annotations

import json
from pathlib import Path

import etymon
from tests.families.folders import PRETRAINED, tiny


def test_null_in_a_history_says_nothing(tmp_path: Path) -> None:
    model = tiny("bert", PRETRAINED["bert"])
    model.history = [{"objective": "masked", "seen": {"steps": 3}, "training": None, "task": None}]
    etymon.save(model, tmp_path)
    path = tmp_path / "history.json"
    note = json.loads(path.read_text())
    path.write_text(json.dumps({**note, "labels": None, "lora": None, "carried": None, "features": None}))
    assert etymon.load(tmp_path).history == [{"objective": "masked", "seen": {"steps": 3}}]
    path.write_text(json.dumps({**note, "history": None, "heads": None}))
    again = etymon.load(tmp_path)
    assert again.history == [] and again.head_names == model.head_names
