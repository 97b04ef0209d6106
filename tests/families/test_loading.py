"""Never a silent partial load: what fits is loaded, what does not is named, and every known dialect is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import etymon
from etymon import EtymonError
from etymon.checkpoints.weights import write_weights
from etymon.families import get_family
from etymon.families.model import Model
from etymon.nn.batch import Batch

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocabulary": 31, "positions": 12, "dim": 16, "layers": 2, "heads": 2},
    "bert": {"vocabulary": 31, "positions": 12, "dim": 16, "layers": 2, "heads": 2, "inner_dim": 20},
    "t5": {"vocabulary": 31, "dim": 16, "head_dim": 5, "inner_dim": 20, "layers": 2, "heads": 2},
}
PRETRAINED = {"gpt2": {"vocabulary"}, "bert": {"vocabulary", "next_sentence"}, "t5": {"vocabulary"}}


def tiny(family: str, heads: set[str], labels: tuple[str, ...] = ("no", "yes"), **changes: Any) -> Model:
    known = get_family(family)
    model = Model(known, known.shape(**{**SHAPES[family], **changes}), heads, labels).initialise(seed=5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # so that no norm or bias is at its first value
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a tiny pretrained model; `change` may spoil its weights and config."""

    def save(family: str, change: Callable[[dict[str, Tensor]], Any] | None = None, **config: Any) -> Path:
        folder = tmp_path / family
        etymon.save(tiny(family, PRETRAINED[family]), folder)
        (folder / "history.json").unlink()  # a foreign folder says less about itself
        if change is not None:
            rewrite(folder, change)
        if config:
            path = folder / "config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
        return folder

    return save


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    weights = change(weights) or weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder: Path, **options: Any) -> str:
    """The line that says why a folder was not loaded."""
    with pytest.raises(EtymonError) as caught:
        etymon.load(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(model: Model, other: Model, only: str = "") -> None:
    values = dict(other.named_parameters())
    compared = [(name, value) for name, value in model.named_parameters() if name.startswith(only)]
    assert compared
    assert all(torch.equal(value, values[name]) for name, value in compared)


def without(*names: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda weights: {name: value for name, value in weights.items() if name not in names}


def moved(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The tensor of that name is another one."""
    return lambda weights: {**weights, name: weights[name] + 1}


ONE_OF_THEIRS = {
    "gpt2": "transformer.h.1.attn.c_attn.weight",
    "bert": "bert.encoder.layer.1.attention.self.key.bias",
    "t5": "decoder.block.1.layer.1.EncDecAttention.v.weight",
}


@pytest.mark.parametrize(("family", "name"), ONE_OF_THEIRS.items())
class TestRefusals:
    def test_missing(self, saved: Callable[..., Path], family: str, name: str) -> None:
        line = refusal(saved(family, without(name)))
        assert f"missing: {name}" in line
        assert "unexpected:" not in line

    def test_unexpected(self, saved: Callable[..., Path], family: str, name: str) -> None:
        stranger = name.replace("1", "7", 1)
        line = refusal(saved(family, lambda weights: weights.update({stranger: weights[name].clone()})))
        assert f"unexpected: {stranger}" in line

    def test_misshapen(self, saved: Callable[..., Path], family: str, name: str) -> None:
        line = refusal(saved(family, lambda weights: weights.update({name: torch.zeros(3, 5)})))
        assert f"of another shape: {name} is (3, 5), not" in line

    def test_all_of_it_in_one_line(self, saved: Callable[..., Path], family: str, name: str) -> None:
        def change(weights: dict[str, Tensor]) -> None:
            others = sorted(other for other in weights if other != name)
            weights[name] = torch.zeros(3, 5)
            weights["nobody.knows.weight"] = torch.zeros(2)
            del weights[others[0]], weights[others[1]]

        line = refusal(saved(family, change))
        for part in ("missing:", "unexpected: nobody.knows.weight", f"of another shape: {name}"):
            assert part in line

    def test_a_missing_weight_of_the_body_is_never_tolerated(
        self, saved: Callable[..., Path], family: str, name: str
    ) -> None:
        folder = saved(family, without(name))
        assert name in refusal(folder, partial=True)
        assert name in refusal(folder, heads={"vocabulary"})


TIED_COPIES = {
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "t5": ("decoder.embed_tokens.weight", "shared.weight"),
}


@pytest.mark.parametrize("family", TIED_COPIES)
def test_stored_copies_of_tied_weights(saved: Callable[..., Path], family: str) -> None:
    copy, source = TIED_COPIES[family]
    folder = saved(family, lambda weights: weights.update({copy: weights[source].clone()}))
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))
    rewrite(folder, moved(copy))
    assert f"stored twice with different values: {copy} and {source}" in refusal(folder)
    # The copy alone will do: some writers keep the other of the two.
    rewrite(
        folder, lambda weights: {**{k: v for k, v in weights.items() if k != source}, copy: weights[source]}
    )
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))


# --- dialects


def renamed(*pairs: tuple[str, str]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def change(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in weights.items():
            for old, new in pairs:
                name = name.replace(old, new)
            found[name] = tensor
        return found

    return change


def test_old_names_of_norms(saved: Callable[..., Path]) -> None:
    change = renamed(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    assert_same(etymon.load(saved("bert", change)), tiny("bert", PRETRAINED["bert"]))


@pytest.mark.parametrize(("family", "prefix"), [("gpt2", "transformer."), ("bert", "bert.")])
def test_names_without_the_prefix_of_the_body(saved: Callable[..., Path], family: str, prefix: str) -> None:
    folder = saved(
        family, lambda weights: {name.removeprefix(prefix): value for name, value in weights.items()}
    )
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))


STRAYS = {
    "gpt2": {"transformer.h.0.attn.bias": (1, 1, 12, 12), "transformer.h.1.attn.masked_bias": ()},
    "bert": {"bert.embeddings.position_ids": (1, 12)},
    "t5": {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (32, 2)},
}


@pytest.mark.parametrize("family", STRAYS)
@pytest.mark.parametrize("prefixed", [True, False])
def test_stray_buffers_of_old_files(saved: Callable[..., Path], family: str, prefixed: bool) -> None:
    prefix = get_family(family).names(tiny(family, set()).shape).prefix

    def change(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights |= {name: torch.zeros(shape) for name, shape in STRAYS[family].items()}
        return {name if prefixed else name.removeprefix(prefix): value for name, value in weights.items()}

    assert_same(etymon.load(saved(family, change)), tiny(family, PRETRAINED[family]))


def test_the_bias_of_an_untied_bert(tmp_path: Path) -> None:
    """Transformers 5 stores two and uses the decoder's; version 4 stores the other one alone."""
    model = tiny("bert", {"vocabulary"}, tied=False)
    etymon.save(model, tmp_path / "bert")
    stored = load_file(tmp_path / "bert" / "model.safetensors")
    assert torch.equal(stored["cls.predictions.bias"], stored["cls.predictions.decoder.bias"])
    rewrite(tmp_path / "bert", moved("cls.predictions.bias"))
    assert_same(etymon.load(tmp_path / "bert"), model)

    def older(weights: dict[str, Tensor]) -> None:
        weights["cls.predictions.bias"] = weights.pop("cls.predictions.decoder.bias")

    rewrite(tmp_path / "bert", older)
    assert_same(etymon.load(tmp_path / "bert"), model)


@pytest.mark.parametrize(
    "spelling", [{"tie_word_embeddings": False}, {"scale_decoder_outputs": False}], ids=str
)
def test_both_spellings_of_an_untied_t5(tmp_path: Path, spelling: dict[str, bool]) -> None:
    model = tiny("t5", {"vocabulary"}, tied=False, feed_forward="gated-gelu")
    etymon.save(model, tmp_path / "t5")
    config = json.loads((tmp_path / "t5" / "config.json").read_text())
    assert config["tie_word_embeddings"] is config["scale_decoder_outputs"] is False
    for key in ("tie_word_embeddings", "scale_decoder_outputs"):
        del config[key]
    # Transformers 5 writes the first with the second.
    extra = {"tie_word_embeddings": True} if "scale_decoder_outputs" in spelling else {}
    (tmp_path / "t5" / "config.json").write_text(json.dumps({**config, **extra, **spelling}))
    loaded = etymon.load(tmp_path / "t5")
    assert loaded.shape.tied is False
    assert_same(loaded, model)


@pytest.mark.parametrize("family", PRETRAINED)
@pytest.mark.parametrize("kind", ["shards", "bin", "bin shards"])
def test_shards_and_pickles(saved: Callable[..., Path], family: str, kind: str) -> None:
    folder = saved(family)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if kind == "shards":
        write_weights(folder, weights, shard_size=4000)
        assert (folder / "model.safetensors.index.json").is_file()
    elif kind == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        names = sorted(weights)
        places = {name: f"pytorch_model-{1 + i % 2:05d}-of-00002.bin" for i, name in enumerate(names)}
        for file in set(places.values()):
            torch.save({name: weights[name] for name in names if places[name] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))


# --- configuration


@pytest.mark.parametrize("family", PRETRAINED)
def test_unknown_keys_of_the_configuration(saved: Callable[..., Path], family: str) -> None:
    folder = saved(family, use_magic=True)
    line = refusal(folder)
    assert "'use_magic'" in line
    assert "--ignore-config-key use_magic" in line
    assert_same(etymon.load(folder, ignore_config_keys=["use_magic"]), tiny(family, PRETRAINED[family]))


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "activation_function", "mish"),
        ("gpt2", "n_head", 3),
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "hidden_size", "16"),
        ("t5", "feed_forward_proj", "mish"),
        ("t5", "model_type", "unheard-of"),
        ("bert", "architectures", ["BertForSomethingElse"]),
    ],
)
def test_configurations_that_are_another_model(
    saved: Callable[..., Path], family: str, key: str, value: Any
) -> None:
    line = refusal(saved(family, **{key: value}))
    assert key in line or str(value).strip("[']") in line


# --- heads


def test_a_new_head_on_a_pretrained_body(saved: Callable[..., Path]) -> None:
    for family, pretrained in PRETRAINED.items():
        folder = saved(family)
        model = etymon.load(folder, heads={"classification"}, labels=["a", "b", "c"])
        assert model.new_heads == ("classification",)
        assert model.labels == ("a", "b", "c")
        assert "vocabulary" not in model.heads
        assert_same(model, tiny(family, pretrained), only="body.")
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        again = etymon.load(folder, heads={"classification"}, labels=["a", "b", "c"])
        other = etymon.load(folder, heads={"classification"}, labels=["a", "b", "c"], seed=1)
        weight = "heads.classification.linear.weight"
        assert_same(model, again)
        assert not torch.equal(model.get_parameter(weight), other.get_parameter(weight))


def test_a_stored_head_is_kept_beside_a_new_one(saved: Callable[..., Path]) -> None:
    model = etymon.load(saved("bert"), heads={"vocabulary", "tagging"})
    assert model.new_heads == ("tagging",)
    assert_same(etymon.load(saved("bert")), tiny("bert", PRETRAINED["bert"]), only="heads.vocabulary")
    values = dict(tiny("bert", PRETRAINED["bert"]).named_parameters())
    for name, parameter in model.named_parameters():
        if not name.startswith("heads.tagging"):
            assert torch.equal(parameter, values[name]), name


@pytest.mark.parametrize("family", PRETRAINED)
def test_heads_can_be_left_out(saved: Callable[..., Path], family: str) -> None:
    model = etymon.load(saved(family), heads=set())
    assert model.new_heads == ()
    assert len(model.heads) == 0
    assert_same(model, tiny(family, PRETRAINED[family]))


def test_a_head_of_another_size_is_refused(tmp_path: Path) -> None:
    etymon.save(tiny("bert", {"classification"}, labels=("a", "b", "c")), tmp_path / "bert")
    line = refusal(tmp_path / "bert", labels=["a", "b"])
    assert "classifier.weight is (3, 16), not (2, 16)" in line


def test_a_new_head_does_not_take_another_s_weights(tmp_path: Path) -> None:
    """Several heads go by the same name in the reference: `classifier` is of rows or of tokens."""
    etymon.save(tiny("bert", {"classification"}, labels=("a", "b", "c")), tmp_path / "bert")
    for labels in (["x", "y", "z"], ["x", "y"]):
        model = etymon.load(tmp_path / "bert", heads={"tagging"}, labels=labels)
        assert model.new_heads == ("tagging",)
        assert model.get_parameter("heads.tagging.linear.weight").abs().max() <= 0.04
        assert not model.get_parameter("heads.tagging.linear.bias").any()


def test_more_heads_than_the_class_has(saved: Callable[..., Path]) -> None:
    """The published BERTs name the masked model, and hold the pooler and the other head of pretraining."""
    folder = saved("bert", architectures=["BertForMaskedLM"])
    assert_same(etymon.load(folder), tiny("bert", PRETRAINED["bert"]))
    rewrite(folder, without("cls.seq_relationship.weight", "cls.seq_relationship.bias"))
    model = etymon.load(folder)
    assert model.asked == {"vocabulary"}
    assert "pooler" not in model.heads
    assert_same(model, tiny("bert", PRETRAINED["bert"]))
    rewrite(folder, lambda weights: {"qa_outputs.weight": torch.zeros(2, 16), **weights})
    assert "unexpected: qa_outputs.weight" in refusal(folder)


def test_an_unknown_head_is_refused(saved: Callable[..., Path]) -> None:
    assert "classification" in refusal(saved("bert"), heads={"clasification"})


def test_what_a_partial_load_did_not_find_is_told(saved: Callable[..., Path]) -> None:
    folder = saved("bert", without("cls.seq_relationship.weight"))
    assert "missing: cls.seq_relationship.weight" in refusal(folder)
    model = etymon.load(folder, partial=True)
    assert model.new_heads == ("next_sentence",)
    assert_same(model, tiny("bert", PRETRAINED["bert"]), only="body.")


UNPUBLISHED = {
    "gpt2": {"vocabulary", "classification"},
    "bert": {"vocabulary", "classification"},
    "t5": {"vocabulary", "tagging"},
}


@pytest.mark.parametrize("family", UNPUBLISHED)
def test_heads_without_a_class_travel_with_the_others(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = tiny(family, UNPUBLISHED[family], labels=("a", "b", "c")).eval()
    etymon.save(model, tmp_path / "saved")
    own = {
        name
        for name in load_file(tmp_path / "saved" / "model.safetensors")
        if name.startswith("etymon_heads.")
    }
    extra = next(iter(UNPUBLISHED[family] - {"vocabulary"}))
    assert own
    assert all(name.startswith(f"etymon_heads.{extra}.") for name in own)
    loaded = etymon.load(tmp_path / "saved")
    assert loaded.asked == UNPUBLISHED[family]
    assert loaded.labels == ("a", "b", "c")
    assert_same(loaded, model)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    opened, info = cls.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    # BERT's pooler serves the other head, and a class without it leaves it aside.
    rest = {name for name in info["unexpected_keys"] if not name.startswith("etymon_heads.")}
    assert all(".pooler." in name for name in rest)
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        if family == "t5":
            hidden, _ = model.decode(Batch.of_rectangle(ids), model.encode(Batch.of_rectangle(ids)))
            expected = opened.eval()(input_ids=ids, decoder_input_ids=ids).logits
        else:
            hidden, _ = model.hidden(Batch.of_rectangle(ids))
            expected = opened.eval()(input_ids=ids).logits
        torch.testing.assert_close(
            model.heads["vocabulary"].logits(hidden)[None], expected, atol=1e-5, rtol=1e-4
        )


def test_labels_and_carried_values_survive(tmp_path: Path) -> None:
    model = tiny("bert", {"classification"}, labels=("bad", "so-so", "good"))
    model.carried = {"pad_token_id": 0, "task_specific_params": {"a": 1}}
    etymon.save(model, tmp_path / "bert")
    loaded = etymon.load(tmp_path / "bert")
    assert loaded.labels == ("bad", "so-so", "good")
    assert loaded.carried["task_specific_params"] == {"a": 1}
    assert loaded.token("pad") == 0


def test_a_folder_without_a_class_is_read_by_its_names(saved: Callable[..., Path]) -> None:
    for family, heads in PRETRAINED.items():
        model = etymon.load(saved(family, architectures=None))
        # A tied output matrix has no name of its own: that head has to be asked for.
        assert model.asked == (heads if family == "bert" else frozenset())


def test_ids_beyond_the_positions_are_refused_with_the_fix() -> None:
    model = tiny("gpt2", {"vocabulary"})
    with pytest.raises(EtymonError, match="13 tokens, but the model has 12 positions"):
        model.hidden(Batch.of([[1] * 13]))
