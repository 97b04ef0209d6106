"""OpenAI's protocol, as its own client speaks it; texts are those of `etymon generate`."""

from __future__ import annotations

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

import etymon
from etymon.generation.likelihood import score_texts
from tests.server.conftest import Running, hold_until_cancelled, wait_until

PROMPT = "The cat sat on"
PROMPTS = ["The cat sat on", "Paris is the capital", "日本語", "A dog"]


def greedy(server: Running, prompts: list[str], name: str = "gpt2", **options: Any) -> list[Any]:
    return etymon.generate(server.models[name], prompts, **{"max_new_tokens": 8, **options})


def test_models_are_listed_with_what_they_can_do(server: Running) -> None:
    listed = {model.id: model for model in server.client.models.list()}
    assert set(listed) == {"gpt2", "bert", "t5", "rnn", "classifier", "discriminator"}
    assert "completions" in listed["gpt2"].abilities and "fill" not in listed["gpt2"].abilities  # type: ignore[attr-defined]
    assert listed["discriminator"].abilities[0] == "replaced"  # type: ignore[attr-defined]
    assert server.client.models.retrieve("t5").family == "T5"  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt3': did you mean"):
        server.client.models.retrieve("gpt3")


@pytest.mark.parametrize("name", ["gpt2", "t5", "rnn"])
def test_greedy_texts_are_those_of_generate(server: Running, name: str) -> None:
    answer = server.client.completions.create(model=name, prompt=PROMPTS, max_tokens=8, temperature=0)
    assert [choice.text for choice in answer.choices] == [each.text for each in greedy(server, PROMPTS, name)]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_sampled_texts_are_those_of_generate(server: Running) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.8, "seed": 7}
    penalties: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    answer = server.client.completions.create(
        model="gpt2", prompt=PROMPTS, max_tokens=8, n=2, **options, **penalties, extra_body={"top_k": 20}
    )
    expected = greedy(server, PROMPTS, returns=2, top_k=20, **options, **penalties)
    assert [choice.text for choice in answer.choices] == [each.text for each in expected]
    again = [
        server.client.completions.create(model="gpt2", prompt=PROMPT, max_tokens=8).choices[0].text
        for _ in range(4)
    ]
    assert len(set(again)) > 1  # without a seed, every answer is another one


def test_a_stream_gives_the_same_text_in_whole_characters(server: Running) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.5, "seed": 3, "n": 2}
    whole = server.client.completions.create(model="gpt2", prompt=PROMPTS, **options)
    texts, reasons = [""] * 8, [None] * 8
    usage = None
    for event in server.client.completions.create(
        model="gpt2", prompt=PROMPTS, stream=True, stream_options={"include_usage": True}, **options
    ):
        usage = event.usage or usage
        for choice in event.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]  # type: ignore[call-overload]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage


def test_token_ids_are_prompts_too(server: Running) -> None:
    tokenizer = server.models["gpt2"].tokenizer
    assert tokenizer is not None
    ids = [tokenizer.encode(prompt).tolist() for prompt in PROMPTS]
    options: dict[str, Any] = {"model": "gpt2", "max_tokens": 8, "temperature": 0}
    expected = [each.text for each in greedy(server, PROMPTS)]
    several = server.client.completions.create(prompt=ids, **options)
    assert [choice.text for choice in several.choices] == expected
    assert server.client.completions.create(prompt=ids[0], **options).choices[0].text == expected[0]
    told = server.client.completions.create(prompt=ids[0], extra_body={"return_token_ids": True}, **options)
    assert told.choices[0].token_ids == greedy(server, PROMPTS)[0].ids  # type: ignore[attr-defined]


def test_stop_strings_end_a_text_before_them(server: Running) -> None:
    text = greedy(server, [PROMPT], max_new_tokens=30)[0].text
    stop = text[5:8]
    for is_streamed in (False, True):
        answer: Any = server.client.completions.create(
            model="gpt2",
            prompt=PROMPT,
            max_tokens=30,
            temperature=0,
            stop=[stop, "never"],
            stream=is_streamed,
        )
        events = list(answer) if is_streamed else [answer]
        assert "".join(event.choices[0].text for event in events) == text[: text.index(stop)]
        assert events[-1].choices[0].finish_reason == "stop"


def test_echo_with_log_probabilities_is_what_score_says(server: Running) -> None:
    """As evaluation harnesses ask for likelihoods: the prompt itself, and one more token."""
    model = server.models["gpt2"]
    tokenizer = model.tokenizer
    assert tokenizer is not None
    texts = ["The cat sat on the mat.", "Rome is the capital of Italy."]
    rows = [[model.token("end"), *tokenizer.encode(text).tolist()] for text in texts]
    answer = server.client.completions.create(
        model="gpt2", prompt=rows, max_tokens=1, logprobs=1, echo=True, temperature=0
    )
    for choice, row, text, score in zip(answer.choices, rows, texts, score_texts(model, texts), strict=True):
        told = choice.logprobs
        assert told is not None and told.token_logprobs and told.top_logprobs and told.tokens
        assert len(told.tokens) == len(told.top_logprobs) == len(told.text_offset or []) == len(row) + 1
        assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
        assert told.token_logprobs[1:-1] == pytest.approx(score.log_probs, abs=1e-4)
        for value, top in zip(told.token_logprobs[1:], told.top_logprobs[1:], strict=True):
            assert max(top.values()) >= value and value in top.values()
        # The last token is what greedy decoding would write.
        assert told.token_logprobs[-1] == max(told.top_logprobs[-1].values())
        assert choice.text.startswith(text)


def test_the_prompt_alone_can_be_scored(server: Running) -> None:
    for is_streamed in (False, True):
        answer: Any = server.client.completions.create(
            model="gpt2", prompt=PROMPT, max_tokens=0, logprobs=2, echo=True, stream=is_streamed
        )
        (event,) = [each for each in answer if each.choices] if is_streamed else [answer]
        assert event.choices[0].text == PROMPT
        assert len(event.choices[0].logprobs.tokens) == len(event.choices[0].logprobs.token_logprobs)


def test_offsets_of_tokens_are_places_in_the_text(server: Running) -> None:
    choice = server.client.completions.create(
        model="gpt2", prompt="The naïve cat", max_tokens=12, logprobs=0, echo=True, seed=2
    ).choices[0]
    assert choice.logprobs is not None and choice.logprobs.text_offset and choice.logprobs.tokens
    offsets = choice.logprobs.text_offset
    assert offsets[0] == 0 and offsets == sorted(offsets)
    for token, offset in zip(choice.logprobs.tokens, offsets, strict=True):
        if not token.startswith("bytes:"):
            # Bytes before it that make no character have become one mark.
            assert choice.text[offset:].lstrip("\ufffd").startswith(token)
    alone = server.client.completions.create(
        model="gpt2", prompt="The naïve cat", max_tokens=12, logprobs=0, seed=2
    ).choices[0]
    assert alone.logprobs is not None and alone.logprobs.text_offset
    assert alone.logprobs.text_offset[0] == len("The naïve cat")
    assert not any(alone.logprobs.top_logprobs or [])


def test_the_best_of_several_is_the_likeliest_by_the_token(server: Running) -> None:
    options: dict[str, Any] = {
        "model": "gpt2",
        "prompt": PROMPT,
        "max_tokens": 6,
        "temperature": 1.0,
        "seed": 4,
    }
    drawn = server.client.completions.create(n=5, logprobs=0, **options)
    means = [
        sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs) for choice in drawn.choices
    ]  # type: ignore
    ranked = sorted(range(5), key=lambda number: -means[number])
    best = server.client.completions.create(n=2, best_of=5, **options)
    assert [choice.text for choice in best.choices] == [drawn.choices[number].text for number in ranked[:2]]
    assert best.usage is not None and best.usage.completion_tokens == drawn.usage.completion_tokens  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="the best of several texts is known at the end"):
        server.client.completions.create(n=1, best_of=2, stream=True, **options)


def test_greedy_texts_of_one_prompt_are_all_the_same(server: Running) -> None:
    options: dict[str, Any] = {"model": "gpt2", "prompt": PROMPT, "max_tokens": 5, "temperature": 0, "n": 3}
    answer = server.client.completions.create(**options)
    assert len({choice.text for choice in answer.choices}) == 1 and len(answer.choices) == 3
    texts = ["", "", ""]
    for event in server.client.completions.create(stream=True, **options):
        texts[event.choices[0].index] += event.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_beams_are_those_of_generate(server: Running, name: str) -> None:
    answer = server.client.completions.create(
        model=name, prompt=PROMPTS, max_tokens=6, n=2, temperature=0, extra_body={"beams": 3}
    )
    expected = greedy(server, PROMPTS, name, beams=3, returns=2, max_new_tokens=6)
    assert [choice.text for choice in answer.choices] == [each.text for each in expected]


def test_an_empty_prompt_starts_from_the_end_of_text(server: Running) -> None:
    answer = server.client.completions.create(model="gpt2", prompt="", max_tokens=5, temperature=0)
    assert answer.choices[0].text == greedy(server, [""], max_new_tokens=5)[0].text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "cannot do completions: it can do fill"),
        ({"model": "nothing"}, "there is no model 'nothing'"),
        ({"max_tokens": 300}, "the model has 256 positions: ask for at most 25[0-9] new tokens"),
        ({"prompt": [100_000]}, "token id 100000 is outside the model's vocabulary"),
        ({"prompt": []}, "prompt"),
        ({"temperature": -1}, "temperature"),
        ({"best_of": 1, "n": 2}, "best_of is 1, below n"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"logprobs": 50}, "logprobs"),
        ({"stop": ""}, "an empty stop string"),
        ({"suffix": "end"}, "suffix"),
        ({"extra_body": {"bems": 4}}, "there is no field 'bems'"),
        ({"model": "t5", "echo": True}, "reads a source and writes another text"),
    ],
)
def test_mistakes_are_told_in_openais_form(server: Running, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError), match=message) as refused:
        server.client.completions.create(**{"model": "gpt2", "prompt": PROMPT, **changes})
    assert refused.value.type and refused.value.code
    assert set(refused.value.body) == {"message", "type", "param", "code"}  # type: ignore[arg-type]


def test_many_clients_get_the_answers_of_one(server: Running) -> None:
    """Streams and whole answers of different lengths and settings, all at once, each compared with the verb's."""
    draw = random.Random(0)
    cases: list[dict[str, Any]] = []
    for number in range(32):
        words = " ".join(
            draw.choices("the cat sat on a mat in Paris and Rome".split(), k=draw.randint(1, 30))
        )
        ways: list[dict[str, Any]] = [{}, {"temperature": 0.7, "seed": number}, {"top_p": 0.9, "seed": 1}]
        cases.append({"prompt": words, "max_tokens": draw.randint(1, 30), **ways[number % 3]})
    expected = [
        greedy(
            server,
            [case["prompt"]],
            **{
                "max_new_tokens" if key == "max_tokens" else key: value
                for key, value in case.items()
                if key != "prompt"
            },
        )[0].text
        for case in cases
    ]

    def ask(number: int) -> str:
        case = {"temperature": 1.0 if "seed" in cases[number] else 0, **cases[number]}
        if number % 2:
            return server.client.completions.create(model="gpt2", **case).choices[0].text
        events = server.client.completions.create(model="gpt2", stream=True, **case)
        return "".join(event.choices[0].text for event in events)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(32))) == expected
    wait_until(lambda: server.state.scheduler.rows == 0)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_frees_its_row(
    server: Running, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    decoder = server.state.store.get("gpt2", "vocabulary").build_decoder()
    # However busy the machine is: nothing is written from some step on until the server knows.
    written = hold_until_cancelled(monkeypatch, decoder, 3)
    body = {"model": "gpt2", "prompt": PROMPT, "max_tokens": 250, "min_tokens": 250, "n": 8}
    content = json.dumps({**body, "stream": is_streamed}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        if is_streamed:
            seen = b""
            while b"data: " not in seen:
                seen += client.recv(4096)
        wait_until(lambda: bool(written))
    wait_until(lambda: server.state.scheduler.rows == 0)
    # Not a token more than there were when the client had gone.
    assert decoder.new_tokens == written[0]


def test_events_hold_no_line_break(server: Running) -> None:
    """Not even those of Unicode, at which some readers end a line."""
    prompt = "a\u2028b\u0085c\u2029d"
    body = {"model": "gpt2", "prompt": prompt, "max_tokens": 2, "echo": True, "stream": True}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60)
    events = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    text = "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)
    assert text.startswith(prompt)


def test_events_are_those_of_the_protocol(server: Running) -> None:
    """The bytes themselves: every event is one line of JSON, the last one says that it is over."""
    body = {
        "model": "gpt2",
        "prompt": "日本",
        "max_tokens": 30,
        "temperature": 1.5,
        "seed": 9,
        "stream": True,
    }
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, last, rest = answer.content.decode("utf-8").split("\n\n")
    assert last == "data: [DONE]" and rest == ""
    parts = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {part["object"] for part in parts} == {"text_completion"}
    assert len({part["id"] for part in parts}) == 1
    text = "".join(part["choices"][0]["text"] for part in parts)
    assert text == greedy(server, ["日本"], max_new_tokens=30, temperature=1.5, seed=9)[0].text
