"""Question answering: the published losses, windows that hold every token, and answers that are the context's own characters."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.saving import save
from etymon.nn.batch import Layout
from etymon.objectives.objective import weighted_loss
from etymon.sampling.plans import key
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task, task_of
from etymon.tasks.answer import AnswerOptions, AnswerPrediction, AnswerQuestion
from etymon.tasks.answer_spans import ContextTokens, best_spans, row_log_softmax
from etymon.tasks.head_task import HeadOptions
from etymon.tasks.scores import answer_scores, normalise
from etymon.text.tokenizer_training import train_tokenizer
from etymon.training.unit import TrainingUnit
from tests import tiny
from tests.oracle.runner import gradients

LONG = "The river crossed the bridge. The captain opened the window. The winter followed the village. The letter wanted it."
ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "Who opened the window?", "context": LONG, "answers": {"text": ["The captain"], "answer_start": [30]}},
    {"id": "b", "question": "What painted the garden?", "context": LONG, "answers": {"text": [], "answer_start": []}},
    {"id": "c", "question": "Who carried it?", "context": "The winter carried it.", "answers": "The winter"},
    {"id": "d", "question": "What did it want?", "context": LONG, "answers": [{"text": "it", "answer_start": 112}]},
]  # fmt: skip
TABLE = read_table(ROWS)
STRANGE = "Le caf\u0301e\u0301 n'était\r\npas là.\t東京  é👩\u200d🚀 river\u00a0crossed \ud800 the the. Ende"


def bound(family: str, length: int = 32, **options: Any) -> tuple[Any, Any]:
    known = get_family(family)
    task: Any = get_task("answer", {"stride": 8, "question_length": 8, **options}, known)
    model = tiny.model(family, task.fit(known).heads).eval()
    task.bind(model, length)
    return task, model


def whole(task: AnswerQuestion, table: Table) -> Any:
    """All windows of a table in one batch."""
    examples = task.encode(table, learn=True)
    return task.collate([task.prepare(examples, np.arange(len(examples)), key(0))])


def as_rectangle(prepared: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, segments and mask, as the reference takes them."""
    batch = prepared.batch
    layout, real = batch.layout, batch.layout.real
    segments = torch.zeros_like(batch.ids) if batch.segments is None else batch.segments
    return layout.pad(batch.ids) * real, layout.pad(segments) * real, real.long()


# ------------------------------------------------------------ the published losses


def same_as_reference(model: Any, found: Tensor, reference: Any, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    found.backward()
    expected.backward()
    ours, theirs = gradients(model), dict(reference.named_parameters())
    seen = 0
    for name, parameter in theirs.items():
        if parameter.grad is not None and name in ours:
            torch.testing.assert_close(ours[name], parameter.grad, atol=2e-5, rtol=1e-4, msg=name)
            seen += bool(parameter.grad.abs().max() > 0)
    assert seen > 20


def test_bert_has_the_loss_and_the_gradients_of_transformers(tmp_path: Path) -> None:
    from transformers import BertForQuestionAnswering

    task, model = bound("bert")
    prepared = whole(task, TABLE)
    assert prepared.batch.layout.rows > len(TABLE) and prepared.counts["loss"] == prepared.batch.layout.rows
    assert 0 < int((prepared.targets[:, 0] == 0).sum()) < len(prepared.targets)
    save(model, tmp_path)
    reference = BertForQuestionAnswering.from_pretrained(tmp_path).eval()
    ids, segments, mask = as_rectangle(prepared)
    start, end = prepared.targets.unbind(1)
    # Padding is left out of our softmax, and every cell is in that of the reference: row by row, there is none.
    losses = [
        reference(
            input_ids=ids[[row], :length], token_type_ids=segments[[row], :length], attention_mask=mask[[row], :length],
            start_positions=start[[row]], end_positions=end[[row]],
        ).loss
        for row, length in enumerate(prepared.batch.layout.lengths)
    ]  # fmt: skip
    found = weighted_loss(task.loss(TrainingUnit(model, task), prepared), prepared.counts)
    same_as_reference(model, found, reference, torch.stack(losses).mean())


@pytest.mark.parametrize("unanswerable", [True, False])
def test_xlnet_has_the_loss_and_the_gradients_of_transformers(tmp_path: Path, unanswerable: bool) -> None:
    from transformers import XLNetForQuestionAnswering

    task, model = bound("xlnet")
    assert set(model.heads) == {"conditional_span"}
    prepared = whole(task, TABLE if unanswerable else TABLE.at([0, 2, 3]))
    assert task.unanswerable == unanswerable
    save(model, tmp_path)
    reference = XLNetForQuestionAnswering.from_pretrained(tmp_path).eval()
    ids, segments, mask = as_rectangle(prepared)
    start, end = prepared.targets.unbind(1)
    last = mask.sum(1) - 1
    hidden = torch.ones_like(ids)
    for row, (one, first) in enumerate(zip(prepared.batch.layout.pad(task.in_context(prepared)), last)):
        hidden[row, : first + 1] = (~one[: first + 1]).long()
        hidden[row, first] = 0
    given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask.float()}
    expected = reference(start_positions=start, end_positions=end, p_mask=hidden.float(), **given).loss
    if unanswerable:
        # Transformers tells its classifier where the right answer begins, which in use nobody does: the published code does
        # not, and takes the mean of all states by how likely an answer begins there.
        states = reference.transformer(**given).last_hidden_state
        shares = reference.start_logits(states, p_mask=hidden.float()).softmax(-1)
        begins = (shares[..., None] * states).sum(1)
        none = reference.answer_class(states, start_states=begins, cls_index=last)
        expected = expected + F.binary_cross_entropy_with_logits(none, (start == last).float()) / 2
    found = weighted_loss(task.loss(TrainingUnit(model, task), prepared), prepared.counts)
    same_as_reference(model, found, reference, expected)


@torch.no_grad()
def test_xlnet_is_not_told_whether_there_is_an_answer() -> None:
    task, model = bound("xlnet", unanswerable=True)
    prepared = whole(task, TABLE)
    said = task.head_logits(model, prepared)[:, 2]
    other = replace(prepared, targets=prepared.targets.roll(1, 0).clamp(max=2))
    assert not torch.equal(other.targets, prepared.targets)
    torch.testing.assert_close(task.head_logits(model, other)[:, 2], said)


def test_xlnet_reads_the_context_before_the_question() -> None:
    """As it was published: in its pretraining, the second text was never the longer one."""
    task, model = bound("xlnet", length=64, question_length=32)
    row = read_table([{"question": "Who slept?", "context": "The cat slept.", "answers": ["cat"]}])
    ((window,), (tokens,)) = task.windows(row)
    asked = model.tokenizer.encode("Who slept?")
    assert (window.at, window.count) == (0, len(tokens.ids))
    assert window.framed.ids[: window.count].tolist() == tokens.ids.tolist()
    assert window.framed.ids[window.count + 1 :][: len(asked)].tolist() == list(asked)
    assert window.framed.segments.tolist() == [0] * (window.count + 1) + [1] * (len(asked) + 1) + [2]


@torch.no_grad()
def test_xlnet_finds_what_transformers_finds(tmp_path: Path) -> None:
    from transformers import XLNetForQuestionAnswering

    task, model = bound("xlnet", length=64, unanswerable=True, longest=60)
    save(model, tmp_path)
    reference = XLNetForQuestionAnswering.from_pretrained(tmp_path).eval()
    row = TABLE.at([2])
    prepared = whole(task, row)
    ids, segments, _ = as_rectangle(prepared)
    hidden = ~task.in_context(prepared)[None]
    hidden[0, -1] = False
    last = torch.tensor([ids.shape[1] - 1])
    theirs = reference(input_ids=ids, token_type_ids=segments, cls_index=last, p_mask=hidden.float())
    # The reference calls probabilities logarithms; ends lie in the order of ends, then of beginnings.
    scores = theirs.start_top_log_probs.log()[:, None] + theirs.end_top_log_probs.view(1, 5, 5).log()
    starts = theirs.start_top_index[:, None].expand(1, 5, 5).flatten().tolist()
    spans = sorted(
        (
            (score, first, end)
            for score, first, end in zip(
                scores.flatten().tolist(), starts, theirs.end_top_index.flatten().tolist()
            )
            if first <= end < ids.shape[1] - 1 and first < ids.shape[1] - 1
        ),
        reverse=True,
    )
    ((found, none),) = task.answer_batch(model, prepared)
    assert none == pytest.approx(float(theirs.cls_logits), abs=1e-5)
    assert [one[1:] for one in sorted(found, reverse=True)] == [one[1:] for one in spans] != []
    np.testing.assert_allclose(sorted(one[0] for one in found), sorted(one[0] for one in spans), atol=1e-5)


def test_a_softmax_of_flat_rows_is_that_of_padded_ones() -> None:
    lengths = (3, 1, 7, 4)
    scores = (3 * torch.randn(sum(lengths), 2, generator=torch.Generator().manual_seed(0))).requires_grad_()
    targets = torch.tensor([[0, 2], [0, 0], [6, 3], [1, 1]])
    layout = Layout(lengths)
    flat = -row_log_softmax(scores, layout).gather(0, layout.first[:, None] + targets).sum()
    (ours,) = torch.autograd.grad(flat, scores)
    padded = layout.pad(scores).masked_fill(~layout.real[..., None], -torch.inf)
    padded = sum(F.cross_entropy(padded[..., side], targets[:, side], reduction="sum") for side in range(2))
    (theirs,) = torch.autograd.grad(padded, scores)  # type: ignore[arg-type]
    torch.testing.assert_close(flat, padded, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


# ------------------------------------------------------------ windows


@pytest.mark.parametrize("family", ["bert", "roberta", "xlnet", "gpt2", "gpt1", "bart", "elmo", "rnn"])
def test_windows_hold_every_token_and_answers_are_found_wherever_they_stand(family: str) -> None:
    task, _ = bound(family, length=24)
    context = " ".join(tiny.texts(3, seed=3))
    rows = [{"question": "Who crossed the river and the bridge?", "context": context, "answers": []}]
    table = read_table(rows)
    parts, (tokens,) = task.windows(table)
    examples = task.encode_texts(table)
    assert len(parts) == len(examples) > 3
    covered: set[int] = set()
    for part in parts:
        assert len(part.framed.ids) <= 24
        assert (
            part.framed.ids[part.at : part.at + part.count].tolist()
            == tokens.ids[part.first :][: part.count].tolist()
        )
        covered |= set(range(part.first, part.first + part.count))
    assert covered == set(range(len(tokens.ids)))
    assert all(1 <= two.first - one.first <= 8 for one, two in pairwise(parts))
    for first in range(0, len(tokens.ids), 5):
        last = min(first + 2, len(tokens.ids) - 1)
        holding = [part for part in parts if part.target((first, last), -1) != (-1, -1)]
        assert holding, "an answer that is shorter than the windows' overlap is whole in one"
        found = []
        for number, part in enumerate(parts):
            prepared = task.collate([[examples.example(number)]])
            scores = torch.full(
                (len(part.framed.ids), 2), 99.0
            )  # neither a question nor a mark can be an answer
            scores[part.at : part.at + part.count] = 0.0
            if any(part is one for one in holding):
                scores[part.target((first, last), -1), torch.arange(2)] += 10.0
            ((spans, _),) = task.answers(scores, prepared)
            found += [
                (score, *(place - part.at + part.first for place in places)) for score, *places in spans
            ]
        answer = task._best(context, tokens, found, 0.0)
        start, stop = tokens.characters(context, first, last)
        assert (answer.start, answer.stop) == (start, stop) and answer.text == context[start:stop] != ""
        assert answer.score == 20.0


def test_targets_are_the_answer_where_all_of_it_stands_and_nothing_elsewhere() -> None:
    for family in ("bert", "xlnet", "gpt2"):
        task, _ = bound(family)
        examples, (parts, tokens) = task.encode(TABLE), task.windows(TABLE)
        said: dict[int, set[str]] = {0: set(), 1: set(), 2: set(), 3: set()}
        for part, (first, last) in zip(parts, examples.columns["target"][:, 0].tolist(), strict=True):
            nothing = len(part.framed.ids) - 1 if family == "xlnet" else 0
            if first == last == nothing:
                continue
            assert part.at <= first <= last < part.at + part.count
            places = (place - part.at + part.first for place in (first, last))
            context = str(TABLE.rows[part.number]["context"])
            said[part.number].add(context[slice(*tokens[part.number].characters(context, *places))])
        assert said == {0: {"The captain"}, 1: set(), 2: {"The winter"}, 3: {"it"}}


def test_long_questions_are_cut_and_told() -> None:
    task, _ = bound("bert", length=24, question_length=4)
    told: list[str] = []
    task.encode(TABLE, told.append)
    assert told[0] == "4 of 4 questions are longer than 4 tokens and are cut (question_length)"
    assert told[1].startswith("3 of 4 contexts do not fit into 24 tokens and are read in parts: ")
    task.bind(tiny.model("bert", frozenset({"span"})), 4)
    with pytest.raises(
        EtymonError, match="4 tokens have no room for a question and a context: raise --length"
    ):
        task.encode(TABLE)


def test_of_all_pairs_the_best_are_found() -> None:
    draw = torch.Generator().manual_seed(1)
    layout = Layout((6, 9, 5))
    scores = torch.randn(20, 2, generator=draw)
    inside = torch.rand(20, generator=draw) < 0.7
    inside[15:] = False
    found = best_spans(scores, inside, layout, longest=4, best=7)
    for row, (start, length) in enumerate(zip((0, 6, 15), layout.lengths)):
        pairs = [
            (float(scores[start + one, 0] + scores[start + two, 1]), one, two)
            for one in range(length)
            for two in range(one, min(length, one + 4))
            if inside[start + one] and inside[start + two]
        ]
        assert found[row] == sorted(pairs, reverse=True)[:7]
    assert found[2] == []


# ------------------------------------------------------------ answers


@pytest.mark.parametrize("family", ["bert", "gpt2", "xlnet", "bart", "t5", "elmo"])
def test_answers_are_characters_of_the_context(family: str) -> None:
    task, model = bound(family, length=24, way="head", best=50, unanswerable=False)
    rows = [{"question": "Who?", "context": text} for text in (STRANGE, "é", LONG, "\u200b\u200d")]
    table = read_table(rows)
    answers = task.predict(model, table)
    for row, answer in zip(rows, answers, strict=True):
        context = row["context"].replace("\ud800", "\ufffd")
        for one in (*answer.best, *([answer] if answer.text else [])):
            assert one.text == context[one.start : one.stop] == one.text.strip() != ""
        places = [(one.start, one.stop) for one in answer.best]
        assert len(places) == len(set(places)) and [one.score for one in answer.best] == sorted(
            (one.score for one in answer.best), reverse=True
        )
    assert answers[1].text == "é" and len(answers[0].best) > 10
    alone = [task.predict(model, table.at([number]))[0] for number in range(len(rows))]
    assert [one.text for one in alone] == [one.text for one in answers]


def test_characters_stay_whole() -> None:
    """Bytes of a byte-level tokenizer are no answer by themselves, and an accent belongs to its letter."""
    gpt2, bert = (
        ContextTokens(*tiny.tokenizer(family).offsets("e\u0301a 東京")) for family in ("gpt2", "bert")
    )
    assert len(gpt2.ids) > 6
    for place in range(len(gpt2.ids)):
        start, stop = gpt2.characters("e\u0301a 東京", place, place)
        assert stop - start in (0, 1, 2)
    last = len(gpt2.ids) - 1
    assert gpt2.characters("e\u0301a 東京", last, last) == (5, 6)
    assert bert.characters("e\u0301", 0, 0) == (0, 2)
    assert gpt2.of(0, 0) is None


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_no_answer_is_one_if_the_training_table_had_such(family: str) -> None:
    task, model = bound(family)
    task.encode(TABLE.at([0, 2]), learn=True)
    assert not task.unanswerable and all(
        one.text and one.null_score is None for one in task.predict(model, TABLE)
    )
    task.encode(TABLE, learn=True)
    assert task.unanswerable and task.limits["unanswerable"] == 1
    model.history = [{"task": json.loads(json.dumps(task.describe()))}]
    score = task.predict(model, TABLE)[0].null_score
    for threshold, empty in ((score - 0.01, True), (score + 0.01, False)):
        again: Any = task_of(model, {"null_threshold": threshold})
        answer = again.predict(model, TABLE)[0]
        assert (
            (answer.text == "") == (answer.start is None) == empty
            and answer.best
            and answer.null_score == score
        )
        assert again.record(answer)["prediction"] == answer.text and json.dumps(again.record(answer))
        assert ("no answer" in again.format_row(TABLE, 0, answer)) == empty
    told = bound(family, unanswerable=True)[0]
    assert told.unanswerable


def test_no_answer_has_the_smallest_score_of_all_windows() -> None:
    task, _ = bound("bert", unanswerable=True)
    parts, (tokens,) = task.windows(TABLE.at([0]))
    examples = task.encode_texts(TABLE.at([0]))
    worst = []
    for number in range(len(parts)):
        scores = torch.zeros(len(parts[number].framed.ids), 2)
        scores[0] = number + 1.0
        ((_, none),) = task.answers(scores, task.collate([[examples.example(number)]]))
        worst.append(none)
    assert worst == [2.0 * (number + 1) for number in range(len(parts))]
    answer = task._best(LONG, tokens, [(0.5, 3, 4), (1.5, 3, 3)], min(worst))
    assert answer.text == "" and answer.null_score == 0.5
    shifted = AnswerQuestion(replace(task.options, null_threshold=0.5))
    shifted.bind(tiny.model("bert", frozenset({"span"})), 32)
    assert shifted._best(LONG, tokens, [(1.5, 3, 3)], min(worst)).text == "the"


@pytest.mark.parametrize("family", ["bert", "gpt2", "bart", "xlnet", "t5"])
def test_it_is_learnt(family: str) -> None:
    torch.manual_seed(0)
    task, model = bound(family, length=128)
    rows = read_table(ROWS if family in ("bert", "xlnet") else [ROWS[0], ROWS[2]])
    examples = task.encode(rows, learn=True)
    unit = TrainingUnit(model, task).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for step in range(150):
        prepared = task.collate([task.prepare(examples, np.arange(len(examples)), key(step))])
        loss = weighted_loss(unit(prepared), prepared.counts)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        if losses[-1] < 0.02:
            break
    assert losses[-1] < 0.2 * losses[0]
    answers = task.predict(model.eval(), rows)
    assert [one.text for one in answers] == [
        text[0][0] if text else "" for text in AnswerQuestion(AnswerOptions()).right_answers(rows)
    ]
    assert task.score(answers, rows, task.default_metrics, 20)["exact"].value == 100.0


def test_two_passes_are_compared_without_a_word_of_what_is_hidden() -> None:
    task, model = bound("xlnet", r_drop=1.0)
    prepared = whole(task, TABLE)
    states = model.states(prepared.batch)
    passes = iter([task.head_logits(model, prepared, states * scale) for scale in (1.0, 1.1)])
    task.head_logits = lambda *inputs: next(passes)
    divergence = task.loss(SimpleNamespace(model=model.train()), prepared)["r_drop"].sum
    divergence.backward()
    assert float(divergence.detach()) > 0
    assert all(
        parameter.grad is None or bool(parameter.grad.isfinite().all()) for parameter in model.parameters()
    )


def test_characters_are_words_in_writing_without_spaces() -> None:
    found = answer_scores(["北京市", "the 3 rivers"], [["北京"], ["3 rivers of x"]], ["f1", "exact"])
    assert found["f1"].value == pytest.approx((80 + 100 * 2 / 3) / 2) and found["exact"].value == 0


def test_t5_writes_its_answers() -> None:
    task, _ = bound("t5", prefix="squad ")
    found = task.texts(TABLE)
    assert found["source"][2] == "squad question: Who carried it? context: The winter carried it."
    assert found["target"] == ["The captain", "unanswerable", "The winter", "it"]
    assert task.task.parse_texts([" The winter", "unanswerable "]) == [
        AnswerPrediction("The winter"),
        AnswerPrediction(""),
    ]
    told: list[str] = []
    task.encode(TABLE, told.append, learn=True)
    assert any(
        "of 4 rows are longer than 32 tokens, and their longest texts are cut" in note for note in told
    )
    assert task.record(AnswerPrediction("it")) == {"prediction": "it"}


def test_ways_of_xlnet_and_of_others() -> None:
    xlnet, bert = get_family("xlnet"), get_family("bert")
    assert get_task("answer", {}, xlnet).fit(xlnet).heads == {"conditional_span"}
    assert get_task("answer", {"head": "span"}, xlnet).fit(xlnet).heads == {"span"}
    with pytest.raises(
        EtymonError, match="BERT has no head that looks for an end in the light of a beginning"
    ):
        get_task("answer", {"head": "conditional"}, bert).fit(bert)
    with pytest.raises(EtymonError, match="stride"):
        get_task("answer", {"stride": 0}, bert)
    task, _ = bound("bert")
    assert task.columns == ("context", "question", "answers") and task.input_columns == (
        "question",
        "context",
    )
    assert task.texts(TABLE)["text"].count(LONG) == 1
    train, held = TABLE.hold_out(task.columns[0], 0.5, 10)
    assert not set(train.texts("context")) & set(held.texts("context"))


def test_every_option_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks-spans.md").read_text(encoding="utf-8")
    section = page.split("\n## answer\n")[1].split("\n#")[0]
    told = {key: value.strip(" `") for key, value in re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.M)}
    shared = {field.name for field in fields(HeadOptions)}
    own = {name: value for name, value in asdict(AnswerOptions()).items() if name not in shared}
    assert told == {name: "" if value is None else str(value) for name, value in own.items()}


# ------------------------------------------------------------ tables


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answers": "The dog"}, r"row 2 \(id 'b'\): the answer 'The dog' is not in its context"),
        ({"answers": ["river", "dog"]}, r"row 2 .*: the answer 'dog' is not in its context"),
        ({"answers": {"text": ["captain"], "answer_start": [33]}}, r"row 2 .* does not begin at 33, but at 34: correct"),
        ({"answers": {"text": ["The"], "answer_start": [-3]}}, r"row 2 .* does not begin at -3, but at 0"),
        ({"answers": {"text": ["The"], "answer_start": ["0"]}}, r"row 2 .* does not begin at '0', but at 0"),
        ({"answers": {"text": ["it", "it"], "answer_start": [1]}}, r"row 2 .*: column 'answers' holds no answers: give"),
        ({"answers": {"texts": ["it"]}}, r"row 2 .*: column 'answers' holds no answers: give"),
        ({"answers": 3}, r"row 2 .*: column 'answers' holds an answer that is a int; a question without"),
        ({"answers": [" "]}, r"row 2 .*: column 'answers' holds an answer that is empty; a question without"),
        ({"id": "a"}, "row 2: the id 'a' is also that of row 1: give every question its own"),
        ({"question": " "}, "row 2: column 'question' is empty"),
        ({"context": None}, "row 2: column 'context' holds nothing, not a text"),
    ],
)  # fmt: skip
def test_bad_rows_are_refused_in_one_line(change: dict[str, Any], reason: str) -> None:
    table = read_table([ROWS[0], {**ROWS[1], **change}])
    with pytest.raises(EtymonError, match=reason) as error:
        AnswerQuestion(AnswerOptions()).texts(table)
    assert "\n" not in str(error.value)


def test_columns_are_needed_and_ids_are_not() -> None:
    bare = [{name: value for name, value in row.items() if name != "id"} for row in ROWS]
    assert len(AnswerQuestion(AnswerOptions()).targets(read_table(bare))) == 4
    with pytest.raises(EtymonError, match="row 1: no column 'number'"):
        AnswerQuestion(AnswerOptions(id="number")).targets(read_table(bare))
    with pytest.raises(EtymonError, match="row 1: no column 'contexts'; did you mean 'context'"):
        AnswerQuestion(AnswerOptions(context="contexts")).targets(TABLE)
    task, model = bound("bert")
    asked = [{"question": row["question"], "context": row["context"]} for row in ROWS]
    answers = task.predict(model, read_table(asked))
    assert task.format_row(read_table(asked), 0, answers[0]).endswith("(?)")
    # White space around an answer is none of it; several answers may be right.
    spaced = read_table(
        [{"question": "?", "context": "a  b c", "answers": {"text": [" b ", "c"], "answer_start": [2, 5]}}]
    )
    assert task.right_answers(spaced) == [[("b", 3), ("c", 5)]]
    assert task.score([AnswerPrediction("C.")], spaced, ["exact", "f1"])["exact"].value == 100.0


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Rivers",
            "paragraphs": [
                {
                    "context": LONG,
                    "qas": [
                        {"id": "1", "question": "Who?", "answers": [{"text": "The river", "answer_start": 0}], "is_impossible": False},
                        {"id": "2", "question": "Why?", "answers": [], "plausible_answers": [{"text": "it", "answer_start": 112}], "is_impossible": True},
                        {"id": "3", "question": "When?"},
                    ],
                }
            ],
        }
    ],
}  # fmt: skip


def test_a_squad_file_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(SQUAD), encoding="utf-8")
    table = read_table(path)
    assert [sorted(row) for row in table.rows[:2]] == [
        ["answers", "context", "id", "is_impossible", "question", "title"]
    ] * 2
    assert table.places[1] == f"{path}, article 1, paragraph 1, question 2"
    assert AnswerQuestion(AnswerOptions()).right_answers(table.at([0, 1])) == [[("The river", 0)], []]
    with pytest.raises(EtymonError, match=r"question 3: no column 'answers'"):
        AnswerQuestion(AnswerOptions()).texts(table)
    broken = json.loads(json.dumps(SQUAD))
    del broken["data"][0]["paragraphs"][0]["context"]
    path.write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(
        EtymonError, match=r"article 1, paragraph 1, question 1: no 'context', which SQuAD's files"
    ):
        read_table(path)
    broken["data"][0]["paragraphs"] = {"qas": 1}
    path.write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(EtymonError, match=r"article 1: 'paragraphs' is no list of objects"):
        read_table(path)


def test_squad(shared: Path) -> None:
    """Every answer has tokens, which hold all of it; few answers begin or end inside a token."""
    table = read_table(shared / "data" / "squad" / "dev-v1.1.json")
    assert len(table) == 10_570
    task = AnswerQuestion(AnswerOptions())
    contexts, given = task.contexts(table), task.right_answers(table)
    assert sum(map(len, given)) == 34_726
    choice = get_family("bert").tokenizer
    distinct = list(dict.fromkeys(contexts))
    tokenizer = train_tokenizer(
        choice.kind, distinct[:200], 2000, lowercase=choice.lowercase, strip_accents=choice.strip_accents,
        specials=choice.specials,
    )  # fmt: skip
    same = total = 0
    for number in random.Random(0).sample(range(len(table)), 1000):
        context = contexts[number]
        tokens = ContextTokens(*tokenizer.offsets(context))
        for text, start in given[number]:
            span = tokens.of(start, start + len(text))
            assert span is not None
            first, last = tokens.characters(context, *span)
            assert first <= start and start + len(text) <= last
            same, total = same + (normalise(context[first:last]) == normalise(text)), total + 1
    assert same / total > 0.995
