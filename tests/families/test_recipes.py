"""Recipes are values: published sizes keep the published ones, pocket sizes have their own, others go by name."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families.family import Recipe
from etymon.families.loading import shape_of
from etymon.objectives import objective_class, read_options
from etymon.objectives.objective import check_fit
from etymon.settings.training import RecipeName

GPT3 = Recipe(
    learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, ramp=4 / 300, schedule="cosine", warmup=0.00125, final=0.1,
    decay_end=260 / 300,
)  # fmt: skip
ROBERTA = Recipe(
    learning_rate=6e-4, betas=(0.9, 0.98), epsilon=1e-6, options={"masking": "roberta", "packing": "full-sentences"}, clip=None,
    warmup=0.048,
)  # fmt: skip
ELECTRA = Recipe(learning_rate=2e-4, epsilon=1e-6, optimiser="adam-bert", warmup=0.013)
TRANSFORMER = Recipe(
    learning_rate=(512 * 4000) ** -0.5, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.0, clip=None, schedule="noam", warmup_steps=4000,
)  # fmt: skip
XL = Recipe(learning_rate=2.5e-4, weight_decay=0.0, clip=0.25, schedule="cosine", warmup_steps=0)
# By family: the objective, and a recipe for every size that has one of its own; "" is that of all others.
PUBLISHED: dict[str, tuple[str, dict[str, Recipe]]] = {
    "gpt1": ("causal", {"": Recipe(learning_rate=2.5e-4, schedule="cosine", warmup_steps=2000)}),
    "gpt2": (
        "causal",
        {"": Recipe(learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, schedule="cosine", warmup=0.02, final=0.1)},
    ),
    "gpt3": (
        "causal",
        {
            name: replace(GPT3, learning_rate=rate)
            for names, rate in (
                ("125M neo-125M", 6e-4), ("350M", 3e-4), ("760M", 2.5e-4), ("1.3B neo-1.3B", 2e-4), ("2.7B neo-2.7B", 1.6e-4),
                ("6.7B", 1.2e-4), ("13B", 1e-4), ("175B", 6e-5),
            )
            for name in names.split()
        },
    ),
    "gptj": (
        "causal",
        {
            "": Recipe(
                learning_rate=1.2e-4, weight_decay=0.1, options={"z_loss": 1e-4}, schedule="cosine", warmup_steps=3000, final=0.1,
                decay_end=300 / 350,
            )
        },
    ),
    "bert": (
        "masked-next-sentence",
        {"": Recipe(learning_rate=1e-4, epsilon=1e-6, optimiser="adam-bert", warmup=0.01)},
    ),
    "t5": (
        "span-corruption",
        {
            "": Recipe(
                learning_rate=0.01, weight_decay=0.0, optimiser="adafactor", clip=None, schedule="inverse-square-root",
                warmup_steps=10000,
            )
        },
    ),
    "roberta": ("masked", {"": ROBERTA, "large": replace(ROBERTA, learning_rate=4e-4, warmup=0.06)}),
    "albert": (
        "masked-sentence-order",
        {"": Recipe(learning_rate=0.00176, epsilon=1e-6, options={"masking": "ngram"}, optimiser="lamb", warmup=0.025)},
    ),
    "distilbert": (
        "masked",
        {"": Recipe(learning_rate=5e-4, betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.0, clip=5.0, warmup=0.05)},
    ),
    "electra": (
        "replaced",
        {
            "": ELECTRA,
            "small": replace(ELECTRA, learning_rate=5e-4, warmup=0.01),
            "large": replace(ELECTRA, warmup=0.025, options={"density": 0.25}),
        },
    ),
    "bart": (
        "denoising",
        {"": Recipe(learning_rate=4e-4, betas=(0.9, 0.98), epsilon=1e-6, options={"noise": "bart"}, warmup=0.06)},
    ),
    "elmo": (
        "bidirectional",
        {
            "": Recipe(
                learning_rate=0.2, weight_decay=0.0, length=20, optimiser="adagrad", clip=10.0, schedule="constant", warmup=0.0
            )
        },
    ),
    "transformer": ("denoising", {"": TRANSFORMER, "big": replace(TRANSFORMER, learning_rate=(1024 * 4000) ** -0.5)}),
    "rnn": (
        "denoising",
        {
            "": Recipe(
                learning_rate=1e-3, weight_decay=0.0, undecayed=("*bias*",), schedule="cosine", warmup=0.05, final=0.05
            )
        },
    ),
    "xlnet": (
        "permutation",
        {"": Recipe(learning_rate=4e-4, epsilon=1e-6, length=512, optimiser="adam-bert", clip=0.25, warmup=0.08)},
    ),
    "transformer-xl": (
        "recurrent",
        {
            "": XL,
            "wt103-large": replace(XL, warmup_steps=16000),
            "enwik8-24": replace(XL, warmup_steps=4000),
            "text8-24": replace(XL, warmup_steps=4000),
            "lm1b": replace(XL, warmup_steps=20000),
        },
    ),
}  # fmt: skip
POCKETS = {
    name: [size for size in get_family(name).sizes if get_family(name).recipe_for(size).name == "pocket"]
    for name in REGISTRY
}


@pytest.mark.parametrize("name", REGISTRY)
def test_published_sizes_are_trained_as_published(name: str) -> None:
    family = get_family(name)
    objective, recipes = PUBLISHED[name]
    assert family.objective == objective
    published = [size for size in family.sizes if size not in POCKETS[name]]
    assert published and not any(size.startswith("pocket") for size in published)
    for size in published:
        wanted = recipes.get(size, recipes.get(""))
        assert wanted is not None and family.recipe_for(size) == wanted, size
        assert family.recipe_for(size, "published") == family.recipe_for(size)
        assert not wanted.shape and wanted.objective is None and not wanted.phases


@pytest.mark.parametrize("name", REGISTRY)
def test_a_recipe_goes_by_its_name_and_fits_its_family(name: str) -> None:
    family = get_family(name)
    assert family.recipe_names[0] == "published" and "pocket" in family.recipe_names
    assert set(family.recipe_names) <= set(get_args(RecipeName))
    for size in POCKETS[name]:
        assert family.recipe_for(size) is family.recipe_for(size, "pocket") is family.size_recipes[size]
        assert family.recipe_for(size, "published") is family.recipe
    for recipe in (family.recipe_for("pocket", each) for each in family.recipe_names):
        assert (recipe.name == "published") == (recipe.why == "")
        shape_of(family, "pocket", **recipe.shape)
        for objective, options in [
            (recipe.objective or family.objective, recipe.options),
            *((phase.objective, phase.options) for phase in recipe.phases if phase.objective),
        ]:
            check_fit(objective_class(objective), family)
            read_options(objective, options or {})
        assert not recipe.phases or sum(phase.share for phase in recipe.phases) == pytest.approx(1)


def test_a_name_that_a_family_has_not_is_refused() -> None:
    with pytest.raises(EtymonError, match="GPT-2 has no recipe 'hybrid'"):
        get_family("gpt2").recipe_for("pocket", "hybrid")


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "distilbert", "electra", "xlnet"])
def test_a_pocket_size_is_known_again_by_any_recipe(name: str) -> None:
    """How a model is fine-tuned goes by its size; models from before recipes had names are of it, too."""
    family = get_family(name)
    for recipe in family.recipe_names:
        shape = shape_of(family, "pocket", **family.recipe_for("pocket", recipe).shape, vocabulary=77)
        assert family.size_of(shape) == "pocket"
    assert family.size_of(shape_of(family, "pocket", layers=3)) is None


def test_pocket_models_are_tuned_by_their_recipe_and_others_as_published() -> None:
    bert = get_family("bert")
    for name, share in (("pocket", 1.0), ("muon", 0.5)):
        rate = bert.recipe_for("pocket", name).learning_rate
        assert bert.tuning_for("pocket", name).learning_rate == rate * share
    for size, name in (("pocket", "published"), ("base", None), (None, None)):
        assert bert.tuning_for(size, name) == bert.tuning


DISTANCES = {"bert", "roberta", "albert", "distilbert", "electra", "xlnet", "t5", "bart", "transformer"}


@pytest.mark.parametrize("family", sorted(REGISTRY))
def test_pocket_models_begin_at_neighbours_and_published_ones_as_published(family: str) -> None:
    known = get_family(family)
    assert (known.recipe_for("pocket").shape.get("neighbours", 0.0) > 0) == (family in DISTANCES)
    for size in known.sizes:
        shape = shape_of(known, size)
        assert getattr(shape, "neighbours", 0.0) == 0.0 and getattr(shape, "matches", 0.0) == 0.0
    assert "neighbours" not in known.recipe.shape
