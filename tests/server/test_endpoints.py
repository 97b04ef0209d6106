"""What is asked beside completions: the answers are those of the verbs."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

import etymon
from etymon.explaining.explanation import as_record
from etymon.families.saving import save
from etymon.nn.batch import Batch
from tests import tiny
from tests.server.conftest import Running, running

TEXTS = ["The cat sat on the mat.", "Paris is the capital of France", "A dog"]


def plain(value: Any) -> Any:
    return [asdict(each) for each in value]


def test_vectors_are_those_of_embed(server: Running) -> None:
    expected = etymon.embed(server.models["bert"], TEXTS)
    # The client asks for base64 by itself, and decodes it.
    answer = server.client.embeddings.create(model="bert", input=TEXTS)
    np.testing.assert_allclose([each.embedding for each in answer.data], expected, atol=1e-5)
    floats = server.client.embeddings.create(model="bert", input=TEXTS, encoding_format="float")
    np.testing.assert_allclose([each.embedding for each in floats.data], expected, atol=1e-5)
    raw = server.post("/v1/embeddings", model="bert", input=TEXTS[0], encoding_format="base64").json()
    vector = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, expected[0], atol=1e-5)
    ids = server.models["bert"].tokenizer.encode(TEXTS[1]).tolist()  # type: ignore[union-attr]
    by_ids = server.client.embeddings.create(model="bert", input=[ids])
    np.testing.assert_allclose(by_ids.data[0].embedding, expected[1], atol=1e-5)
    assert answer.usage.prompt_tokens == sum(
        len(server.models["bert"].tokenizer.encode(text)) for text in TEXTS
    )  # type: ignore[union-attr]


def test_vectors_of_many_clients_are_not_mixed_up(server: Running) -> None:
    texts = [
        f"the {word} sat on the mat" for word in "cat dog Paris Rome capital naïve soup façade".split()
    ] * 4
    expected = etymon.embed(server.models["bert"], texts)
    with ThreadPoolExecutor(16) as pool:
        vectors = list(
            pool.map(
                lambda text: server.client.embeddings.create(model="bert", input=text).data[0].embedding,
                texts,
            )
        )
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_words_told_apart_by_letters_are_not_mixed_up(tmp_path: Any) -> None:
    """ELMo's tokenizer keeps the words of a batch: requests that come meanwhile must not change them."""
    save(tiny.model("elmo", frozenset({"vocabulary"})), tmp_path / "elmo")
    texts = [f"the {word} crossed" for word in "strange stranger strangest odd odder oddest".split()] * 4
    expected = etymon.embed(etymon.load(tmp_path / "elmo"), texts)
    with running({"elmo": tmp_path / "elmo"}) as started:
        client = started.client
        with ThreadPoolExecutor(12) as pool:
            vectors = list(
                pool.map(
                    lambda text: client.embeddings.create(model="elmo", input=text).data[0].embedding, texts
                )
            )
        assert started.post("/v1/embeddings", model="elmo", input=[1, 2]).status_code == 400
        assert (
            len(started.post("/rerank", model="elmo", query="odd", documents=texts[:3]).json()["results"])
            == 3
        )
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_fill_and_replaced_and_score(server: Running) -> None:
    blanks = ["The [MASK] sat on the ___.", "Paris is the ___"]
    answer = server.post("/fill", model="bert", texts=blanks, top_k=3).json()
    assert _close(answer["texts"], plain(etymon.fill(server.models["bert"], blanks, top_k=3)))
    answer = server.post("/replaced", model="discriminator", texts=TEXTS).json()
    assert _close(answer["texts"], plain(etymon.replaced(server.models["discriminator"], TEXTS)))
    answer = server.post("/score", model="gpt2", texts=TEXTS, words="tokens").json()
    assert _close(answer["texts"], plain(etymon.score(server.models["gpt2"], TEXTS, words="tokens")))
    answer = server.post("/score", model="bert", texts=TEXTS).json()
    assert _close(answer["texts"], plain(etymon.score(server.models["bert"], TEXTS)))
    answer = server.post("/score", model="t5", texts=TEXTS[:1], targets=["A dog"]).json()
    assert _close(answer["texts"], plain(etymon.score(server.models["t5"], TEXTS[:1], target="A dog")))


def test_predictions_have_probabilities(server: Running) -> None:
    expected = etymon.predict(server.models["classifier"], TEXTS)
    answer = server.post("/predict", model="classifier", texts=TEXTS).json()
    assert answer["task"] == "classify"
    assert _close(answer["predictions"], [each.answer for each in expected])
    rows = [{"text": text, "other": 1} for text in TEXTS]
    assert server.post("/predict", model="classifier", rows=rows).json() == answer
    assert sum(answer["predictions"][0]["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("tagging", {"tokens": ["The", "river"]}),
        ("span", {"question": "Who crossed?", "context": "The captain crossed the river."}),
        ("choice", {"text": "The river", "choices": ["crossed", "wanted"]}),
    ],
)
def test_tags_spans_and_choices(tmp_path: Any, head: str, row: dict[str, Any]) -> None:
    save(tiny.model("bert", frozenset({head})), tmp_path / "model")
    model = etymon.load(tmp_path / "model")
    (expected,) = etymon.predict(model, data=[row])
    with running({"model": tmp_path / "model"}) as started:
        answer = started.post("/predict", model="model", rows=[row]).json()
    assert _close(answer["predictions"], [expected.answer])


def test_documents_are_ranked_by_vectors_or_by_pairs(server: Running, tmp_path: Any) -> None:
    answer = server.post(
        "/rerank", model="bert", query="The cat", documents=TEXTS, return_documents=True
    ).json()
    vectors = etymon.embed(server.models["bert"], ["The cat", *TEXTS], normalise=True)
    cosines = vectors[1:] @ vectors[0]
    assert answer["method"] == "vectors"
    assert [each["index"] for each in answer["results"]] == np.argsort(-cosines).tolist()
    assert answer["results"][0]["document"] == TEXTS[answer["results"][0]["index"]]
    best = server.post("/rerank", model="bert", query="The cat", documents=TEXTS, top_n=1).json()
    assert len(best["results"]) == 1 and best["results"][0]["index"] == answer["results"][0]["index"]
    # A model that was fine-tuned on pairs reads both.
    pairs = tiny.model("bert", frozenset({"classification"}), labels=("no", "yes"))
    options = {"text": "question", "second": "passage", "label": "label"}
    pairs.history = [
        {"task": {"name": "classify", "options": options, "limits": {}, "labels": ["no", "yes"]}}
    ]
    save(pairs, tmp_path / "pairs")
    rows = [{"question": "The cat", "passage": text} for text in TEXTS]
    expected = [
        each.answer["probabilities"]["yes"]
        for each in etymon.predict(etymon.load(tmp_path / "pairs"), data=rows)
    ]
    with running({"pairs": tmp_path / "pairs"}) as started:
        answer = started.post("/rerank", model="pairs", query="The cat", documents=TEXTS).json()
    assert answer["method"] == "pairs"
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert [scores[number] for number in range(3)] == pytest.approx(expected, abs=1e-5)


def test_translations_and_summaries_are_those_of_the_verbs(server: Running) -> None:
    for verb in ("translate", "summarize"):
        answer = server.post(
            f"/{verb}", model="t5", texts=TEXTS, max_new_tokens=6, prefix="to French: "
        ).json()
        expected = getattr(etymon, verb)(server.models["t5"], TEXTS, max_new_tokens=6, prefix="to French: ")
        assert [each["text"] for each in answer["texts"]] == [each.text for each in expected]


def test_attention_and_tokens(server: Running) -> None:
    (expected,) = etymon.attention(server.models["bert"], "The cat sat", out=None).maps
    answer = server.post("/attention", model="bert", text="The cat sat").json()
    (told,) = answer["maps"]
    assert told["queries"] == expected.queries and told["layers"] == [1, 2] and told["heads"] == [1, 2, 3]
    np.testing.assert_allclose(told["weights"], expected.weights, atol=1e-5)
    (told,) = server.post("/attention", model="bert", text="The cat sat", layer=2, head=1).json()["maps"]
    np.testing.assert_allclose(told["weights"][0][0], expected.weights[1, 0], atol=1e-5)
    kinds = [each["kind"] for each in server.post("/attention", model="t5", text="The cat").json()["maps"]]
    assert kinds[0] == "cross"
    assert (
        "there are 2"
        in server.post("/attention", model="bert", text="The cat", layer=9).json()["error"]["message"]
    )
    tokens = server.post("/tokenize", model="gpt2", text="日本 cat").json()
    assert len(tokens["ids"]) == len(tokens["tokens"]) == len(tokens["starts"])


def test_one_bad_text_is_nobody_elses(server: Running) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda number: server.post(
                    "/fill", model="bert", texts=["no blank" if number == 3 else "The ___"]
                ),
                range(8),
            )
        )
    assert [answer.status_code for answer in answers] == [400 if number == 3 else 200 for number in range(8)]
    assert "there is no blank" in answers[3].json()["error"]["message"]


def test_a_dash_is_a_text_and_no_file(server: Running) -> None:
    """On a command line it stands for standard input."""
    assert server.post("/score", model="gpt2", texts=["-"]).json()["texts"][0]["text"] == "-"
    assert server.post("/v1/embeddings", model="bert", input="-").status_code == 200


def _close(told: Any, expected: Any) -> bool:
    """Whether two answers are equal but for rounding."""
    if isinstance(told, dict):
        return set(told) == set(expected) and all(_close(told[key], expected[key]) for key in told)
    if isinstance(told, list):
        return len(told) == len(expected) and all(map(_close, told, expected))
    return (
        bool(told == pytest.approx(expected, rel=1e-4, abs=1e-5))
        if isinstance(told, float)
        else told == expected
    )


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_the_last_layer_predicts_what_the_model_does(server: Running, name: str) -> None:
    model: Any = server.models[name]
    answer = server.post("/lens", model=name, text=TEXTS[0], top_k=3).json()
    assert len(answer["layers"]) == model.shape.layers + 1
    assert [len(places) for places in answer["layers"]] == [len(answer["tokens"])] * len(answer["layers"])
    ids = model.tokenizer.encode(TEXTS[0])
    if not answer["predicts_next"]:
        ids = model.tokenizer.framing.frame(ids).ids
    with torch.no_grad():
        hidden, _ = model.hidden(Batch.of([ids]))
        best = model.heads["vocabulary"].log_probs(hidden).exp().topk(3, 1).values
    shown = [[guess["probability"] for guess in place] for place in answer["layers"][-1]]
    np.testing.assert_allclose(shown, best, atol=1e-5)
    assert answer["predicts_next"] == (name == "gpt2")
    refused = server.post("/lens", model="t5", text=TEXTS[0])
    assert refused.status_code == 400 and "cannot do lens" in refused.json()["error"]["message"]


def test_explanations_are_those_of_explain(server: Running) -> None:
    for name, objective in (("bert", "masked"), ("gpt2", "causal"), ("t5", "span-corruption")):
        answer = server.post("/explain", model=name, texts=TEXTS[:1], objective=objective, seed=1).json()
        expected = etymon.explain(server.models[name], TEXTS[:1], objective=objective, seed=1)
        assert objective in answer["objectives"]
        asked = answer["explanation"]["samples"][0]["readers"][0]["questions"]
        assert name != "bert" or len(asked) > 3, "as many as the model's history says"
        assert _close(answer["explanation"], json.loads(json.dumps(as_record(expected))))
    chinese = server.post("/explain", model="bert", texts=TEXTS[:1], language="zh").json()
    assert not chinese["explanation"]["about"].isascii()
    refused = server.post("/explain", model="bert", texts=TEXTS[:1], objective="causal")
    assert refused.status_code == 400 and "masked" in refused.json()["error"]["message"]


def test_a_task_says_what_it_reads(server: Running) -> None:
    answer = server.post("/task", model="classifier").json()
    assert answer == {"model": "classifier", "task": "classify", "columns": ["text"], "lists": []}
