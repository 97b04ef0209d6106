"""Texts that are written side by side are those that each prompt gets by itself."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import decode
from etymon.generation.likelihood import score_texts
from etymon.server import decoder as module
from etymon.server.decoder import Decoder
from etymon.server.jobs import CancelledError, DeadlineError, NewToken, TextJob
from etymon.settings.decoding import DecodingSettings
from tests import tiny
from tests.generation.conftest import remembering, tiny_model

MODELS: dict[str, Any] = {
    **{
        name: lambda name=name: tiny_model(name, positions=200)
        for name in ("gpt1", "gpt2", "gpt3", "gptj", "bart")
    },
    **{name: lambda name=name: tiny_model(name) for name in ("t5", "rnn", "transformer", "transformer-xl")},
    "xlnet": lambda: tiny.model("xlnet", frozenset({"vocabulary"})).eval(),
    "short memory": lambda: remembering(8),
    "pointer": lambda: tiny_model("gpt2", positions=200, pointer=8),
    "prefix": lambda: reading_prefixes(),
}
WAYS: list[dict[str, Any]] = [
    {},
    {"sample": True, "temperature": 0.8, "returns": 2},
    {"sample": True, "top_k": 5, "top_p": 0.9},
    {"repetition_penalty": 1.3, "no_repeat_ngram": 3},
    {"min_new_tokens": 1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
]


def reading_prefixes() -> Model:
    model = tiny_model("gpt2", positions=200)
    model.reads_prefix = True
    return model


def some_jobs(model: Model, count: int = 20) -> list[TextJob]:
    """Prompts of many lengths, some of which begin alike, each with settings of its own."""
    draw = random.Random(0)
    beginning = [draw.randrange(5, 60) for _ in range(70)]
    jobs = []
    for number in range(count):
        prompt = [draw.randrange(5, 60) for _ in range(draw.randint(1, 20))]
        if number % 4 == 0:
            prompt = beginning + prompt[:3]
        limit = draw.randint(1, 9)
        settings = DecodingSettings(
            max_new_tokens=limit, log_probs=True, seed=number, **WAYS[number % len(WAYS)]
        )
        jobs.append(TextJob(prompt, settings, limit, key=number % 3, top=2))
    return jobs


def run_staggered(decoder: Decoder, jobs: list[TextJob]) -> None:
    """A few come at every step, so that rows join and leave all the time."""
    draw, waiting = random.Random(1), list(jobs)
    while waiting or decoder.has_work:
        for _ in range(draw.randint(0, 3)):
            if waiting:
                decoder.waiting.append(waiting.pop(0))
        decoder.tick()


def assert_equal_to_alone(model: Model, jobs: list[TextJob]) -> None:
    for job in jobs:
        (alone,) = decode(model, [job.prompt], job.settings, keys=[job.key])
        together = job.future.result(0).sequences
        assert [text.ids for text in together] == [text.ids for text in alone]
        for ours, theirs in zip(together, alone, strict=True):
            assert ours.token_log_probs == pytest.approx(theirs.token_log_probs, abs=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_texts_are_those_that_each_prompt_gets_alone(name: str) -> None:
    model = MODELS[name]()
    decoder, jobs = Decoder(model, 8, 1e9), some_jobs(model)
    run_staggered(decoder, jobs)
    assert_equal_to_alone(model, jobs)
    assert decoder.rows == 0 and not decoder.writing


def test_long_prompts_are_read_in_parts_between_the_steps_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 16)
    model = tiny_model("gpt2", positions=200)
    decoder, jobs = Decoder(model, 8, 1e9), some_jobs(model)
    tokens: list[NewToken] = []
    first = TextJob([7] * 5, DecodingSettings(max_new_tokens=40), 40, on_token=tokens.append)
    long = TextJob(list(range(5, 60)) * 2, DecodingSettings(max_new_tokens=3), 3)
    decoder.waiting.append(first)
    decoder.tick()
    decoder.waiting.append(long)
    before = len(tokens)
    for _ in range(6):  # 110 tokens in parts of 16
        decoder.tick()
        assert not long.first_token
    assert len(tokens) == before + 6
    run_staggered(decoder, jobs)
    assert_equal_to_alone(model, [*jobs, first, long])


def test_prompts_that_begin_alike_are_read_once() -> None:
    model = tiny_model("gpt2", positions=200)
    decoder = Decoder(model, 8, 1e9)
    beginning, settings = list(range(5, 85)), DecodingSettings(max_new_tokens=3)
    jobs = [TextJob([*beginning, number], settings, 3) for number in range(20, 24)]
    run_staggered(decoder, jobs[:1])
    assert decoder.shared_tokens == 0
    run_staggered(decoder, jobs[1:])
    assert decoder.shared_tokens == 3 * len(beginning)
    assert_equal_to_alone(model, jobs)
    # What is kept has an end: the oldest goes.
    decoder.prefixes.room = 200
    for number in range(6):
        run_staggered(decoder, [TextJob([30 + number] * 90, settings, 3)])
    assert decoder.prefixes.tokens <= 200 and len(decoder.prefixes.kept) == 2


def test_states_that_cannot_join_are_written_side_by_side() -> None:
    model = remembering(8)
    decoder, settings = Decoder(model, 8, 1e9), DecodingSettings(max_new_tokens=200)
    old = TextJob([5, 6], settings, 200)
    decoder.waiting.append(old)
    for _ in range(160):  # it has dropped what is out of reach by now
        decoder.tick()
    jobs = some_jobs(model)
    run_staggered(decoder, jobs)
    assert_equal_to_alone(model, [old, *jobs])


def test_a_prompts_log_probabilities_are_those_of_score() -> None:
    model = tiny_model("gpt2", positions=200)
    assert model.tokenizer is not None
    texts = ["The cat sat on the mat.", "Paris is the capital of France, and Rome of Italy."]
    decoder = Decoder(model, 8, 1e9)
    start = model.token("end")
    jobs = [
        TextJob(
            [start, *model.tokenizer.encode(text).tolist()], DecodingSettings(), 1, top=3, scores_prompt=True
        )
        for text in texts
    ]
    run_staggered(decoder, jobs)
    for job, score in zip(jobs, score_texts(model, texts), strict=True):
        first, *rest = job.future.result(0).prompt_scores
        assert first.log_prob is None
        assert [each.log_prob for each in rest] == pytest.approx(score.log_probs, abs=1e-4)
        assert all(each.top[0][1] == max(value for _, value in each.top) for each in rest)


def test_a_job_that_is_cancelled_leaves_before_the_next_step() -> None:
    model = tiny_model("gpt2", positions=200)
    decoder, settings = Decoder(model, 8, 1e9), DecodingSettings(max_new_tokens=50)
    jobs = [TextJob([number], settings, 50) for number in range(5, 9)]
    decoder.waiting.extend(jobs)
    decoder.tick()
    assert decoder.rows == 4
    jobs[1].cancel()
    waiting = TextJob([4], settings, 50)
    waiting.cancel()
    decoder.waiting.append(waiting)
    decoder.tick()
    assert decoder.rows == 3 and not decoder.waiting
    for job in (jobs[1], waiting):
        with pytest.raises(CancelledError):
            job.future.result(0)
    run_staggered(decoder, [])
    assert_equal_to_alone(model, [jobs[0], *jobs[2:]])


def test_a_job_whose_time_is_up_is_told_so() -> None:
    model = tiny_model("gpt2", positions=200)
    decoder, settings = Decoder(model, 8, 1e9), DecodingSettings(max_new_tokens=50)
    job = TextJob([5], settings, 50, deadline=time.monotonic() - 1)
    other = TextJob([6], settings, 50)
    run_staggered(decoder, [job, other])
    with pytest.raises(DeadlineError):
        job.future.result(0)
    assert_equal_to_alone(model, [other])


def test_rows_and_memory_have_limits() -> None:
    model = tiny_model("gpt2", positions=200)
    settings = DecodingSettings(max_new_tokens=20)
    cell = Decoder(model, 1, 1e9).cell_bytes
    assert cell == 2 * 2 * 24 * 4  # keys and values of two layers of 24 numbers
    decoder = Decoder(model, 8, 3.5 * module.ROUND * cell)  # three rows of 64 cells
    jobs = [TextJob([number], settings, 20) for number in range(5, 15)]
    decoder.waiting.extend(jobs)
    most = 0
    while decoder.has_work:
        decoder.tick()
        most = max(most, decoder.rows)
        arrays = [
            cache.arrays[0] for writing in decoder.writing for cache in writing.stepper.state.self_caches[:1]
        ]
        assert all(len(array) * array.shape[2] <= 3.5 * module.ROUND for array in arrays)
    assert most == 3
    assert_equal_to_alone(model, jobs)
    with pytest.raises(EtymonError, match="do not fit into the memory of this server"):
        decoder.require_room(TextJob([5], settings, 250))


def test_streamed_pieces_add_up_to_the_text_and_stop_before_stop_strings() -> None:
    model = tiny_model("gpt2", positions=200)
    assert model.tokenizer is not None
    draw = DecodingSettings(max_new_tokens=60, sample=True, temperature=2.0, seed=5)
    pieces: list[NewToken] = []
    job = TextJob([5, 6, 7], draw, 60, on_token=pieces.append)
    run_staggered(Decoder(model, 8, 1e9), [job])
    text = "".join(token.piece for token in pieces)
    assert text == model.tokenizer.decode(job.future.result(0).sequences[0].ids, whole=True)
    assert len(pieces) == 60 and pieces[-1].reason == "length"
    stop = text[20:23]
    pieces.clear()
    stopping = DecodingSettings(max_new_tokens=60, sample=True, temperature=2.0, seed=5, stop=(stop,))
    run_staggered(Decoder(model, 8, 1e9), [TextJob([5, 6, 7], stopping, 60, on_token=pieces.append)])
    assert "".join(token.piece for token in pieces) == text[: text.index(stop)]
    assert pieces[-1].reason == "stop"


def test_a_mistake_ends_the_texts_and_not_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", positions=200)
    decoder, settings = Decoder(model, 8, 1e9), DecodingSettings(max_new_tokens=5)
    job = TextJob([5], settings, 5)
    decoder.waiting.append(job)
    decoder.tick()
    decoder.fail(MemoryError())
    with pytest.raises(MemoryError):
        job.future.result(0)
    other = TextJob([6], settings, 5)
    run_staggered(decoder, [other])
    assert_equal_to_alone(model, [other])


def test_rows_that_leave_move_few_others() -> None:
    writing = module.RowBatch(_Recorded(), [0, 1, 2, 3, 4, 5])  # type: ignore[arg-type, list-item]
    writing.leave({1, 4})
    assert writing.rows == [0, 5, 2, 3]
    assert writing.stepper.selected == [0, 5, 2, 3]  # type: ignore[attr-defined]


class _Recorded:
    class model:
        device = torch.device("cpu")

    def select(self, rows: torch.Tensor) -> None:
        self.selected = rows.tolist()


def test_an_error_before_the_first_token_reaches_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", positions=200)
    decoder, settings = Decoder(model, 8, 1e9), DecodingSettings(max_new_tokens=5)
    jobs = [TextJob([number], settings, 5) for number in (5, 6)]
    decoder.waiting.extend(jobs)
    with monkeypatch.context() as patch:

        def no_memory(*_: object) -> None:
            raise MemoryError

        patch.setattr(model, "start", no_memory)
        with pytest.raises(MemoryError):
            decoder.tick()
        decoder.fail(MemoryError())
    for job in jobs:
        with pytest.raises(MemoryError):
            job.future.result(0)
    assert decoder.rows == 0 and not decoder.has_work
    other = TextJob([7], settings, 5)
    run_staggered(decoder, [other])
    assert_equal_to_alone(model, [other])
