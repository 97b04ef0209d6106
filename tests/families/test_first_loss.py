"""A new model knows nothing: its first loss is that of a uniform guess, give or take a few per cent.

Published vocabularies have at least 27 symbols and mostly 30,000, so that the loss of a uniform guess is about ten nats.
Logits of variance one cost half a nat more, 5% of that: wider logits are a wrong first value.

One thing is left out on purpose. Where the output matrix is the word embedding, a new model prefers the token it has just
read: its state still is, for the most part, that token's own word vector. BART, GPT-1, XLNet, Transformer-XL and T5 1.0
were published so, and lose the preference in their first steps. So the token that was read is taken out of the guesses.

Legend: N tokens, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from etymon.families import REGISTRY, get_family
from etymon.families.family import Family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.families.surgery import generator_for
from etymon.nn.batch import Batch
from etymon.sampling.plans import key
from etymon.training.unit import TrainingUnit
from tests import tiny

VOCABULARY, ROWS, LENGTH = 1024, 4, 32
LARGEST = {
    "dim": 512, "inner_dim": 1024, "embedding_dim": 512, "word_dim": 512, "readout_dim": 512, "encoder_dim": 512,
    "layers": 2, "decoder_layers": 2, "vocabulary": VOCABULARY, "source_vocabulary": VOCABULARY, "memory": 16,
}  # fmt: skip
MARGIN = 0.5 + 3 * (ROWS * LENGTH) ** -0.5
"""In nats: what logits of variance one cost, and three deviations of the mean over so many targets."""


def smaller(family: Family, size: str) -> Any:
    """A size's shape with the first values of that size, but not larger than a test can afford."""
    shape = shape_of(family, size)
    names = {field.name for field in fields(family.shape)}
    changes: dict[str, Any] = {
        name: most for name, most in LARGEST.items() if name in names and (getattr(shape, name) or 0) > most
    }
    if "dim" in changes and "heads" in names:
        changes["heads"] = 8
    if "rotary_dim" in changes.keys() | names and "heads" in changes:
        changes["rotary_dim"] = 16
    if getattr(shape, "cutoffs", ()):  # an even guess of an adaptive softmax is not even over words
        changes |= {"cutoffs": (), "divisor": 1}
    return shape_of(family, size, **changes)


def distinct_sizes() -> list[Any]:
    """Families and sizes; sizes that differ in their depth alone count once."""
    found: dict[Any, Any] = {}
    for name in REGISTRY:
        family = get_family(name)
        if "letters" in family.capabilities:  # ELMo has no text to read here: see the objectives below
            continue
        for size in family.sizes:
            found.setdefault((name, smaller(family, size)), pytest.param(family, size, id=f"{name}-{size}"))
    return list(found.values())


@pytest.mark.parametrize(("family", "size"), distinct_sizes())
def test_a_new_model_of_every_size_guesses_evenly(family: Family, size: str) -> None:
    shape = smaller(family, size)
    model = Model(family, shape, {"vocabulary"}).initialise(0).eval()
    draw = torch.Generator().manual_seed(1)
    read_N, target_N = torch.randint(10, shape.vocabulary, (2, ROWS * LENGTH), generator=draw)
    target_N = torch.where(target_N == read_N, (target_N + 1) % shape.vocabulary, target_N)
    batch = Batch.of(read_N.view(ROWS, LENGTH).tolist())
    with torch.no_grad():
        if model.encoder_decoder:
            hidden_ND, _ = model.decode(batch, model.encode(batch))
        else:
            hidden_ND, _ = model.hidden(batch)
        log_probs_NV = model.heads["vocabulary"].log_probs(hidden_ND)
    others_NV = log_probs_NV.scatter(1, read_N[:, None], -math.inf).log_softmax(-1)
    loss = -float(others_NV.gather(1, target_N[:, None]).mean())
    assert loss == pytest.approx(math.log(shape.vocabulary - 1), abs=MARGIN)


CHOICES = {"next_sentence": 2, "sentence_order": 2, "discriminator": 2}
"""Terms that choose between two; the others choose between all words."""


@pytest.mark.parametrize(
    "name", [name for name in REGISTRY if name != "distilbert"]
)  # whose loss is its teacher's
def test_the_first_loss_of_every_objective_is_a_guess(name: str, tmp_path: Path) -> None:
    family = get_family(name)
    objective = tiny.objective(name, family.objective)
    split = tiny.store(name, tmp_path).train
    model = tiny.model(name, objective)
    companions = {name: generator_for(model, {}, 1) for name in objective.companions}
    unit = TrainingUnit(model, objective, companions=companions).eval()
    plan = objective.plan(split, 0, 0)[:16]
    examples = [objective.prepare(split, row, key(0, "sample", 0, number)) for number, row in enumerate(plan)]
    prepared = objective.collate(examples)
    with torch.no_grad():
        terms = unit(prepared)
    for term, value in terms.items():
        if value.weight:
            choices = CHOICES.get(term, model.shape.vocabulary)
            loss = float(value.sum) / prepared.counts[term]
            assert loss == pytest.approx(math.log(choices), abs=MARGIN), term
