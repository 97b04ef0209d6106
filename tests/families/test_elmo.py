"""ELMo: files of ours and of bilm-tf, layers and their vectors, unknown words, and a run from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etymon
from etymon.cli import main
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.model import Model
from etymon.families.saving import save_published
from etymon.lab.representations import represent
from etymon.nn.batch import Batch
from tests import tiny

TEXTS = ["The river crossed the zebra.", "A quokka."]


def model(heads: frozenset[str] = frozenset({"vocabulary", "mix"}), **changes: Any) -> Model:
    shape = {**tiny.shape("elmo"), "vocabulary": tiny.tokenizer("elmo").size, **changes}
    made = etymon.build("elmo", "pocket", shape=shape, heads=heads)
    made.tokenizer = tiny.tokenizer("elmo")
    return made.eval()


def layers(made: Model, text: str) -> list[torch.Tensor]:
    """By hand: marks around the words, and without them again."""
    assert made.tokenizer is not None
    ids = made.tokenizer.framing.frame(made.tokenizer.lexicon.encode_batch([text])[0]).ids
    with torch.no_grad(), etymon.trace(made) as seen:
        made.hidden(Batch.of([ids]))
    return [x_ND[1:-1] for x_ND in seen.hidden]


@pytest.mark.parametrize(
    ("size", "count"),
    [("small", 13_593_312), ("medium", 28_027_744), ("original", 93_600_864), ("5.5B", 93_600_864)],
)
def test_published_sizes(size: str, count: int) -> None:
    """Without the softmax; the published numbers of parameters are 13.6, 28.0 and 93.6 million."""
    family = get_family("elmo")
    with torch.device("meta"):
        assert Model(family, family.shape(**family.sizes[size]), ()).parameter_count() == count


def test_first_values_are_bilm_tf_s() -> None:
    values = dict(model().named_parameters())
    bias = values["body.stack.layers.0.ahead.state.bias"]
    assert bias.chunk(4)[1].eq(1).all() and not bias.chunk(4)[0].any() and not bias.chunk(4)[2].any()
    assert values["body.embeddings.highways.0.carry.bias"].eq(2).all()
    letters = values["body.embeddings.letters.weight"]
    assert not letters[0].any() and float(letters.detach().abs().max()) <= 1
    assert float(values["body.embeddings.convolutions.1.weight"].detach().abs().max()) <= 0.05


def test_our_folder_comes_back(tmp_path: Path) -> None:
    made = model()
    with torch.no_grad():
        made.heads["mix"].gamma.fill_(2.0)
    etymon.save(made, tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["model_type"] == "etymon-elmo" and config["architectures"] == []
    again = etymon.load(tmp_path / "saved")
    assert again.head_names == {"vocabulary", "mix"} and again.shape == made.shape
    for (name, one), two in zip(made.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two), name
    np.testing.assert_array_equal(etymon.embed(again, TEXTS), etymon.embed(made, TEXTS))


@pytest.mark.parametrize(
    "changes", [{}, {"activation": "tanh"}, {"skip_connections": False, "highways": 0}], ids=str
)
def test_published_files_come_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    pytest.importorskip("h5py")
    made = model(**changes)
    save_published(made, tmp_path / "bilm")
    assert sorted(path.name for path in (tmp_path / "bilm").iterdir()) == ["lm_weights.hdf5", "options.json"]
    again = etymon.load(tmp_path / "bilm")
    assert again.head_names == frozenset() and again.tokenizer is not None and again.tokenizer.size == 3
    assert {name: getattr(again.shape, name) for name in changes} == changes
    parameters = dict(made.named_parameters())
    for name, parameter in again.named_parameters():
        torch.testing.assert_close(parameter, parameters[name], rtol=0, atol=1e-7, msg=name)
    # The words are told by spaces here; their letters say everything.
    spaced = ["The river crossed the zebra .", "A quokka ."]
    np.testing.assert_allclose(etymon.embed(again, spaced), etymon.embed(made, TEXTS), atol=1e-6)
    etymon.save(again, tmp_path / "ours")
    np.testing.assert_array_equal(etymon.embed(tmp_path / "ours", spaced), etymon.embed(again, spaced))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lstm": {"do_layer_norm": True}}, "do_layer_norm"),
        ({"char_cnn": {"activation": "gelu"}}, "activation"),
        ({"char_cnn": {"max_characters_per_token": 30}}, "max_characters_per_token"),
        ({"char_cnn": {"filters": [[1, 4], [2, 6], [3, 9]]}}, "3"),
        ({"lstm": {"n_layers": 3}}, "does not fit"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    pytest.importorskip("h5py")
    save_published(model(), tmp_path / "bilm")
    options = json.loads((tmp_path / "bilm" / "options.json").read_text())
    for part, values in change.items():
        options[part] |= values
    (tmp_path / "bilm" / "options.json").write_text(json.dumps(options))
    with pytest.raises(EtymonError, match=said):
        etymon.load(tmp_path / "bilm")


def test_options_that_change_the_maths_do_so(tmp_path: Path) -> None:
    """The same weights, read with other options."""
    pytest.importorskip("h5py")
    save_published(model(), tmp_path / "bilm")
    path = tmp_path / "bilm" / "options.json"
    options, plain = json.loads(path.read_text()), etymon.embed(tmp_path / "bilm", ["The river"])
    for section, key, value in (("char_cnn", "activation", "tanh"), ("lstm", "use_skip_connections", False)):
        path.write_text(json.dumps({**options, section: {**options[section], key: value}}))
        assert not np.allclose(etymon.embed(tmp_path / "bilm", ["The river"]), plain)
    path.write_text(json.dumps({**options, "lstm": {**options["lstm"], "do_layer_norm": False}}))
    np.testing.assert_array_equal(etymon.embed(tmp_path / "bilm", ["The river"]), plain)


def test_mix_that_norms_its_layers_survives_saving(tmp_path: Path) -> None:
    made = model(mix_norm=True)
    etymon.save(made, tmp_path / "saved")
    again = etymon.load(tmp_path / "saved")
    ids = [[1, 5, 6, 2], [1, 7, 2]]
    assert again.tokenizer is not None
    with torch.no_grad():
        layers_ND = again.layers(Batch.of(ids))
        normed = [(x - x.mean()) / x.std(correction=0) for x in layers_ND]
        expected = torch.stack(normed).mean(0)  # first values are even shares
        torch.testing.assert_close(again.heads["mix"](layers_ND), expected, atol=1e-5, rtol=1e-5)


def test_published_files_of_the_oracle_are_written_as_they_were(shared: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    source = shared / "oracle" / "cases" / "elmo_fixture"
    save_published(etymon.load(source), tmp_path / "written")
    theirs, ours = ({}, {})
    for folder, found in ((source, theirs), (tmp_path / "written", ours)):
        with h5py.File(folder / "lm_weights.hdf5") as file:
            file.visititems(
                lambda name, part, found=found: (
                    found.update({name: part[...]}) if hasattr(part, "shape") else None
                )
            )
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=0, atol=1e-6, err_msg=name)
    options = [json.loads((folder / "options.json").read_text()) for folder in (source, tmp_path / "written")]
    assert options[0] == options[1]


def test_vectors_of_layers_and_mixes_leave_the_marks_out() -> None:
    made = model()
    with torch.no_grad():
        for scalar, value in zip(made.heads["mix"].scalars, (0.5, -1.0, 1.0)):
            scalar.fill_(value)
    for layer in range(3):
        for number, vector in enumerate(etymon.embed(made, TEXTS, layer=layer)):
            np.testing.assert_allclose(vector, layers(made, TEXTS[number])[layer].mean(0), atol=1e-6)
    word = layers(made, TEXTS[0])[0][1]
    assert torch.equal(*word.chunk(2)), "the first layer is the word, twice"
    own = etymon.embed(made, TEXTS[:1], mix="own", pooling="max")[0]
    with torch.no_grad():
        np.testing.assert_allclose(own, made.heads["mix"](layers(made, TEXTS[0])).amax(0), atol=1e-6)
    given = etymon.embed(made, TEXTS[:1], mix="0.5,0.25,0.25")[0]
    shares = sum(share * x for share, x in zip((0.5, 0.25, 0.25), layers(made, TEXTS[0])))
    np.testing.assert_allclose(given, shares.mean(0), atol=1e-6)
    for wrong in ("1,2", "a,b,c"):
        with pytest.raises(EtymonError, match="mix"):
            etymon.embed(made, TEXTS, mix=wrong)
    with pytest.raises(EtymonError, match="empty text"):
        etymon.embed(made, ["", TEXTS[0]])
    with pytest.raises(EtymonError, match="without a mix"):
        etymon.embed(model(frozenset()), TEXTS, mix="own")


def test_frozen_vectors_of_words() -> None:
    made = model()
    units = [(TEXTS[0], (10, 17)), (TEXTS[0], (22, 27)), (TEXTS[1], "mean"), (TEXTS[1], "last")]
    found = represent(made, units)
    assert found.states.shape == (3, 4, 2 * made.shape.dim) and found.present.all()
    for layer in range(3):
        first, second = (layers(made, text)[layer] for text in TEXTS)
        for number, expected in enumerate((first[2], first[4], second.mean(0), second[-1])):
            np.testing.assert_allclose(found.states[layer, number], expected, atol=1e-6)


def test_unknown_words_have_vectors_of_their_own() -> None:
    made = model()
    assert made.tokenizer is not None
    unknown = made.tokenizer.id("unknown")
    assert (made.tokenizer.encode("zebra quokka") == unknown).all()
    zebra, quokka, again = etymon.embed(made, ["zebra", "quokka", "zebra"], layer=0)
    assert not np.allclose(zebra, quokka) and np.array_equal(zebra, again)


def test_long_texts_and_no_text_from_left_to_right() -> None:
    made = model()
    assert made.positions is None and etymon.embed(made, ["river " * 3000]).shape == (1, 24)
    with pytest.raises(EtymonError, match=r"does not generate from left to right$"):
        etymon.generate(made, ["The"])


def entered(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert not ended.value.code


def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(tiny.texts(80)), encoding="utf-8")
    run = tmp_path / "run"
    arguments = [
        "pretrain",
        "elmo",
        "--size",
        "tiny",
        "--data",
        str(tmp_path / "text.txt"),
        "--documents",
        "blank",
    ]
    entered(*arguments, "--steps", "6", "--batch", "8", "--out", str(run), "--progress", "silent")
    said = capsys.readouterr().out
    assert "forward perplexity" in said and "backward perplexity" in said
    entered("embed", str(run), "The river crossed the quokka.", "--layer", "1")
    assert len(json.loads(capsys.readouterr().out)) == 64
    entered("convert", str(run), str(tmp_path / "bilm"), "--layout", "bilm")
    assert "vocabulary" in capsys.readouterr().out
    entered("embed", str(tmp_path / "bilm"), "The river", "--mix", "0.2,0.3,0.5")
    assert len(json.loads(capsys.readouterr().out)) == 64
