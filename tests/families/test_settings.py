"""Foreign configurations: what cannot change a model is passed over, what can is refused, and all of it in one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon import EtymonError
from etymon.checkpoints.settings import CARRIED, IGNORED, OWN, TransformersKeys, config_keys, pass_over
from etymon.families import REGISTRY, family_of, get_family
from etymon.families.family import Family
from tests.families.folders import PRETRAINED, assert_same, refusal, tiny

PUBLISHED = [name for name in REGISTRY if config_keys(get_family(name).model_type) is not None]
"""The families that Transformers has."""
FOREIGN = [name for name in PRETRAINED if name in PUBLISHED]
SEEN = {
    "n_special": 0, "predict_special_tokens": True, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    "sentence_transformers": {"version": "4.1.0"}, "eos_token_ids": [1], "xla_device": True, "use_return_dict": True,
    "tie_encoder_decoder": True, "cross_attention_hidden_size": 32, "max_new_tokens": 20, "_commit_hash": "0a1b",
    "model_parallel": False, "save_step": 10, "summary_type": "attn", "summary_activation": "none-such",
    "summary_use_proj": False, "summary_proj_to_labels": True, "summary_last_dropout": 0.3, "num_labels": 7,
    "output_past": True, "_num_labels": 5, "directionality": "bidi", "tokenizer_class": "X", "pruned_heads": {},
}  # fmt: skip
"""As folders on the hub have them."""


def known(family: Family) -> TransformersKeys:
    found = config_keys(family.model_type)
    assert found is not None
    return found


def unbuilt(family: Family) -> set[str]:
    """The keys that Transformers reads for a family and that it has no row for."""
    rows = {row.theirs for row in (*family.settings.rows, *family.settings.constants, *OWN)}
    return {*known(family).keys} - rows - {*family.settings.ignored, *IGNORED, *CARRIED}


@pytest.mark.parametrize("family", FOREIGN)
def test_keys_that_cannot_change_a_model_are_passed_over(saved: Callable[..., Path], family: str) -> None:
    draw = random.Random(family)
    letters = "abcdefghijklmnopqrstuvwxyz_"
    values = [None, True, 0, 0.5, -3, "text", [1, "a"], {"deep": {"er": []}}]
    names = ("".join(draw.choices(letters, k=draw.randint(3, 20))) for _ in range(60))
    made = {f"x{name}": draw.choice(values) for name in names}
    model = etymon.load(saved(family, **made, **SEEN))
    assert_same(model, tiny(family, PRETRAINED[family]))


@pytest.mark.parametrize("family", PUBLISHED)
def test_all_keys_that_change_a_model_are_refused_in_one_line(family: str) -> None:
    one = get_family(family)
    keys = unbuilt(one)
    assert {"per_layer_config", "quantization_config"} <= keys
    with pytest.raises(EtymonError) as caught:
        one.settings.read({"model_type": one.model_type, **dict.fromkeys(keys, "odd")}, "config.json")
    line = str(caught.value)
    assert "\n" not in line
    for key in keys:
        assert f"{key} = 'odd'" in line and f"--ignore-config-key {key}" in line
    with pass_over(sorted(keys)):
        one.settings.read({"model_type": one.model_type, **dict.fromkeys(keys, "odd")}, "config.json")


@pytest.mark.parametrize("family", PUBLISHED)
def test_keys_that_say_what_goes_without_saying_are_passed_over(family: str) -> None:
    one = get_family(family)
    usual = {key: known(one).defaults[key] for key in unbuilt(one) if key in known(one).defaults}
    assert usual
    assert one.settings.read({"model_type": one.model_type, **usual}, "") == one.settings.read(
        {"model_type": one.model_type}, ""
    )


def test_offences_of_all_kinds_come_together(saved: Callable[..., Path]) -> None:
    folder = saved("bert", is_decoder=True, hidden_act="none-such", sliding_window=7, etymon_unheard=1)
    line = refusal(folder)
    for part in ("is_decoder = True", "hidden_act = 'none-such'", "sliding_window = 7", "etymon_unheard = 1"):
        assert part in line
    keys = ["is_decoder", "hidden_act", "sliding_window", "etymon_unheard"]
    assert_same(etymon.load(folder, ignore_config_keys=keys), tiny("bert", PRETRAINED["bert"]))


def test_our_own_families_know_all_of_their_keys(saved: Callable[..., Path]) -> None:
    assert "use_magic = True" in refusal(saved("transformer", use_magic=True))


def test_a_folder_with_code_of_its_own_is_refused(saved: Callable[..., Path]) -> None:
    assert "auto_map" in refusal(saved("bert", auto_map={"AutoModel": "modeling_other.OtherModel"}))


def test_other_names_of_a_key(saved: Callable[..., Path]) -> None:
    folder = saved("gpt2")
    config = json.loads((folder / "config.json").read_text())
    config["hidden_size"] = config.pop("n_embd")
    (folder / "config.json").write_text(json.dumps(config))
    assert_same(etymon.load(folder), tiny("gpt2", PRETRAINED["gpt2"]))
    (folder / "config.json").write_text(json.dumps({**config, "n_embd": 48}))
    assert "hidden_size = 16 contradicts n_embd = 48" in refusal(folder)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt1", "summary_type", "attn"),
        ("gpt2", "summary_type", "attn"),
        ("gpt2", "summary_use_proj", False),
        ("gpt2", "summary_proj_to_labels", False),
        ("electra", "summary_type", "attn"),
        ("electra", "summary_proj_to_labels", True),
        ("xlnet", "summary_activation", "none-such"),
    ],
)
def test_how_a_text_is_summed_up_matters_to_the_heads_that_read_it(family: str, key: str, value: Any) -> None:
    one = get_family(family)
    config = {"model_type": one.model_type, key: value}
    one.settings.read(config, "", frozenset({"vocabulary"}))
    with pytest.raises(EtymonError, match=key):
        one.settings.read(config, "", frozenset({"choice"}))


def test_sinusoids_fill_the_positions_of_a_new_distilbert(saved: Callable[..., Path]) -> None:
    transformers = pytest.importorskip("transformers")
    folder = saved("distilbert", sinusoidal_pos_embds=True)
    assert_same(etymon.load(folder), tiny("distilbert", PRETRAINED["distilbert"]))
    shape = {"vocabulary": 31, "positions": 12, "dim": 16, "layers": 1, "heads": 2, "inner_dim": 20}
    new = etymon.build("distilbert", shape={**shape, "sinusoidal": True})
    config = transformers.DistilBertConfig(
        vocab_size=31, max_position_embeddings=12, dim=16, n_layers=1, n_heads=2, hidden_dim=20, sinusoidal_pos_embds=True
    )  # fmt: skip
    theirs = transformers.DistilBertModel(config).embeddings.position_embeddings.weight
    torch.testing.assert_close(new.body.embeddings.positions.weight, theirs)


# --- what a folder does not say, or says otherwise than its weights


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("t5", "T5WithLMHeadModel"),
        ("gpt2", "TheirOwnLMHeadModel"),
        ("bert", "BertModelWithEverything"),
        ("albert", "AnotherForMaskedLM"),
    ],
)
def test_classes_of_old_releases_and_of_other_packages(
    saved: Callable[..., Path], family: str, name: str
) -> None:
    model = etymon.load(saved(family, architectures=[name]))
    assert_same(model, tiny(family, PRETRAINED[family]))
    assert model.head_names == PRETRAINED[family]


@pytest.mark.parametrize("named", [None, []])
def test_classes_that_are_none(saved: Callable[..., Path], named: Any) -> None:
    assert etymon.load(saved("bert", architectures=named)).head_names == PRETRAINED["bert"]


def test_a_token_classifier_of_another_package(tmp_path: Path) -> None:
    model = tiny("bert", {"tagging"}, ("a", "b", "c"))
    etymon.save(model, tmp_path / "bert")
    (tmp_path / "bert" / "history.json").unlink()
    change(tmp_path / "bert", architectures=["TheirForTokenClassification"])
    assert etymon.load(tmp_path / "bert").head_names == {"tagging"}


def change(folder: Path, **config: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "t5", "distilbert"])
@pytest.mark.parametrize(
    ("told", "labels"),
    [
        ({"num_labels": 2}, ["a", "b", "c"]),
        ({"num_labels": 3, "id2label": {"0": "a", "1": "b"}}, ["a", "b", "LABEL_2"]),
        ({"id2label": {str(n): f"n{n}" for n in range(9)}}, ["n0", "n1", "n2"]),
        ({"id2label": None, "num_labels": 5}, ["LABEL_0", "LABEL_1", "LABEL_2"]),
    ],
)
def test_the_weights_say_how_many_labels_there_are(
    tmp_path: Path, family: str, told: dict[str, Any], labels: list[str]
) -> None:
    model = tiny(family, {"classification"}, ("a", "b", "c"))
    etymon.save(model, tmp_path / "model")
    change(tmp_path / "model", **told)
    loaded = etymon.load(tmp_path / "model")
    assert list(loaded.labels) == labels
    assert_same(loaded, model)


def unnamed(folder: Path, *keys: str) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key not in keys})
    )
    return folder


@pytest.mark.parametrize("family", FOREIGN)
def test_a_folder_without_model_type(saved: Callable[..., Path], family: str) -> None:
    """Its class says what it is, or the names of its weights do."""
    folder = unnamed(saved(family), "model_type")
    assert etymon.load(folder).family.name == family
    model = etymon.load(unnamed(folder, "architectures"))
    assert model.family.name == family
    assert_same(model, tiny(family, PRETRAINED[family]))


def test_a_folder_that_may_be_several_families(tmp_path: Path) -> None:
    model = tiny("bert", {"pooler"})
    etymon.save(model, tmp_path / "bert")
    folder = unnamed(tmp_path / "bert", "model_type", "architectures")
    assert "bert or roberta" in refusal(folder) and "--family" in refusal(folder)
    assert_same(etymon.load(folder, family="bert"), model)
    etymon.convert(folder, tmp_path / "converted", family="bert")
    assert json.loads((tmp_path / "converted" / "config.json").read_text())["model_type"] == "bert"


def test_weights_of_no_family(tmp_path: Path, saved: Callable[..., Path]) -> None:
    folder = saved("gpt2", lambda weights: {f"other.{n}": w for n, (_, w) in enumerate(weights.items())})
    assert "of no family" in refusal(unnamed(folder, "model_type", "architectures"))


def test_absent_keys_of_an_alias_are_those_of_its_class() -> None:
    ours, _ = family_of("mt5").settings.read({"model_type": "mt5"}, "")
    assert (ours["feed_forward"], ours["vocabulary"], ours["tied"]) == ("gated-gelu", 250112, False)
    assert family_of("t5").settings.read({"model_type": "t5"}, "")[0]["feed_forward"] == "relu"


@pytest.mark.parametrize("value", [[], 5, {}])
def test_an_activation_that_is_no_name_is_refused_in_one_line(tmp_path: Path, value: Any) -> None:
    etymon.save(tiny("t5", PRETRAINED["t5"]), tmp_path / "t5")
    change(tmp_path / "t5", dense_act_fn=value)
    assert "dense_act_fn" in refusal(tmp_path / "t5")
