"""`--from MODEL --vocabulary N`: going on with more words, without a change to anything that the model knew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import etymon
from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.families.loading import load
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.families.surgery import grow
from etymon.nn.batch import Batch
from etymon.runs.result import Pretrained
from etymon.runs.run_file import RunFile
from etymon.text.sources import Texts
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import extends, spellings
from tests import tiny
from tests.text.test_growing import DOMAIN
from tests.verbs.small_runs import FAMILIES, crash, metrics, pretrain, resume

PEERS = {
    "gpt2": "AutoModelForCausalLM", "bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM",
    "electra": "ElectraForPreTraining",
}  # fmt: skip


def on(family: str, out: Path, start: Path, **changes: object) -> Pretrained:
    known = Tokenizer.load(start).size
    return pretrain(
        family, out,
        **{"data": Texts(DOMAIN), "from_": start, "size": None, "vocabulary": known + 60, "steps": 3, **changes},
    )  # fmt: skip


def hidden(model: Model, rows: list[np.ndarray]) -> Tensor:
    batch = Batch.of(rows)
    with torch.no_grad():
        if not model.encoder_decoder:
            return model.hidden(batch)[0]
        return model.decode(batch, model.encode(batch))[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_knew_it_still_knows(family: str, straight: Callable[[str], Pretrained]) -> None:
    old = load(straight(family).model_folder)
    assert old.tokenizer is not None
    known = old.tokenizer.size
    grown = grow(old, known, [[5, 6, 6], [7], []])
    assert grown.shape.vocabulary == known + 3 and grown.history == old.history
    rows = [old.tokenizer.encode(text).astype(np.int64)[:40] for text in tiny.texts(5)]
    before, after = hidden(old, rows), hidden(grown, rows)
    torch.testing.assert_close(before, after, atol=1e-6, rtol=1e-5)
    same = grow(old, known, [])
    assert same.shape == old.shape
    for (name, mine), (other, theirs) in zip(same.named_parameters(), old.named_parameters(), strict=True):
        assert name == other and torch.equal(mine, theirs)
    if "vocabulary" not in old.heads:
        return
    one, two = (model.heads["vocabulary"].logits(before) for model in (old, grown))
    torch.testing.assert_close(one, two[:, :known], atol=1e-5, rtol=1e-5)  # products of other sizes
    # Scores are linear in the rows of the head, and a new row is the mean of others.
    assert torch.allclose(two[:, known], one[:, [5, 6, 6]].mean(1), atol=1e-5)
    assert torch.allclose(two[:, known + 1], one[:, 7], atol=1e-5)
    assert torch.allclose(two[:, known + 2], one.mean(1), atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_matrices_of_their_own_grow_too(family: str) -> None:
    shape = {**tiny.shape(family), "vocabulary": 20, "tied": False}
    old = etymon.build(family, shape=shape, seed=3)
    grown = grow(old, 18, [[1, 2], [3], [4, 5, 6]])
    assert grown.shape.vocabulary == 21, "two rows belonged to no word"
    for name, parameter in old.named_parameters():
        after = grown.get_parameter(name)
        if len(parameter) == 20:
            assert torch.equal(after[:18], parameter[:18]) and len(after) == 21
            for number, pieces in ((18, [1, 2]), (19, [3]), (20, [4, 5, 6])):
                assert torch.allclose(after[number], parameter[pieces].mean(0))
        else:
            assert torch.equal(after, parameter)
    assert (
        sum(len(parameter) == 20 for parameter in old.parameters()) == {"gpt2": 2, "bert": 3, "t5": 2}[family]
    )


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_words_that_are_made_of_nothing_have_first_values(family: str) -> None:
    shape = {**tiny.shape(family), "vocabulary": 20, "tied": False}
    old = etymon.build(family, shape=shape, seed=3)
    grown = grow(old, 18, [None, [3], None], seed=7)
    new = etymon.build(family, shape={**shape, "vocabulary": 21}, seed=7)
    for name, parameter in old.named_parameters():
        after = grown.get_parameter(name)
        if len(parameter) == 20:
            assert torch.equal(after[:18], parameter[:18]) and torch.equal(after[19], parameter[3])
            # Not the rows that nobody used.
            assert torch.equal(after[[18, 20]], new.get_parameter(name)[[18, 20]])
        else:
            assert torch.equal(after, parameter)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_with_more_words(
    family: str, straight: Callable[[str], Pretrained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    old = load(straight(family).model_folder)
    run = on(family, tmp_path / "run", straight(family).model_folder, progress="plain")
    tokenizer = run.model.tokenizer
    assert old.tokenizer is not None and tokenizer is not None and extends(tokenizer, old.tokenizer)
    size = old.tokenizer.size
    assert f"the tokenizer has grown from {size} to {size + 60} tokens" in capsys.readouterr().err
    assert run.model.shape.vocabulary == tokenizer.size == size + 60
    lengths = [sum(len(each.encode(text)) for text in DOMAIN) for each in (old.tokenizer, tokenizer)]
    assert lengths[1] < lengths[0]
    # All is written down, and read back elsewhere.
    assert run.model.history[-1]["grown"] == {"from": size, "to": size + 60}
    assert run.model.history[-1]["started_from"] == str(straight(family).model_folder)
    card = (run.model_folder / "README.md").read_text(encoding="utf-8")
    assert f"| grown | from {size} to {size + 60} tokens on texts given by the program |" in card
    assert load_yaml(run.folder / "run.yaml", RunFile).vocabulary == size + 60
    peer = getattr(transformers, PEERS[family]).from_pretrained(run.model_folder)
    theirs = transformers.AutoTokenizer.from_pretrained(run.model_folder)
    assert peer.config.vocab_size == size + 60 == peer.get_input_embeddings().num_embeddings
    for text in [*DOMAIN[:3], *tiny.texts(3)]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text).tolist()


def test_it_begins_where_its_words_come_from(straight: Callable[[str], Pretrained], tmp_path: Path) -> None:
    """Before the first step, new rows are the means over old ones and nothing else is different."""
    start = straight("gpt2").model_folder
    run = on("gpt2", tmp_path / "run", start, steps=1, learning_rate=1e-12, set=["weight_decay=0"])
    old = load(start)
    assert run.model.tokenizer is not None and old.tokenizer is not None
    spelled = spellings(run.model.tokenizer, old.tokenizer)
    words, rows = old.body.embeddings.words.weight, run.model.body.embeddings.words.weight
    means = torch.stack([words[pieces].mean(0) for pieces in spelled])
    assert torch.allclose(rows, torch.cat([words, means]), atol=1e-6)


def test_a_grown_run_goes_on_exactly(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    shutil.copytree(straight("bert").model_folder, tmp_path / "start")
    expected = on("bert", tmp_path / "straight", tmp_path / "start", steps=8)
    for step in (8, 3):  # with a checkpoint, and without one, when all has to grow again
        at_step(step, crash)
        with pytest.raises(ConnectionAbortedError):
            on("bert", tmp_path / f"run {step}", tmp_path / "start", steps=8)
        if step == 8:
            shutil.move(tmp_path / "start", tmp_path / "away")
        again = resume("bert", tmp_path / f"run {step}")
        if step == 8:
            shutil.move(tmp_path / "away", tmp_path / "start")
        assert metrics(again.folder) == metrics(expected.folder)
        assert again.model.history == expected.model.history


def test_a_tokenizer_that_grew_before(straight: Callable[[str], Pretrained], tmp_path: Path) -> None:
    """`etymon tokenizer --from`, then `prepare`, then `pretrain --from` is the same in three steps."""
    start = straight("gpt2").folder
    (tmp_path / "text.txt").write_text("\n".join(DOMAIN), encoding="utf-8")
    data, size = [tmp_path / "text.txt"], Tokenizer.load(start / "model").size + 60
    made = etymon.tokenizer(data=data, from_=start, size=size, out=tmp_path / "tokenizer", progress="silent")
    assert made.tokenizer.size == size and made.report is not None
    once = on(
        "gpt2",
        tmp_path / "once",
        start / "model",
        data=data,
        tokenizer=tmp_path / "tokenizer",
        vocabulary=None,
    )
    etymon.prepare(
        data=data, tokenizer=tmp_path / "tokenizer", out=tmp_path / "store", validation=0.2, progress="silent"
    )
    twice = on("gpt2", tmp_path / "twice", start / "model", data=[tmp_path / "store"], vocabulary=None)
    assert once.model.shape.vocabulary == twice.model.shape.vocabulary == size
    assert metrics(once.folder) == metrics(twice.folder)


def test_refusals(straight: Callable[[str], Pretrained], tmp_path: Path) -> None:
    start = straight("gpt2").model_folder
    size = Tokenizer.load(start).size
    for number in (size, 300):
        with pytest.raises(
            EtymonError, match=f"has {size} tokens already, so it cannot grow to {number}"
        ) as error:
            on("gpt2", tmp_path / "run", start, vocabulary=number)
        assert "\n" not in str(error.value) and not (tmp_path / "run").exists()
    bytes_only = load(start)
    etymon.tokenizer(kind="byte", family="gpt2", out=tmp_path / "bytes")
    bytes_only.tokenizer = Tokenizer.load(tmp_path / "bytes")
    save(bytes_only, tmp_path / "byte model")
    with pytest.raises(EtymonError, match="a byte tokenizer has all the bytes there are"):
        on("gpt2", tmp_path / "run", tmp_path / "byte model")
    for changes, reason in (
        ({"size": None}, f"has {size} tokens: say how many it should have with --size"),
        ({"size": size}, "already, so it cannot grow"),
        ({"size": size + 1, "kind": "bpe"}, "has its own kind and ways"),
    ):
        with pytest.raises(EtymonError, match=reason):
            etymon.tokenizer(data=["x.txt"], from_=start, out=tmp_path / "t", **changes)  # type: ignore[arg-type]
    assert json.loads((start / "history.json").read_text(encoding="utf-8"))["history"], (
        "the start is untouched"
    )


@pytest.mark.parametrize("family", ["gpt2", "electra"])
def test_another_tokenizer_takes_the_place_of_the_models_and_the_run_resumes(
    family: str, straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    start = straight(family).model_folder
    options = {"vocabulary": 380, "replace_tokenizer": True, "steps": 6}
    run = on(family, tmp_path / "run", start, **options)
    old = load(start)
    assert old.tokenizer is not None and run.model.tokenizer is not None
    assert not extends(run.model.tokenizer, old.tokenizer)
    counts = run.model.history[-1]["replaced_tokenizer"]
    assert counts["from"] == old.tokenizer.size and counts["to"] == run.model.tokenizer.size
    assert (
        counts["copied"] > 20 and sum(counts[name] for name in ("copied", "composed", "new")) == counts["to"]
    )
    assert run.model.shape.vocabulary == counts["to"] and "grown" not in run.model.history[-1]
    at_step(4, crash)
    with pytest.raises(ConnectionAbortedError):
        on(family, tmp_path / "stopped", start, **options)
    again = resume(family, tmp_path / "stopped")
    assert metrics(again.folder) == metrics(run.folder)
    assert again.model.history[-1]["replaced_tokenizer"] == counts


def test_a_tokenizer_is_replaced_only_if_that_is_said(
    straight: Callable[[str], Pretrained], tmp_path: Path
) -> None:
    start = straight("gpt2").model_folder
    etymon.tokenizer(
        data=[str(__file__)], format="txt", family="gpt2", size=290, out=tmp_path / "other", progress="silent"
    )
    other = {"vocabulary": None, "tokenizer": str(tmp_path / "other")}
    with pytest.raises(EtymonError, match="or say --replace-tokenizer"):
        on("gpt2", tmp_path / "run", start, **other)
    run = on("gpt2", tmp_path / "run", start, replace_tokenizer=True, **other)
    assert run.model.tokenizer is not None and run.model.tokenizer.size == 290
    with pytest.raises(EtymonError, match="give --from MODEL"):
        pretrain("gpt2", tmp_path / "none", replace_tokenizer=True)
