"""What models are asked beside completions: each a function from a request to an answer.

Requests of one kind that wait together are computed together (`ServerState.call`); their answers are those of
the verb of the same name.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from etymon.errors import EtymonError
from etymon.generation.fill import fill_texts
from etymon.generation.likelihood import score_texts
from etymon.generation.replaced import inspect_texts
from etymon.generation.text import source_tokenizer_of, tokenizer_of
from etymon.generation.word_scores import score_words
from etymon.lab.attention_map import attention_maps
from etymon.lab.sentence_vectors import SentenceEncoder
from etymon.server import schemas
from etymon.server.errors import ApiError
from etymon.server.responses import json_response
from etymon.server.state import ServerState
from etymon.server.store import ServedModel
from etymon.settings.decoding import DecodingSettings
from etymon.tables.table import read_table
from etymon.tasks import task_for
from etymon.tasks.rewriting import rewrite_texts
from etymon.text.encoding import mark_words
from etymon.text.segmenters import way_for

# Tokens of a text whose attention is shown: weights are quadratic in them.
MOST_ATTENDED = 512
# The task of a published configuration whose prefix is taken where none is known.
PUBLISHED_TASKS = {"translate": "translation_en_to_de", "summarize": "summarization"}


async def embed(state: ServerState, body: schemas.EmbeddingRequest, request: Request) -> Response:
    served = await state.open(body.model, ability="embeddings")
    encoder = await asyncio.to_thread(served.encoder, body.pooling, body.normalise)
    vectors, tokens = await _vectors(state, request, served, encoder, body.input)
    width = len(vectors[0])
    # Cutting vectors would be another model's: few are trained for it.
    if body.dimensions not in (None, width):
        message = f"the vectors of {body.model!r} have {width} dimensions: leave dimensions out"
        raise ApiError(400, message, param="dimensions", code="unsupported")
    is_base64 = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": _base64(vector) if is_base64 else vector.tolist(),
        }
        for number, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    request.scope["etymon"] |= {"usage": usage}
    # Not through `json_text`, which looks at every number: these are finite.
    text = json.dumps({"object": "list", "data": data, "model": body.model, "usage": usage})
    return Response(text, media_type="application/json")


async def _vectors(
    state: ServerState, request: Request, served: ServedModel, encoder: SentenceEncoder, given: Any
) -> tuple[list[np.ndarray], int]:
    """The vectors of a request's inputs, and how many tokens these have."""
    key = ("vectors", served.name, encoder.pooling, encoder.is_normalised)
    if "letters" not in served.model.capabilities:
        # Tokens first: the scheduler joins what is counted already.
        encoded = await asyncio.to_thread(_encode_inputs, encoder, given)
        for ids in encoded:
            state.require_tokens(len(ids), "a text")
        vectors = await state.call(request, key, encoded, lambda items: list(encoder.vectors(items)))
        return vectors, sum(map(len, encoded))

    # Words that only their letters tell apart are kept by the tokenizer while a batch is read: no other
    # thread may encode texts meanwhile.
    def run(texts: list[Any]) -> list[tuple[np.ndarray, int]]:
        encoded = _encode_inputs(encoder, texts)
        return [(vector, len(ids)) for vector, ids in zip(encoder.vectors(encoded), encoded, strict=True)]

    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts[0], str):
        raise ApiError(
            400, f"{served.model.family.title} reads letters, not token ids: send texts", param="input"
        )
    for text in texts:
        state.require_tokens(len(text.split()), "a text")
    answers = await state.call(request, key, texts, run)
    return [vector for vector, _ in answers], sum(count for _, count in answers)


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _encode_inputs(encoder: SentenceEncoder, given: Any) -> list[np.ndarray]:
    inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    if isinstance(inputs[0], str):
        encoded = encoder.tokens(inputs)
    else:
        limit = encoder.model.source_vocabulary
        if max(map(max, inputs)) >= limit:
            raise EtymonError(f"token id {max(map(max, inputs))} is outside the vocabulary of {limit} tokens")
        # As texts are: ids of a text without the framing, cut to what the model reads.
        encoded = [encoder.reader.truncate(np.array(ids, np.int64)) for ids in inputs]
    if not all(map(len, encoded)):
        raise EtymonError("an empty text has no tokens to make a vector of: leave it out")
    return encoded


def _check_texts(state: ServerState, served: ServedModel, texts: Sequence[str]) -> None:
    # Before anything waits in a queue for them.
    for ids in source_tokenizer_of(served.model).encode_batch(list(texts), quiet=True):
        state.require_tokens(len(ids), "a text")


async def fill(state: ServerState, body: schemas.FillRequest, request: Request) -> Response:
    served = await state.open(body.model, "vocabulary", ability="fill")
    await asyncio.to_thread(_check_texts, state, served, body.texts)

    def run(items: list[str]) -> list[Any]:
        return fill_texts(served.model, items, top_k=body.top_k, max_new_tokens=body.max_new_tokens)

    # Only equal wishes can be one computation.
    key = ("fill", served.name, body.top_k, body.max_new_tokens)
    return json_response({"model": body.model, "texts": await state.call(request, key, body.texts, run)})


async def replaced(state: ServerState, body: schemas.TextsRequest, request: Request) -> Response:
    served = await state.open(body.model, ability="replaced")
    await asyncio.to_thread(_check_texts, state, served, body.texts)

    def run(items: list[str]) -> list[Any]:
        return inspect_texts(served.model, items, body.model)

    answers = await state.call(request, ("replaced", served.name), body.texts, run)
    return json_response({"model": body.model, "texts": answers})


async def predict(state: ServerState, body: schemas.PredictRequest, request: Request) -> Response:
    served = await state.open(body.model, ability="predict")
    # Made anew: tasks are cheap, and tie themselves to the model.
    task = await asyncio.to_thread(task_for, served.model, body.task, {})
    rows: list[dict[str, Any]]
    if body.texts is not None:
        if len(task.input_columns) > 1:
            columns = ", ".join(task.input_columns)
            raise ApiError(
                400, f"the task {task.name!r} reads the columns {columns}: send rows", param="texts"
            )
        rows = [{task.input_columns[0]: text} for text in body.texts]
    else:
        rows = body.rows or []
    notes: list[str] = []

    def run(items: list[dict[str, Any]]) -> list[Any]:
        # Rows and never paths: the schema lets only objects through.
        table = read_table(items)
        task.require_free_names(table)
        answers = task.predict(served.model, table, DecodingSettings(beams=body.beams), notes.append)
        return [task.record(answer) for answer in answers]

    # Rows of several requests are not put together: notes, and numbers of rows in messages, are a request's.
    answers = await state.call(request, object(), rows, run)
    return json_response({"model": body.model, "task": task.name, "predictions": answers, "notes": notes})


async def rerank(state: ServerState, body: schemas.RerankRequest, request: Request) -> Response:
    """By a head that reads both texts, where the model was fine-tuned on pairs; else by cosines."""
    served = await state.open(body.model, ability="rerank")
    pairs = await asyncio.to_thread(_pair_task, served)
    if pairs is not None:
        first, second = pairs.input_columns

        def run(items: list[tuple[str, str]]) -> list[float]:
            table = read_table([{first: query, second: document} for query, document in items])
            return [_relevance(pairs.record(answer)) for answer in pairs.predict(served.model, table)]

        items = [(body.query, document) for document in body.documents]
        scores = await state.call(request, ("rerank", served.name), items, run)
    else:
        encoder = await asyncio.to_thread(served.encoder, None, True)
        texts = [body.query, *body.documents]
        (query, *vectors), _ = await _vectors(state, request, served, encoder, texts)
        scores = [float(query @ vector) for vector in vectors]
    # Stable: equal scores stay in the order of the documents.
    order = sorted(range(len(scores)), key=lambda number: -scores[number])[: body.top_n]
    results = [
        {"index": number, "relevance_score": scores[number]}
        | ({"document": body.documents[number]} if body.return_documents else {})
        for number in order
    ]
    method = "vectors" if pairs is None else "pairs"
    return json_response({"model": body.model, "method": method, "results": results})


def _pair_task(served: ServedModel) -> Any:
    """The task of a model that was fine-tuned to judge pairs of texts; None of others."""
    try:
        task = task_for(served.model, None, {})
    except EtymonError:
        return None
    return task if task.name in ("classify", "regress") and len(task.input_columns) == 2 else None


def _relevance(record: dict[str, Any]) -> float:
    shares = record.get("probabilities")
    # Of labels in their order, the last one says yes: 0 and 1, no and yes, irrelevant and relevant.
    return float(list(shares.values())[-1]) if isinstance(shares, dict) else float(record["prediction"])


async def rewrite(state: ServerState, body: schemas.RewriteRequest, request: Request, verb: str) -> Response:
    served = await state.open(body.model, "vocabulary", ability=verb)
    await asyncio.to_thread(_check_texts, state, served, body.texts)
    if body.max_new_tokens is not None:
        state.require_tokens(body.max_new_tokens, "a text to write")
    decoding = DecodingSettings(beams=body.beams, max_new_tokens=body.max_new_tokens)
    notes: list[str] = []

    def run(items: list[str]) -> list[Any]:
        return rewrite_texts(
            served.model,
            items,
            decoding,
            published_task=PUBLISHED_TASKS[verb],
            prefix=body.prefix,
            chunk=body.chunk,
            notify=notes.append,
        )

    # Texts that are read in parts have notes of their own.
    key = object() if body.chunk else (verb, served.name, body.prefix, decoding)
    answers = await state.call(request, key, body.texts, run)
    return json_response({"model": body.model, "texts": answers, "notes": notes})


async def score(state: ServerState, body: schemas.ScoreRequest, request: Request) -> Response:
    served = await state.open(body.model, "vocabulary", ability="score")
    targets: list[str | None] = [*body.targets] if body.targets else [None] * len(body.texts)
    if len(targets) != len(body.texts):
        message = f"there are {len(body.texts)} texts and {len(targets)} targets: give a target for each"
        raise ApiError(400, message, param="targets")
    await asyncio.to_thread(_check_texts, state, served, [*body.texts, *(body.targets or ())])
    # Two ways by name: others would import what the request names.
    tokenizer, way = tokenizer_of(served.model), way_for((body.words,)) if body.words else None

    def run(items: list[tuple[str, str | None]]) -> list[Any]:
        texts, given = [text for text, _ in items], [target for _, target in items]
        # The key keeps texts with targets and those without apart.
        has_targets = given[0] is not None
        scores = score_texts(served.model, texts, [str(target) for target in given] if has_targets else None)
        if way is not None:
            scores = [
                replace(each, words=score_words(each, mark_words(each.text, tokenizer, way), tokenizer))
                for each in scores
            ]
        return scores

    key = ("score", served.name, body.words, body.targets is None)
    answers = await state.call(request, key, list(zip(body.texts, targets, strict=True)), run)
    return json_response({"model": body.model, "texts": answers})


async def attention(state: ServerState, body: schemas.AttentionRequest, request: Request) -> Response:
    served = await state.open(body.model, ability="attention")
    texts = [text for text in (body.text, body.target) if text is not None]
    tokens = sum(map(len, source_tokenizer_of(served.model).encode_batch(texts, quiet=True)))
    if tokens > MOST_ATTENDED:
        message = f"the text has {tokens} tokens, and attention is told of {MOST_ATTENDED}: shorten it"
        raise ApiError(413, message, code="request_too_large")

    def run(items: list[Any]) -> list[Any]:
        return [attention_maps(served.model, body.text, body.target)]

    # Alone: tracing a model keeps every layer's weights.
    (maps,) = await state.call(request, object(), [None], run)
    chosen = [each for each in maps if body.kind in (None, each.kind)]
    if not chosen:
        kinds = ", ".join(each.kind for each in maps)
        raise ApiError(400, f"there is no {body.kind} attention here: there is {kinds}", param="kind")
    shown = []
    for each in chosen:
        layers, heads = (list(range(1, count + 1)) for count in each.weights.shape[:2])
        for name, number, there in (("layer", body.layer, layers), ("head", body.head, heads)):
            if number is not None and number > len(there):
                raise ApiError(400, f"{name} is {number}: there are {len(there)}, from 1 on", param=name)
        layers, heads = ([body.layer] if body.layer else layers), ([body.head] if body.head else heads)
        part = each.weights[np.array(layers) - 1][:, np.array(heads) - 1]
        shown.append(
            {
                "kind": each.kind,
                "queries": each.queries,
                "keys": each.keys,
                "layers": layers,
                "heads": heads,
                "weights": part.astype(np.float64).round(6).tolist(),
            }
        )
    text = json.dumps({"model": body.model, "maps": shown}, ensure_ascii=False)
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


async def tokenize(state: ServerState, body: schemas.TokenizeRequest, request: Request) -> Response:
    served = await state.open(body.model, ability="tokenize")
    tokenizer = source_tokenizer_of(served.model)
    ids, starts, stops = tokenizer.offsets(body.text, quiet=True)
    return json_response(
        {
            "model": body.model,
            "ids": ids.tolist(),
            "tokens": [tokenizer.tokens[number] for number in ids.tolist()],
            "starts": starts.tolist(),
            "stops": stops.tolist(),
        }
    )
