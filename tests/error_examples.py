"""The folder in which the examples of docs/errors.md are run: small files, two small models, and what is broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import etymon
from tests.verbs.small_runs import pretrain, with_test_sizes


def prepare(folder: Path) -> None:
    """Writes all that the examples name into the folder, which is the current one."""
    words = "the story of a king who walked to a river and saw light on cold water"
    (folder / "my.txt").write_text(f"{words.capitalize()}. " * 300, encoding="utf-8")
    (folder / "empty.txt").write_text("", encoding="utf-8")
    (folder / "zh.txt").write_text(
        "位置很好，服务周到，早餐丰富。房间太小，隔音很差。\n" * 40, encoding="utf-8"
    )
    rows = [
        f"A {('dull', 'lovely')[number % 2]} film {number},{('bad', 'good')[number % 2]}"
        for number in range(40)
    ]
    (folder / "reviews.csv").write_text("\n".join(["review,verdict", *rows, ""]), encoding="utf-8")
    (folder / "two.csv").write_text("review,verdict\nA film,good\nA film,bad\n", encoding="utf-8")
    gap = rows[:4] + ["A film without a label,"] + rows[5:]
    (folder / "gaps.csv").write_text("\n".join(["review,verdict", *gap, ""]), encoding="utf-8")
    alike = [row.partition(",")[0] + ",good" for row in rows]
    (folder / "alike.csv").write_text("\n".join(["review,verdict", *alike, ""]), encoding="utf-8")
    (folder / "broken.jsonl").write_text(
        '{"text": "a", "label": "b"}\n{"text": "c", "label"\n', encoding="utf-8"
    )
    sheet = "编号,评论,评价\n" + "".join(
        f"{n},位置很好，服务周到。,好评\n".replace("，", "、") for n in range(20)
    )
    (folder / "gb.csv").write_bytes(sheet.encode("gb18030"))
    (folder / "gb.txt").write_bytes(sheet.encode("gb18030"))
    (folder / "papers").mkdir()
    (folder / "papers" / "draft.docx").write_text("mine", encoding="utf-8")
    with with_test_sizes():
        for family in ("gpt2", "bert"):
            pretrain(family, folder / "runs" / family, steps=1, slices=1, save_every=None)
    etymon.tokenizer(
        kind="byte-bpe", size=400, data=folder / "my.txt", out=folder / "words", progress="silent"
    )
    shutil.copytree(folder / "runs" / "gpt2" / "model", folder / "damaged")
    weights = folder / "damaged" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    shutil.copytree(folder / "runs" / "gpt2" / "model", folder / "foreign")
    config = folder / "foreign" / "config.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**settings, "add_cross_attention": True}), encoding="utf-8")
