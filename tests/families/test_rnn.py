"""Recurrent models against their formulas, one row and one step at a time, in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etymon
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode
from etymon.nn.batch import Batch
from tests.families.folders import tiny

SOURCES, TARGETS = [[4, 7, 9, 2, 30, 11, 5], [5, 6], [8, 3, 11, 10, 2]], [[1, 4, 6], [1, 9, 2, 7, 5], [1]]
ONE_WAY = {"bidirectional": False, "encoder_dim": None}
LUONG = {"attention": "luong", "readout": "tanh"}
VARIANTS: dict[str, dict[str, Any]] = {
    "bahdanau": {},
    "bahdanau-lstm-tanh": {"cell": "lstm", "readout": "tanh", "layers": 1},
    "bahdanau-backwards": {"backwards": True, "bidirectional": False, "alignment_dim": 5},
    "luong-dot": {**LUONG, "score": "dot", "encoder_dim": 5},
    "luong-general-lstm": {**LUONG, "score": "general", "cell": "lstm"},
    "luong-concat-maxout": {**LUONG, "score": "concat", "readout": "maxout", "layers": 1},
    "luong-fed": {
        **LUONG,
        "score": "general",
        "feed": True,
        **ONE_WAY,
        "cell": "lstm",
        "copied": True,
        "backwards": True,
    },
    "luong-local": {**LUONG, "score": "general", "window": 2},
    "luong-local-fed": {**LUONG, "score": "concat", "window": 1, "feed": True},
    # As two published models have it: one encoder layer under two of the decoder, biases wherever there is a map.
    "additive-biased-lstm": {
        "cell": "lstm",
        "layers": 1,
        "decoder_layers": 2,
        "alignment_bias": True,
        "readout": "linear",
        "output_bias": True,
        "bridge": "states",
    },
    "additive-biased-gru": {"alignment_bias": True, "bridge": "both", "decoder_layers": 1},
    "luong-backward": {
        **LUONG,
        "score": "general",
        "cell": "lstm",
        "bridge": "backward",
        "output_bias": True,
    },
    "luong-linear": {**LUONG, "score": "concat", "alignment_bias": True, "readout": "linear", "feed": True},
    "fixed": {"attention": "none", "readout": "tanh"},
    "fixed-lstm": {"attention": "none", "cell": "lstm", "copied": True, **ONE_WAY, "layers": 1},
}


def model_of(variant: str) -> Model:
    return tiny("rnn", {"vocabulary"}, **VARIANTS[variant]).double().eval()


class Plain:
    """The published formulas, nothing saved and nothing at once."""

    def __init__(self, model: Model) -> None:
        self.shape, self.weights = model.shape, dict(model.body.named_parameters())
        self.weights |= {"encoder.words.weight": self.weights["words.weight"]}

    def cell(self, name: str, suffix: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        w = {
            kind: self.weights[f"{name}.{kind}_l0{suffix}"]
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        own, given = w["weight_hh"] @ h + w["bias_hh"], w["weight_ih"] @ x + w["bias_ih"]
        if self.shape.cell == "gru":
            (r, z, n), (own_r, own_z, own_n) = given.chunk(3), own.chunk(3)
            reset, update = torch.sigmoid(r + own_r), torch.sigmoid(z + own_z)
            return (1 - update) * torch.tanh(n + reset * own_n) + update * h, c
        i, f, g, o = (given + own).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def encode(self, ids: list[int]) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        shape = self.shape
        x = [self.weights["words.weight"][number] for number in ids]
        finals, width = [], shape.encoder_dim or shape.dim
        for layer in range(shape.layers):
            sides, last = [], []
            for suffix in ["", "_reverse"] if shape.bidirectional else [""]:
                order = (
                    range(len(x) - 1, -1, -1) if (suffix == "_reverse") != shape.backwards else range(len(x))
                )
                h = c = torch.zeros(width, dtype=torch.float64)
                out: dict[int, Tensor] = {}
                for place in order:
                    h, c = self.cell(f"encoder.layers.{layer}", suffix, x[place], h, c)
                    out[place] = h
                sides.append([out[place] for place in range(len(x))])
                last.append((h, c))
            finals.append(tuple(torch.cat(parts) for parts in zip(*last, strict=True)))
            x = [torch.cat(parts) for parts in zip(*sides, strict=True)]
        return x, finals

    def map(self, name: str, x: Tensor) -> Tensor:
        bias = self.weights.get(f"{name}.bias")
        return self.weights[f"{name}.weight"] @ x + (0.0 if bias is None else bias)

    def align(self, s: Tensor, memory: list[Tensor]) -> tuple[Tensor, Tensor]:
        shape, w, name = self.shape, self.weights, "decoder.alignment."
        scores = []
        for h in memory:
            if shape.score == "dot":
                scores.append(s @ h)
            elif shape.score == "general":
                scores.append(s @ (w[name + "key.weight"] @ h))
            else:
                mixed = torch.tanh(self.map(name + "query", s) + self.map(name + "key", h))
                scores.append(self.map(name + "energy", mixed)[0])
        center, near = torch.tensor(0.0), list(range(len(memory)))
        if shape.window:
            inner = torch.tanh(w[name + "place.weight"] @ s)
            center = len(memory) * torch.sigmoid((w[name + "place_energy.weight"] @ inner)[0])
            near = [j for j in near if abs(j - center.item()) <= shape.window]
        weights = torch.zeros(len(memory), dtype=torch.float64)
        for j, weight in zip(near, torch.stack([scores[j] for j in near]).softmax(0), strict=True):
            deviation = shape.window / 2
            fall = torch.exp(-((j - center) ** 2) / (2 * deviation**2)) if shape.window else 1.0
            weights = weights + weight * fall * torch.nn.functional.one_hot(torch.tensor(j), len(memory))
        return weights, sum((weight * h for weight, h in zip(weights, memory, strict=True)), torch.zeros(1))

    def read(self, *parts: Tensor) -> Tensor:
        x = self.map("decoder.readout.linear", torch.cat(parts))
        kinds = {"linear": lambda: x, "tanh": x.tanh, "maxout": lambda: x.view(-1, 2).max(1).values}
        return kinds[self.shape.readout]()

    def run(self, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
        """What is read out at every step, and the alignments."""
        shape, w = self.shape, self.weights
        memory, finals = self.encode(source)
        layers = shape.decoder_layers or shape.layers
        if shape.copied:
            states = list(finals)
        else:
            given, cell = finals[-1]
            if (shape.bridge or {"bahdanau": "backward"}.get(shape.attention)) == "backward":
                given = given[-(shape.encoder_dim or shape.dim) :]
            mapped = self.map("decoder.bridge", given)
            if shape.bridge == "states" and shape.cell == "lstm":
                mapped = torch.cat([mapped, self.map("decoder.cell_bridge", cell)])
            parts = mapped.view(-1, layers, shape.dim)
            states = [(parts[0, layer].tanh(), parts[-1, layer]) for layer in range(layers)]
        fed = torch.zeros(shape.readout_dim, dtype=torch.float64)
        outs, alignments = [], []
        for number in target:
            word, before = w["words.weight"][number], states[-1][0]
            x, weights, context = word, torch.zeros(1), finals[-1][0]
            if shape.attention == "bahdanau":
                weights, context = self.align(before, memory)
            if shape.attention != "luong":
                x = torch.cat([x, context])
            elif shape.feed:
                x = torch.cat([x, fed])
            for layer in range(layers):
                states[layer] = self.cell(f"decoder.layers.{layer}", "", x, *states[layer])
                x = states[layer][0]
            if shape.attention == "luong":
                weights, context = self.align(x, memory)
                fed = self.read(context, x)
                outs.append(fed)
            else:
                outs.append(self.read(before, word, context))
            alignments.append(weights)
        return torch.stack(outs), torch.stack(alignments)


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_gradients_and_alignments_are_those_of_the_formulas(variant: str) -> None:
    model = model_of(variant)
    plain = Plain(model)
    found = [plain.run(source, target) for source, target in zip(SOURCES, TARGETS, strict=True)]
    expected = torch.cat([outs for outs, _ in found])
    with etymon.trace(model) as seen:
        hidden, _ = model.decode(Batch.of(TARGETS), model.encode(Batch.of(SOURCES)))
    torch.testing.assert_close(hidden, expected, atol=1e-12, rtol=1e-10)
    assert torch.equal(seen["decoder"].hidden[-1], hidden)
    for row, (_, alignments) in enumerate(found if model.shape.attention != "none" else []):
        (weights,) = seen["decoder"].cross
        shown = weights[row, 0]
        torch.testing.assert_close(
            shown[: len(TARGETS[row]), : len(SOURCES[row])], alignments, atol=1e-12, rtol=1e-10
        )
        assert not shown[len(TARGETS[row]) :].any() and not shown[:, len(SOURCES[row]) :].any()
    mixture = torch.linspace(-1, 1, hidden.numel(), dtype=torch.float64).view(hidden.shape)
    parameters = dict(model.body.named_parameters())
    ours = torch.autograd.grad((hidden * mixture).sum(), list(parameters.values()))
    theirs = torch.autograd.grad((expected * mixture).sum(), list(parameters.values()))
    for name, one, other in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(
            one, other, atol=1e-11, rtol=1e-8, msg=lambda why, name=name: f"{name}: {why}"
        )


def test_a_bias_of_the_output_is_added_to_every_word_and_survives_a_folder(tmp_path: Path) -> None:
    model = model_of("additive-biased-lstm")
    head = model.heads["vocabulary"]
    with torch.no_grad():
        head.bias.copy_(torch.linspace(-1, 1, len(head.bias)))
    x = torch.randn(3, head.weight.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.logits(x), x @ head.weight.T + head.bias)
    etymon.save(model, tmp_path)
    again = etymon.load(tmp_path)
    assert again.shape == model.shape
    for (name, value), other in zip(model.named_parameters(), again.double().parameters(), strict=True):
        torch.testing.assert_close(other, value, atol=1e-7, rtol=1e-6, msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_with_a_state_are_teacher_forcing(variant: str) -> None:
    """Token by token, in ragged pieces, with rows that leave, change places and multiply, and after coming back."""
    model = model_of(variant)
    with torch.inference_mode():
        memory = model.encode(Batch.of(SOURCES))
        rows = [[1, 4, 6, 3], [1, 9, 2, 7], [1, 5, 5, 8]]
        whole = model.decode(Batch.of(rows), memory)[0].view(3, 4, -1)
        state = model.start(3)
        pieces = ([row[:1] for row in rows], [rows[0][1:3], rows[1][1:2], rows[2][1:4]])
        for piece in pieces:
            out, _ = model.decode(Batch.of(piece, starts=state.lengths), memory, state)
        expected = torch.cat([whole[0, 1:3], whole[1, 1:2], whole[2, 1:4]])
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-10)
        state.crop([2, 1, 2])
        chosen = state.select(torch.tensor([2, 0])).fork(2)
        assert chosen.lengths == (2, 2, 2, 2)
        step, _ = model.decode(Batch.of([[5], [5], [6], [6]], starts=chosen.lengths), memory, chosen)
        torch.testing.assert_close(step, whole[[2, 2, 0, 0], 2], atol=1e-12, rtol=1e-10)
        mark = state.mark()
        model.decode(Batch.of([[7], [7], [7]], starts=state.lengths), memory, state)
        state.rewind(mark)
        state.crop([0, 0, 0])
        again, _ = model.decode(Batch.of([row[:1] for row in rows]), memory, state)
        torch.testing.assert_close(again, whole[:, 0], atol=1e-12, rtol=1e-10)
        with pytest.raises(ValueError, match="cannot be cropped"):
            state.crop([2, 1, 1])


def test_beams_are_a_search_by_brute_force() -> None:
    """Three tokens of few words: the best of all texts is found when there is a beam for each."""
    model = tiny("rnn", {"vocabulary"}, vocabulary=5, word_dim=12).eval()
    model.carried = {"decoder_start_token_id": 1, "eos_token_id": 0}
    settings = DecodingSettings(beams=64, max_new_tokens=3, length_penalty=0.0)
    texts = [[a, b, c] for a in range(1, 5) for b in range(1, 5) for c in range(5)]
    texts += [[a, 0] for a in range(1, 5)] + [[0]]
    sources = [[2, 3, 1, 4], [4]]
    with torch.no_grad():
        memory = model.encode(Batch.of([source for source in sources for _ in texts]))
        targets = texts * len(sources)
        hidden, _ = model.decode(Batch.of([[1, *ids[:-1]] for ids in targets]), memory)
        asked = torch.tensor([number for ids in targets for number in ids])
        log_probs = model.heads["vocabulary"].log_probs(hidden).gather(1, asked[:, None])[:, 0]
    totals = [float(part.sum()) for part in log_probs.split([len(ids) for ids in targets])]
    for number, row in enumerate(decode(model, sources, settings)):
        own = totals[number * len(texts) : (number + 1) * len(texts)]
        best = max(range(len(texts)), key=own.__getitem__)
        assert row[0].ids == texts[best] and row[0].log_prob == pytest.approx(own[best], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"feed": True}, "belong to Luong"),
        ({"score": "dot"}, "concat alone"),
        ({"attention": "luong", "score": "dot", "encoder_dim": None}, "as wide as states"),
        ({"copied": True}, "one direction"),
        ({"copied": True, **ONE_WAY, "decoder_layers": 2}, "as many layers"),
        ({"copied": True, **ONE_WAY, "bridge": "both"}, "no map"),
        ({"attention": "luong", "score": "general", "alignment_bias": True}, "the score concat"),
        ({"tied": True, "readout_dim": 3}, "tied words need"),
    ],
    ids=lambda value: str(value),
)
def test_shapes_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EtymonError, match=said):
        shape_of(get_family("rnn"), "pocket", **changes)


# --- the classic comparison


def reversal(attention: str, steps: int) -> tuple[Model, list[float]]:
    """Trained to write its source backwards; the shares of whole texts that are right, by length."""
    known, generator = get_family("rnn"), torch.Generator().manual_seed(0)
    shape = known.shape(
        vocabulary=14,
        word_dim=24,
        dim=32,
        encoder_dim=16,
        readout_dim=24,
        readout="tanh",
        attention=attention,
    )
    model = Model(known, shape, {"vocabulary"}).initialise(1)
    with torch.no_grad():
        for (
            name,
            parameter,
        ) in model.named_parameters():  # a short training needs a livelier beginning than the published one
            if parameter.dim() > 1 and "weight_hh" not in name:
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    optimiser = torch.optim.Adam(model.parameters(), 6e-3)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 6e-3 * min(1.0, 2 * (1 - step / steps))
        lengths = torch.randint(2, 9, (32,), generator=generator).tolist()
        rows = [torch.randint(3, 14, (length,), generator=generator).tolist() for length in lengths]
        written = [row[::-1] + [2] for row in rows]
        hidden, _ = model.decode(Batch.of([[1, *row[:-1]] for row in written]), model.encode(Batch.of(rows)))
        targets = torch.tensor([number for row in written for number in row])
        loss = model.heads["vocabulary"].loss(hidden, None, targets) / len(targets)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.eval().carried = {"decoder_start_token_id": 1, "eos_token_id": 2}
    shares = []
    for length in (3, 8):
        rows = torch.randint(3, 14, (60, length), generator=generator).tolist()
        made = decode(model, rows, DecodingSettings(max_new_tokens=length + 1))
        shares.append(sum(one[0].ids == row[::-1] + [2] for one, row in zip(made, rows, strict=True)) / 60)
    return model, shares


def test_first_values_are_the_published_ones_but_for_pocket_sizes() -> None:
    narrow = {"vocabulary": 300, "word_dim": 64, "dim": 64, "readout_dim": 64}
    for size, words, readout in (
        ("bahdanau", 0.01, 0.01),
        ("pocket", 0.2, (2 / (64 + 64 + 256 + 64)) ** 0.5),
    ):
        body = etymon.build("rnn", size, heads=("vocabulary",), shape=narrow).body
        assert body.words.weight.std().item() == pytest.approx(words, rel=0.05)
        assert body.decoder.readout.linear.weight.std().item() == pytest.approx(readout, rel=0.05)
    family = get_family("rnn")
    assert family.recipe_for("bahdanau") == family.recipe and family.recipe_for("tiny") != family.recipe


def test_a_fixed_vector_falls_with_length_and_attention_does_not() -> None:
    _, (short_fixed, long_fixed) = reversal("none", 200)
    model, (short, long) = reversal("bahdanau", 200)
    assert short > 0.95 and long > 0.9
    assert long_fixed < 0.3 and short_fixed - long_fixed > 0.3
    row = [5, 9, 4, 12, 7, 3, 11, 6]
    with torch.no_grad(), etymon.trace(model) as seen:
        model.decode(Batch.of([[1, *row[::-1]]]), model.encode(Batch.of([row])))
    looked = seen["decoder"].cross[0][0, 0, :8].argmax(-1).tolist()
    assert sum(place == 7 - step for step, place in enumerate(looked)) >= 7, (
        "the alignment is the other diagonal"
    )
