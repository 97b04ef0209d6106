"""Words by letters, and the mix of layers, each against its formula."""

from __future__ import annotations

import pytest
import torch

from etymon.families.elmo import Shape
from etymon.families.elmo.characters import PADDING, Characters
from etymon.nn.batch import Batch, Letters
from etymon.nn.features import ScalarMix


def characters(activation: str = "relu") -> Characters:
    torch.manual_seed(0)
    sizes = {"letter_dim": 4, "filters": "1x3 3x5", "highways": 2, "dim": 6, "word_length": 12}
    made = Characters(Shape(**sizes, activation=activation))  # type: ignore[arg-type]
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made.double()


def words(*spelled: list[int]) -> torch.Tensor:
    return torch.tensor([[259, *letters, 260] + [PADDING] * (10 - len(letters)) for letters in spelled])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_word_is_what_the_formula_says(activation: str) -> None:
    part = characters(activation)
    (word,) = words([5, 9, 200])
    x_CE = part.letters.weight[word]
    found = []
    for convolution in part.convolutions:
        width = convolution.kernel_size[0]
        windows = [
            torch.einsum("ke,oek->o", x_CE[t : t + width], convolution.weight) + convolution.bias
            for t in range(13 - width)
        ]
        found.append(getattr(torch, activation)(torch.stack(windows).max(0).values))
    x = torch.cat(found)
    for highway in part.highways:
        g = torch.sigmoid(highway.carry(x))
        x = g * x + (1 - g) * highway.transform(x).relu()
    torch.testing.assert_close(part.words(word[None])[0], part.projection(x))


@pytest.mark.parametrize("cut", [6, 8, 12])
def test_padding_beyond_a_filter_says_nothing_new(cut: int) -> None:
    part, spelled = characters(), words([5, 9, 200, 7], [8])
    torch.testing.assert_close(part.words(spelled[:, :cut]), part.words(spelled))


def test_every_distinct_word_is_computed_once() -> None:
    part, spelled = characters(), words([1], [2, 3])
    seen: list[int] = []
    part.projection.register_forward_hook(lambda module, given, output: seen.append(len(output)))
    index = torch.tensor([0, 1, 1, 0, 1])
    batch = Batch.of([[0] * 5])
    batch.letters = Letters(spelled, index, index.flip(0))
    x_ND = part(batch)
    assert seen == [2] and x_ND.shape == (5, 12)
    torch.testing.assert_close(x_ND[:, :6], part.words(spelled)[index])
    torch.testing.assert_close(x_ND[:, 6:], part.words(spelled)[index.flip(0)])


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_mix_is_gamma_times_the_weighted_layers(layer_norm: bool) -> None:
    torch.manual_seed(0)
    layers, mix = (
        [torch.randn(5, 4, dtype=torch.double) + 2 for _ in range(3)],
        ScalarMix(3, layer_norm).double(),
    )
    torch.testing.assert_close(
        mix(layers) if not layer_norm else layers[0], sum(layers) / 3 if not layer_norm else layers[0]
    )
    with torch.no_grad():
        mix.gamma.fill_(1.5)
        for scalar, value in zip(mix.scalars, (0.3, -1.0, 2.0)):
            scalar.fill_(value)
    s = torch.tensor([0.3, -1.0, 2.0], dtype=torch.double).exp()
    parts = (
        [(x - x.mean()) / (x.var(unbiased=False) + 1e-13).sqrt() for x in layers] if layer_norm else layers
    )
    expected = 1.5 * sum(weight * x for weight, x in zip(s / s.sum(), parts))
    torch.testing.assert_close(mix(layers), expected)
    assert mix.penalty().item() == pytest.approx(0.09 + 1.0 + 4.0)
    with pytest.raises(ValueError, match="3 layers was given 2"):
        mix(layers[:2])
