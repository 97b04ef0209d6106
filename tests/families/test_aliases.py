"""XLM-RoBERTa, CamemBERT and mT5: the maths of RoBERTa and T5 under names of their own, with their tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from tests.tiny import texts

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 44,
    "max_position_embeddings": 66, "type_vocab_size": 1,
}  # fmt: skip
CLASSES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "xlm-roberta": ("XLMRoberta", "sentencepiece.bpe.model", ENCODER),
    "camembert": ("Camembert", "sentencepiece.bpe.model", {**ENCODER, "bos_token_id": 5, "eos_token_id": 6}),
}


@pytest.fixture(scope="module", params=CLASSES)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A model_type, and a folder that Transformers wrote, tokenizer and all."""
    name, file, config = CLASSES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "text").write_text("\n".join(texts()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "made"), model_type="unigram", vocab_size=150,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2, hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    (folder / "source").mkdir()
    (folder / "made.model").rename(folder / "source" / file)
    tokenizer = getattr(transformers, f"{name}Tokenizer").from_pretrained(folder / "source")
    cls = getattr(transformers, f"{name}ForMaskedLM")
    torch.manual_seed(1)
    cls(cls.config_class(vocab_size=len(tokenizer), **config)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return request.param, folder / "model"


def test_a_folder_reads_texts_alike_before_and_after(published: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = published
    ours = etymon.load(folder)
    etymon.save(ours, tmp_path / "saved")
    assert ours.tokenizer is not None
    both = [
        (transformers.AutoTokenizer.from_pretrained(place), transformers.AutoModelForMaskedLM.from_pretrained(place).eval())
        for place in (folder, tmp_path / "saved")
    ]  # fmt: skip
    for text in (["The river <mask> the letter."], ["The river", "crossed  it"]):
        (read, states), (again, others) = [(read(*text, return_tensors="pt"), model) for read, model in both]
        framed = ours.tokenizer.framing.frame(*map(ours.tokenizer.encode, text)).ids.tolist()
        assert read["input_ids"].tolist() == again["input_ids"].tolist() == [framed]
        with torch.no_grad():
            assert torch.equal(states(**read).logits, others(**again).logits)


def test_what_was_fine_tuned_keeps_its_names(published: tuple[str, Path], tmp_path: Path) -> None:
    model_type, folder = published
    rows = [{"text": text, "label": ["no", "yes"][n % 2]} for n, text in enumerate(texts(20))]
    run = etymon.finetune(
        folder, task="classify", train=rows, out=tmp_path / "run", steps=1, batch=4, baselines=False, progress="silent"
    )  # fmt: skip
    config = json.loads((run.model_folder / "config.json").read_text())
    name = CLASSES[model_type][0]
    assert (config["model_type"], config["architectures"]) == (
        model_type,
        [f"{name}ForSequenceClassification"],
    )
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(run.model_folder)
    assert type(theirs).__name__ == f"{name}ForSequenceClassification"
