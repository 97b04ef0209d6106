"""Every objective against its definition: what is hidden, what is asked, and the loss on padded rectangles."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.nn.batch import Batch
from etymon.objectives import get_objective, objective_class, read_options
from etymon.objectives.denoising import SpanCorruption, SpanOptions
from etymon.objectives.objective import Term, check_fit, weighted_loss
from etymon.sampling.noise import raw_length_for
from etymon.sampling.plans import key
from etymon.text.store import Split
from etymon.training.unit import TrainingUnit
from tests import reconstruct, tiny


@dataclass
class Case:
    family: str
    objective: Any
    split: Split

    def examples(self, count: int, epoch: int = 0) -> list[Any]:
        plan = self.objective.plan(self.split, 0, epoch)[:count]
        return [
            self.objective.prepare(self.split, row, key(0, "sample", epoch, number))
            for number, row in enumerate(plan)
        ]


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    folder = tmp_path_factory.mktemp("stores")
    return {family: tiny.store(family, folder / family).train for family in tiny.SHAPES}


def case_of(splits: dict[str, Split], family: str, name: str, length: int = 24) -> Case:
    return Case(family, tiny.objective(family, name, length), splits[family])


@pytest.fixture(params=tiny.CASES, ids=lambda pair: pair[1])
def case(request: pytest.FixtureRequest, splits: dict[str, Split]) -> Case:
    return case_of(splits, *request.param)


def same(one: Any, two: Any) -> bool:
    first, second = asdict(one), asdict(two)
    return all(np.array_equal(first[name], second[name]) for name in first)


# ------------------------------------------------------------ plans and examples


def test_plan_is_a_function_of_seed_and_epoch(case: Case) -> None:
    plan = case.objective.plan(case.split, 3, 1)
    assert np.array_equal(plan, case.objective.plan(case.split, 3, 1))
    assert not np.array_equal(plan, case.objective.plan(case.split, 3, 2))
    assert not np.array_equal(plan, case.objective.plan(case.split, 4, 1))


def test_prepare_is_a_function_of_row_and_generator(case: Case) -> None:
    plan = case.objective.plan(case.split, 0, 0)
    for number, row in enumerate(plan[:8]):
        before = row.copy()
        first = case.objective.prepare(case.split, row, key(0, "sample", 0, number))
        np.random.random(3)
        torch.rand(3)
        case.objective.prepare(case.split, plan[-1], key(5, "another"))
        assert same(first, case.objective.prepare(case.split, row, key(0, "sample", 0, number)))
        assert np.array_equal(row, before)


@pytest.mark.parametrize("family, name", tiny.CASES)
def test_noise_changes_from_epoch_to_epoch(splits: dict[str, Split], family: str, name: str) -> None:
    case = case_of(splits, family, name, 48)  # with a single span, span corruption always hides the end
    row = max(case.objective.plan(case.split, 0, 0), key=lambda row: row[1] - row[0])
    epochs = [case.objective.prepare(case.split, row, key(0, "sample", epoch, 7)) for epoch in range(6)]
    differ = [not same(epochs[0], other) for other in epochs[1:]]
    assert any(differ) is (case.objective.name != "causal")


def test_causal_windows_say_the_whole_text_once(splits: dict[str, Split]) -> None:
    case = case_of(splits, "gpt2", "causal", 16)
    plan = case.objective.plan(case.split, 0, 0, shuffle=False)
    examples = [case.objective.prepare(case.split, row, key(0)) for row in plan]
    end = tiny.tokenizer("gpt2").id("end")
    text = [
        token for number in range(len(case.split)) for token in (*case.split.document(number).tolist(), end)
    ]
    assert np.concatenate([example.targets for example in examples]).tolist() == text
    assert examples[0].ids[0] == end
    for example in examples:
        assert example.ids[1:].tolist() == example.targets[:-1].tolist()
    collated = case.objective.collate(examples)
    assert collated.bytes == case.split.bytes.sum()
    assert collated.counts["loss"] == collated.tokens == case.split.stream_length


@pytest.mark.parametrize("name", ["masked", "masked-next-sentence"])
def test_masking_rates(splits: dict[str, Split], name: str) -> None:
    case = case_of(splits, "bert", name, 48)
    tokenizer = tiny.tokenizer("bert")
    frame = {tokenizer.id("class"), tokenizer.id("separator")}
    hidden = kept = replaced = asked = read = 0
    for epoch in range(12):
        for example in case.examples(60, epoch):
            shown = example.ids[example.places]
            hidden += (shown == tokenizer.id("mask")).sum()
            kept += (shown == example.targets).sum()
            replaced += ((shown != tokenizer.id("mask")) & (shown != example.targets)).sum()
            asked += len(shown)
            read += len(example.ids)
            assert len(set(example.places.tolist())) == len(example.places)
            assert len(example.places) == max(1, round(0.15 * len(example.ids)))
            assert not frame & set(example.targets.tolist()), "a frame token was masked"
            original = reconstruct.from_at(example.ids, example.places, example.targets)
            assert original[0] == tokenizer.id("class") and original[-1] == tokenizer.id("separator")
    assert asked > 2000
    assert asked / read == pytest.approx(0.15, abs=0.01)
    assert hidden / asked == pytest.approx(0.8, abs=0.03)
    assert kept / asked == pytest.approx(0.1, abs=0.02)
    assert replaced / asked == pytest.approx(0.1, abs=0.02)


def test_masked_inverts_to_the_text(splits: dict[str, Split]) -> None:
    case = case_of(splits, "bert", "masked")
    separator = tiny.tokenizer("bert").id("separator")
    plan = case.objective.plan(case.split, 0, 0)
    for row, example in zip(plan[:20], case.examples(20), strict=True):
        original = reconstruct.from_at(example.ids, example.places, example.targets)
        assert original[1:-1].tolist() == case.split.stream(*row.tolist(), separator).tolist()


def test_pairs_invert_to_their_two_texts(splits: dict[str, Split]) -> None:
    case = case_of(splits, "bert", "masked-next-sentence")
    tokenizer, tokens = tiny.tokenizer("bert"), case.split.tokens
    first, separator = tokenizer.id("class"), tokenizer.id("separator")
    labels = set()
    for row, example in zip(case.objective.plan(case.split, 0, 0)[:40], case.examples(40), strict=True):
        a, b = tokens[row[0] : row[1]].tolist(), tokens[row[2] : row[3]].tolist()
        original = reconstruct.from_at(example.ids, example.places, example.targets)
        assert original.tolist() == [first, *a, separator, *b, separator]
        assert example.segments.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert example.label == row[4]
        assert row[4] or row[2] >= row[1], "a true pair goes on behind its first text"
        labels.add(example.label)
    assert labels == {0, 1}


def test_span_corruption_has_the_published_lengths(splits: dict[str, Split]) -> None:
    case = case_of(splits, "t5", "span-corruption", 512)
    assert case.objective.raw_length == 568
    example = case.objective.prepare(case.split, np.array([5, 573]), key(0))
    assert (len(example.ids), len(example.targets)) == (512, 114)


def test_spans_invert_to_the_text(splits: dict[str, Split]) -> None:
    case = case_of(splits, "t5", "span-corruption")
    end = tiny.tokenizer("t5").id("end")
    for row, example in zip(case.objective.plan(case.split, 0, 0)[:20], case.examples(20), strict=True):
        assert example.ids[-1] == example.targets[-1] == end
        original = reconstruct.from_spans(
            example.ids[:-1], example.targets[:-1], tiny.tokenizer("t5").sentinels
        )
        assert original.tolist() == case.split.tokens[slice(*row)].tolist()


def test_rolled_spans_lie_anywhere_and_still_fit(splits: dict[str, Split]) -> None:
    """One span of a short text is its end, unless it is rolled."""
    tokenizer, split = tiny.tokenizer("t5"), splits["t5"]
    ends = {}
    for roll in (False, True):
        objective = SpanCorruption(tokenizer, 12, SpanOptions(random_roll=roll))
        row, ends[roll] = np.array([3, 3 + objective.raw_length]), set()
        for seed in range(200):
            example = objective.prepare(split, row, key(seed))
            assert len(example.ids) <= 12 and len(example.targets) <= raw_length_for(12 - roll)[1] + roll
            original = reconstruct.from_spans(example.ids[:-1], example.targets[:-1], tokenizer.sentinels)
            assert original.tolist() == split.tokens[slice(*row)].tolist()
            ends[roll].add(int(example.ids[-2]) in tokenizer.sentinels)
    assert ends == {False: {True}, True: {True, False}}
    assert SpanCorruption(tokenizer, 512, SpanOptions(random_roll=True)).raw_length < 568


def test_decoder_reads_the_target_shifted_right(splits: dict[str, Split]) -> None:
    case = case_of(splits, "t5", "span-corruption")
    prepared = case.objective.collate(case.examples(7))
    inputs = prepared.inputs(tiny.model("t5", case.objective))
    lengths = list(inputs.layout.lengths)
    rows = zip(inputs.ids.split(lengths), prepared.targets.split(lengths), strict=True)
    for shown, target in rows:
        assert shown.tolist() == [tiny.tokenizer("t5").id("pad"), *target[:-1].tolist()]


# ------------------------------------------------------------ losses


def rectangle(rows: list[np.ndarray], fill: int) -> Tensor:
    padded = torch.full((len(rows), max(map(len, rows))), fill)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.from_numpy(np.asarray(row, np.int64))
    return padded


def plainly(case: Case, model: Any, examples: list[Any]) -> dict[str, tuple[Tensor, int]]:
    """Sums and counts of the losses, on padded rectangles with all the logits."""
    ids = rectangle([example.ids for example in examples], 0)
    mask = rectangle([np.ones(len(example.ids)) for example in examples], 0).bool()
    head = model.heads["vocabulary"]
    if case.family == "t5":
        targets = rectangle([example.targets for example in examples], -100)
        shifted = torch.cat([torch.zeros(len(targets), 1, dtype=torch.long), targets[:, :-1]], 1).clamp_min(0)
        memory = model.encode(Batch.of_rectangle(ids, mask))
        hidden, _ = model.decode(Batch.of_rectangle(shifted), memory)
    else:
        segments = None
        if case.family == "bert":
            segments = rectangle([example.segments for example in examples], 0)
        batch = Batch.of_rectangle(ids, mask, segments_RT=segments)
        hidden, _ = model.hidden(batch)
        targets = torch.full_like(ids, -100)
        for number, example in enumerate(examples):
            places = np.arange(len(example.ids)) if case.family == "gpt2" else example.places
            targets[number, places] = torch.from_numpy(example.targets)
    total = F.cross_entropy(head.logits(hidden), targets.flatten(), ignore_index=-100, reduction="sum")
    first = {"gpt2": "loss", "bert": "masked", "t5": "spans"}[case.family]
    losses = {first: (total, int((targets != -100).sum()))}
    if case.objective.name == "masked-next-sentence":
        pooled = torch.tanh(model.heads["pooler"].dense(hidden.view(*ids.shape, -1)[:, 0]))
        labels = torch.tensor([example.label for example in examples])
        logits = model.heads["next_sentence"].linear(pooled)
        losses["next_sentence"] = (F.cross_entropy(logits, labels, reduction="sum"), len(examples))
    return losses


def test_loss_and_gradients_equal_the_plain_computation(case: Case) -> None:
    # The shortest and the longest samples: rows of one slice have different lengths.
    examples = sorted(case.examples(1000), key=lambda example: len(example.ids))
    examples = [*examples[-4:], *examples[:3]]
    assert len({len(example.ids) for example in examples}) > 1
    model = tiny.model(case.family, case.objective)
    expected = plainly(case, model, examples)
    sum(total / count for total, count in expected.values()).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    prepared = case.objective.collate(examples)
    terms = TrainingUnit(model, case.objective)(prepared)
    weighted_loss(terms, prepared.counts).backward()
    assert {name for name, term in terms.items() if term.weight} == set(expected)
    for name, (total, count) in expected.items():
        assert prepared.counts[name] == count
        torch.testing.assert_close(terms[name].sum, total, rtol=1e-5, atol=1e-5)
    assert set(terms) <= set(prepared.counts)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=name)


def test_accuracies_count_right_answers(splits: dict[str, Split]) -> None:
    case = case_of(splits, "bert", "masked-next-sentence")
    model = tiny.model("bert", case.objective).eval()
    examples = case.examples(12)
    prepared = case.objective.collate(examples)
    with torch.no_grad():
        terms = TrainingUnit(model, case.objective)(prepared)
        hidden, _ = model.hidden(prepared.batch)
        predicted = model.heads["vocabulary"].logits(hidden, prepared.at).argmax(-1)
        followed = model.read("next_sentence", hidden, prepared.batch).argmax(-1)
    assert terms["masked_accuracy"].sum == (predicted == prepared.targets).sum()
    assert terms["next_sentence_accuracy"].sum == (followed == prepared.labels).sum()
    assert terms["masked_accuracy"].weight == terms["next_sentence_accuracy"].weight == 0
    assert "masked_accuracy" not in TrainingUnit(model, case.objective).train()(prepared)


def test_every_term_has_its_own_denominator() -> None:
    one, two = torch.tensor(6.0, requires_grad=True), torch.tensor(10.0, requires_grad=True)
    terms = {
        "one": Term(one),
        "two": Term(two, 2.0),
        "seen": Term(torch.tensor(4), 0.0),
    }
    loss = weighted_loss(terms, {"one": 12, "two": 40, "seen": 8, "unused": 1})
    assert loss.item() == 6 / 12 + 2 * 10 / 40
    loss.backward()
    assert (one.grad.item(), two.grad.item()) == (pytest.approx(1 / 12), pytest.approx(2 / 40))


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "family, name, reason",
    [
        ("gpt2", "masked", "bidirectional"),
        ("bert", "causal", "causal"),
        ("bert", "span-corruption", "encoder-decoder"),
        ("t5", "masked", "bidirectional"),
    ],
)
def test_misfit_is_refused_without_a_tokenizer(family: str, name: str, reason: str) -> None:
    with pytest.raises(EtymonError, match=f"{name}.*{reason}.*use its own objective"):
        check_fit(objective_class(name), get_family(family))
    for family, name in tiny.CASES:
        check_fit(objective_class(name), get_family(family))


def test_unknown_objective_and_unfit_tokenizer() -> None:
    with pytest.raises(EtymonError, match="did you mean 'causal'"):
        objective_class("casual")
    with pytest.raises(EtymonError, match="'mask' token"):
        get_objective("masked", tiny.tokenizer("gpt2"), 24)
    with pytest.raises(EtymonError, match=r"107 corrupted spans.*100 sentinels"):
        get_objective("span-corruption", tiny.tokenizer("t5"), 1920)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"maskin": "bert"},
            "unknown key 'maskin' in the options of the objective 'masked': did you mean 'masking'",
        ),
        ({"masking": "n-gram"}, 'masking is "n-gram", did you mean .ngram.'),
        ({"masking": 3}, "masking is 3, expected a valid string"),
        ({"packing": "full-sentence"}, "expected .*'full-sentences'"),
        ({"density": "high"}, "density is .high., expected a valid number"),
        ({"density": 15}, "density is 15, expected at most 1"),
        ({"copies": True}, "copies is true, expected a valid integer"),
        ({"copies": -1}, "copies is -1, expected at least 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(EtymonError, match=reason):
        read_options("masked", options)
    with pytest.raises(EtymonError, match=reason):
        get_objective("masked", tiny.tokenizer("bert"), 24, **options)


def test_options_may_be_whole_numbers_for_numbers() -> None:
    options = read_options("masked", {"density": 1, "masking": "rare", "packing": "segments", "copies": 3})
    assert (options.density, options.masking, options.packing, options.copies) == (1, "rare", "segments", 3)


def test_the_normaliser_is_kept_small_in_training_alone(splits: dict[str, Split]) -> None:
    """GPT-J's z-loss: 1e-4 log² of the normaliser for every target, in its published recipe."""
    assert get_family("gptj").recipe.options == {"z_loss": 1e-4}
    case = case_of(splits, "gptj", "causal")
    model = tiny.model("gptj", case.objective)
    prepared = case.objective.collate(case.examples(3))
    hidden, _ = model.hidden(prepared.batch)
    log_z = model.heads["vocabulary"].logits(hidden).logsumexp(-1)  # type: ignore[operator]
    case.objective.z_loss = 0.5
    unit = TrainingUnit(model, case.objective)
    plain = unit.eval()(prepared)["loss"].sum
    torch.testing.assert_close(unit.train()(prepared)["loss"].sum, plain + 0.5 * log_z.square().sum())
