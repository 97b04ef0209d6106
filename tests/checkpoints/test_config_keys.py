"""The table of keys that change a model is the one that the source of Transformers gives."""

from __future__ import annotations

import json

import pytest

from etymon.checkpoints.settings import TABLE, config_keys
from etymon.families import REGISTRY, get_family
from tests.config_keys import FOLDERS, Transformers, installed_root, joined_table, peer_root

AGAIN = "make it anew: python -m tests.config_keys"


@pytest.fixture(scope="module")
def installed() -> Transformers:
    pytest.importorskip("transformers")
    return Transformers(installed_root())


def test_the_table_holds_every_key_that_the_installed_transformers_reads(installed: Transformers) -> None:
    for model_type in FOLDERS:
        found, kept = installed.table(model_type), config_keys(model_type)
        if found is None:  # the older one alone has it
            continue
        assert kept is not None, AGAIN
        assert found["keys"] - found["aliases"].keys() <= kept.keys, AGAIN
        assert found["aliases"].items() <= kept.aliases.items(), AGAIN
        theirs = {key: found["defaults"].get(key, ...) for key in kept.defaults if key in found["keys"]}
        assert theirs == {key: kept.defaults[key] for key in theirs}, AGAIN


def test_the_table_is_that_of_both_libraries(installed: Transformers) -> None:
    if (root := peer_root()) is None:
        pytest.skip("the older Transformers is not there: make .venv-peer/.installed")
    assert json.loads(TABLE.read_text()) == json.loads(
        json.dumps(joined_table(installed, Transformers(root)))
    ), AGAIN


def test_every_published_family_is_in_the_table() -> None:
    families = [get_family(name) for name in REGISTRY]
    types = {each for family in families for each in (family.model_type, *family.aliases)}
    assert types - FOLDERS.keys() == {"elmo", "rnn", "transformer"}
    assert all(config_keys(each) is not None for each in FOLDERS)


@pytest.mark.parametrize(
    ("model_type", "keys", "others"),
    [
        (
            "t5",
            {"feed_forward_proj", "scale_decoder_outputs"},
            {"n_positions", "max_length", "use_return_dict"},
        ),
        ("gpt_neo", {"attention_types", "window_size"}, {"summary_type", "summary_use_proj"}),
        ("bert", {"position_embedding_type", "hidden_act", "is_decoder"}, {"pooler_type", "save_step"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx", "n_embd"}, {"n_ctx", "n_special", "hidden_size"}),
        ("transfo-xl", {"attn_type", "mem_len"}, {"tgt_len", "ext_len"}),
    ],
)
def test_keys_are_found_however_they_are_read(model_type: str, keys: set[str], others: set[str]) -> None:
    """By name, by getattr, through attributes that a configuration derives from them, or in one of the libraries alone."""
    found = config_keys(model_type)
    assert found is not None
    assert keys <= found.keys
    assert not others & found.keys


def test_other_names_and_defaults_are_found() -> None:
    found = config_keys("gpt2")
    assert found is not None
    assert found.aliases["hidden_size"] == "n_embd"
    assert found.defaults["scale_attn_weights"] is True and found.defaults["n_inner"] is None
