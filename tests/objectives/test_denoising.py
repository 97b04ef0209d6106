"""Denoising with every noise: framed by the family, started by its token, refused where it cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from etymon.errors import EtymonError
from etymon.objectives import get_objective, read_options
from etymon.sampling.corruption import NOISES
from etymon.sampling.plans import key
from etymon.text.store import Split
from tests import tiny


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    return {
        family: tiny.store(family, tmp_path_factory.mktemp(family)).train for family in ("bart", "t5", "rnn")
    }


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_every_noise_is_framed(splits: dict[str, Split], family: str, name: str) -> None:
    tokenizer, split = tiny.tokenizer(family), splits[family]
    if family == "bart" and NOISES[name].target == "sentinels":
        with pytest.raises(EtymonError, match="the tokenizer has 0 sentinels"):
            get_objective("denoising", tokenizer, 32, noise=name)
        return
    objective = get_objective("denoising", tokenizer, 32, noise=name)
    plan = objective.plan(split, 0, 0)
    examples = [objective.prepare(split, row, key(0, number)) for number, row in enumerate(plan[:20])]
    begin = [tokenizer.id("begin")] if family == "bart" else []
    end = [tokenizer.id("end")]
    for row, example in zip(plan, examples, strict=False):
        for ids in (example.ids, example.targets):
            assert len(ids) <= 32
            assert ids[: len(begin)].tolist() == begin and ids[-1:].tolist() == end
        if NOISES[name].target == "text":
            assert example.targets.tolist() == [*begin, *split.tokens[slice(*row)].tolist(), *end]
    prepared = objective.collate(examples)
    start = tokenizer.id("end" if family == "bart" else "pad")
    inputs = prepared.inputs(tiny.model(family, objective))
    assert set(inputs.ids[inputs.layout.first].tolist()) == {start}
    assert prepared.counts == {"denoising": len(prepared.targets)}


@pytest.mark.parametrize("family", ["bart", "transformer", "rnn"])
def test_smoothing_is_for_training_alone(tmp_path: Path, family: str) -> None:
    objective = get_objective("denoising", tiny.tokenizer(family), 24, smoothing=0.1)
    split = tiny.store(family, tmp_path).train
    model = tiny.model(family, objective)
    prepared = objective.collate(
        [objective.prepare(split, row, key(1)) for row in objective.plan(split, 0, 0)[:5]]
    )
    for training, smoothing in ((True, 0.1), (False, 0.0)):
        model.train(training)
        term = objective.loss(SimpleNamespace(model=model), prepared)["denoising"]  # type: ignore[arg-type]
        hidden, _ = model.decode(prepared.inputs(model), model.encode(prepared.source))
        logits = model.heads["vocabulary"].logits(hidden)
        expected = F.cross_entropy(logits, prepared.targets, label_smoothing=smoothing, reduction="sum")
        torch.testing.assert_close(term.sum, expected, rtol=1e-5, atol=1e-4)
        model.zero_grad()
        ours = torch.autograd.grad(term.sum, model.body.words.weight, retain_graph=True)[0]
        theirs = torch.autograd.grad(expected, model.body.words.weight)[0]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_what_cannot_be() -> None:
    with pytest.raises(EtymonError, match=r"noise is .bort., did you mean 'bert'"):
        read_options("denoising", {"noise": "bort"})
    for noise, option in (("sentences", "density"), ("masking", "mean_span"), ("bart", "random_roll")):
        with pytest.raises(EtymonError, match=f"the noise '{noise}' has no {option}: leave it out"):
            read_options("denoising", {"noise": noise, option: option == "random_roll" or 0.5})
    read_options("span-corruption", {"random_roll": True, "density": 0.3, "mean_span": 2.0})
    read_options("denoising", {"smoothing": 0.1, "density": 0.3, "mean_span": 2.0})
    for option, value in (("smoothing", 1.0), ("smoothing", 5.0), ("density", 0.0)):
        with pytest.raises(
            EtymonError, match=f"options of the objective 'denoising': {option} is {value}, expected"
        ):
            read_options("denoising", {option: value})
    for name, options in (("bidirectional", {"samples": 0}), ("causal", {"z_loss": float("inf")})):
        with pytest.raises(EtymonError, match=r"(samples is 0|z_loss is Infinity), expected"):
            read_options(name, options)
    with pytest.raises(EtymonError, match="too short"):
        get_objective("denoising", tiny.tokenizer("bart"), 3)
    with pytest.raises(EtymonError, match="corrupted spans"):
        get_objective("denoising", tiny.tokenizer("t5"), 900, noise="iid-spans")
