"""What BERT's relatives do differently, and that any objective finds its heads and its generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etymon
from etymon.config import strict
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.nn.batch import Batch
from tests.families.folders import PRETRAINED, assert_same, tiny
from tests.tiny import tokenizer as etymon_tokenizer

ENCODERS = ("bert", "roberta", "albert", "distilbert", "electra")
ROWS = [[4, 7, 9, 2], [5, 6], [8, 3, 11, 10, 2, 2, 6]]


def padded(side: str, pad: int = 1) -> tuple[Tensor, Tensor]:
    longest = max(map(len, ROWS))
    rows, masks = [], []
    for row in ROWS:
        blank = [pad] * (longest - len(row))
        rows.append([*blank, *row] if side == "left" else [*row, *blank])
        masks.append([number != pad for number in rows[-1]])
    return torch.tensor(rows), torch.tensor(masks)


# --- RoBERTa's positions


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad", [0, 1])
def test_roberta_counts_what_is_seen(side: str, pad: int) -> None:
    model = tiny("roberta", {"vocabulary"}, pad=pad).eval()
    ids, mask = padded(side, pad)
    with torch.no_grad():
        ragged, _ = model.hidden(Batch.of(ROWS))
        rectangle, _ = model.hidden(Batch.of_rectangle(ids, mask))
    torch.testing.assert_close(rectangle[mask.reshape(-1)], ragged, atol=1e-5, rtol=1e-5)


def test_roberta_s_positions_are_those_that_a_text_can_have() -> None:
    model = tiny("roberta", {"vocabulary"}, positions=5, pad=3)
    assert model.positions == 5
    assert model.body.embeddings.positions.num_embeddings == 9
    model.hidden(Batch.of([[4] * 5]))
    with pytest.raises(etymon.EtymonError, match="6 tokens, but the model has 5 positions"):
        model.hidden(Batch.of([[4] * 6]))


def test_roberta_s_padding_rows_begin_and_stay_zero() -> None:
    family = get_family("roberta")
    model = Model(family, shape_of(family, None, vocabulary=40, dim=16, heads=2), {"span"}).initialise()
    embeddings = model.body.embeddings
    for table in (embeddings.words, embeddings.positions):
        assert not table.weight[1].any()
        assert table.weight[2].all()
    model.hidden(Batch.of_rectangle(*padded("left")))[0].sum().backward()
    assert not embeddings.positions.weight.grad[1].any()
    assert embeddings.positions.weight.grad[2].any()


def test_roberta_follows_a_tokenizer_with_another_padding(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    family, tokenizer = get_family("roberta"), etymon_tokenizer("bert")
    fields = family.tokenizer_fields(tokenizer)
    assert fields == {"pad": 0} and get_family("bert").tokenizer_fields(tokenizer) == {}
    model = tiny("roberta", {"vocabulary"}, vocabulary=tokenizer.size, **fields).eval()
    model.tokenizer = tokenizer
    etymon.save(model, tmp_path / "saved")
    theirs = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "saved").eval()
    ids, mask = padded("left", pad=0)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long()).logits[mask]
        hidden, _ = model.hidden(Batch.of(ROWS))
    torch.testing.assert_close(model.heads["vocabulary"].logits(hidden), expected, atol=1e-5, rtol=1e-4)  # type: ignore[operator]


# --- ALBERT's layers


def test_albert_s_layers_take_turns() -> None:
    model = tiny("albert", set(), layers=5, groups=2, inner_groups=2)
    assert model.body.stack.schedule == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3]
    assert len(model.body.stack.layers) == 4
    one = tiny("albert", set(), layers=7)
    assert len(one.body.stack.layers) == 1
    with etymon.trace(one) as seen:
        one.hidden(Batch.of(ROWS))
    assert len(seen.attention) == 7
    assert len(seen.hidden) == 8


def test_where_dropout_falls() -> None:
    def rates(family: str) -> tuple[float, float]:
        layer = tiny(family, set(), dropout=0.3).body.stack.layers[0]
        return layer.dropout.rate, layer.feed_forward_dropout.rate

    assert rates("bert") == rates("roberta") == rates("electra") == (0.3, 0.3)
    assert rates("albert") == (0.3, 0.0)
    assert rates("distilbert") == (0.0, 0.3)
    heads = tiny("distilbert", {"classification", "span"}).heads
    assert heads["classification"].dropout.rate == 0.2
    assert heads["classification"].input_dropout.rate == 0.0
    assert heads["span"].dropout.rate == 0.1
    assert tiny("albert", {"sentence_order"}).heads["sentence_order"].dropout.rate == 0.1
    chosen = tiny("electra", {"choice"}, choice_dropout=0.4).heads["choice"]
    assert (chosen.input_dropout.rate, chosen.dropout.rate) == (0.0, 0.4)
    assert tiny("roberta", {"choice"}, head_dropout=0.4).heads["choice"].dropout.rate == 0.1


# --- published configurations, older keys included

SHARED: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2,
}  # fmt: skip
PUBLISHED: dict[tuple[str, str], dict[str, Any]] = {
    ("roberta", "base"): {
        **SHARED, "architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
        "layer_norm_eps": 1e-5, "max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 50265,
    },
    ("albert", "base"): {
        **SHARED, "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "classifier_dropout_prob": 0.1,
        "hidden_act": "gelu_new", "embedding_size": 128, "inner_group_num": 1, "num_hidden_groups": 1,
        "down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0, "bos_token_id": 2,
        "eos_token_id": 3, "pad_token_id": 0, "vocab_size": 30000,
    },
    ("distilbert", "base"): {
        "activation": "gelu", "attention_dropout": 0.1, "dim": 768, "dropout": 0.1, "hidden_dim": 3072,
        "initializer_range": 0.02, "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6, "pad_token_id": 0,
        "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
        "vocab_size": 30522,
    },
    ("electra", "base"): {
        **SHARED, "embedding_size": 768, "pad_token_id": 0, "position_embedding_type": "absolute",
        "summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True,
        "vocab_size": 30522,
    },
}  # fmt: skip


@pytest.mark.parametrize(("family", "size"), PUBLISHED)
def test_published_configurations(family: str, size: str) -> None:
    known = get_family(family)
    config = {"model_type": known.model_type, **PUBLISHED[family, size]}
    fields, carried = known.settings.read(config, "config.json")
    assert strict(known.shape, fields, "config.json") == shape_of(known, size)
    assert carried["pad_token_id"] == PUBLISHED[family, size]["pad_token_id"]


def test_roberta_s_class_takes_other_values_for_granted() -> None:
    fields, _ = get_family("roberta").settings.read({}, "config.json")
    assert fields == {"positions": 510, "segments": 2, "norm_epsilon": 1e-12, "pad": 1}


# --- heads and generators for any objective


@pytest.mark.parametrize("family", [name for name in ENCODERS if name != "distilbert"])
def test_every_objective_s_head_is_there_and_travels(family: str, tmp_path: Path) -> None:
    model = tiny(family, {"vocabulary", "next_sentence", "sentence_order", "replaced"}).eval()
    batch = Batch.of(ROWS)
    hidden, _ = model.hidden(batch)
    assert model.read("next_sentence", hidden, batch).shape == (3, 2)
    assert model.read("sentence_order", hidden, batch).shape == (3, 2)
    assert model.read("replaced", hidden, batch).shape == (13,)
    etymon.save(model, tmp_path / "saved")
    loaded = etymon.load(tmp_path / "saved")
    assert loaded.head_names == model.head_names
    assert_same(loaded, model)


@pytest.mark.parametrize("family", [name for name in ENCODERS if name != "distilbert"])
@pytest.mark.parametrize("changes", [{}, {"dim": 1036}], ids=str)
def test_generators_can_share_the_embeddings(family: str, changes: dict[str, Any]) -> None:
    model = tiny(family, PRETRAINED[family], **changes)
    assert "generator" in model.capabilities and model.family.generator is not None
    name, fields = model.family.generator(model.shape)
    generator = Model(get_family(name), get_family(name).shape(**fields), {"vocabulary"}).initialise()
    assert generator.parameter_count() < model.parameter_count() or family == "albert"
    for part in ("words", "positions", "segments", "norm"):
        own, theirs = (getattr(each.body.embeddings, part) for each in (generator, model))
        assert [one.shape for one in own.parameters()] == [one.shape for one in theirs.parameters()]
    assert generator.hidden(Batch.of(ROWS))[0].shape == (13, generator.shape.dim)


def test_published_generators() -> None:
    electra = get_family("electra")
    for size in ("small", "base", "large"):
        assert electra.generator is not None
        name, fields = electra.generator(shape_of(electra, size))
        assert name == "electra"
        assert electra.shape(**fields) == shape_of(electra, f"{size}-generator")
    assert get_family("distilbert").generator is None
    assert "generator" not in get_family("distilbert").capabilities


def test_recipes_say_what_their_objectives_need() -> None:
    options = {
        (name, size): dict(get_family(name).recipe_for(size).options)
        for name in ENCODERS
        for size in get_family(name).sizes
    }
    assert options["roberta", "base"] == {"masking": "roberta", "packing": "full-sentences"}
    pocket = {"density": 0.4, "summary": 1.0}
    assert options["roberta", "pocket"] == {**options["roberta", "base"], **pocket}
    assert options["albert", "xxlarge"] == {"masking": "ngram"}
    assert options["albert", "pocket"] == options["bert", "pocket"] == pocket
    assert options["electra", "large"] == {"density": 0.25}
    assert options["electra", "base"] == options["distilbert", "base"] == options["bert", "base"] == {}


@pytest.mark.parametrize("family", ENCODERS)
def test_pocket_sizes_are_small(family: str) -> None:
    with torch.device("meta"):
        count = Model(
            get_family(family), shape_of(get_family(family), "pocket"), PRETRAINED[family]
        ).parameter_count()
    assert 1_500_000 < count < 6_000_000


def test_where_there_is_one_segment_everything_belongs_to_it() -> None:
    model = tiny("bert", {"classification"}, segments=1).eval()
    rows, parts = [[3, 4, 5, 6], [7, 8]], [[0, 0, 1, 1], [0, 1]]
    with torch.no_grad():
        found = model.answer("classification", Batch.of(rows, segments=parts))
        assert torch.equal(found, model.answer("classification", Batch.of(rows)))
