"""What people ask to understand a model: its task, what every layer predicts, what its objective does."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from etymon.errors import EtymonError
from etymon.explaining.explain import (
    explain_text,
    explainable_objectives,
    fitting_length,
    objective_of,
    unit_for,
)
from etymon.explaining.explanation import as_record
from etymon.families.model import Model
from etymon.generation.text import source_tokenizer_of, tokenizer_of
from etymon.lab.logit_lens import logit_lens
from etymon.language import translated
from etymon.objectives import get_objective, objective_class
from etymon.objectives.history import last_pretraining
from etymon.server import schemas
from etymon.server.errors import ApiError
from etymon.server.responses import json_response
from etymon.server.state import ServerState
from etymon.server.store import ServedModel
from etymon.tasks import task_for

# Tokens of a text that is looked at: every one of them is told of by layer.
MOST_TOKENS = 256


def _check_length(served: ServedModel, texts: list[str]) -> None:
    tokens = sum(map(len, source_tokenizer_of(served.model).encode_batch(texts, quiet=True)))
    if tokens > MOST_TOKENS:
        message = f"the text has {tokens} tokens, and {MOST_TOKENS} are looked at: shorten it"
        raise ApiError(413, message, code="request_too_large")


async def task(state: ServerState, body: schemas.TaskRequest, request: Request) -> Response:
    served = await state.open(body.model, ability="predict")
    chosen = await asyncio.to_thread(task_for, served.model, body.task, {})
    columns, lists = list(chosen.input_columns), list(chosen.list_columns)
    return json_response({"model": body.model, "task": chosen.name, "columns": columns, "lists": lists})


async def lens(state: ServerState, body: schemas.LensRequest, request: Request) -> Response:
    served = await state.open(body.model, "vocabulary", ability="lens")
    _check_length(served, [body.text])
    # Alone: tracing a model changes it for the time being.
    (answer,) = await state.call(
        request, object(), [None], lambda items: [logit_lens(served.model, body.text, body.top_k)]
    )
    return json_response({"model": body.model, **asdict(answer)})


async def explain(state: ServerState, body: schemas.ExplainRequest, request: Request) -> Response:
    served = await state.open(body.model, ability="explain")
    model = served.model
    generator: Model | None = None
    if state.store.summaries[body.model].has_generator:
        # An ELECTRA run: the generator masks and guesses, the discriminator is asked about all tokens.
        beside = await state.open_folder(body.model, "vocabulary")
        if body.objective not in (None, "replaced"):
            model = beside.model
        else:
            generator = beside.model
    _check_length(served, body.texts)
    names = explainable_objectives(model)
    name = body.objective or objective_of(model) or model.family.objective
    if name not in names:
        if body.objective is not None or not names:
            fitting = f"it can do {', '.join(names)}" if names else "it has no head of an objective"
            raise ApiError(400, f"{body.model!r} cannot be asked for {name}: {fitting}", param="objective")
        # Fine-tuned or distilled: the objective that it comes from needs what is not there.
        name = names[0]
    tokenizer, trained_as = tokenizer_of(model), last_pretraining(model.history)
    way = trained_as.word_way((), None)

    def run(items: list[Any]) -> list[Any]:
        kind: Any = objective_class(name)
        length = fitting_length(kind, tokenizer, body.texts)
        # A longer text makes several samples.
        length = length if model.positions is None else min(length, model.positions)
        objective = get_objective(name, tokenizer, length, **trained_as.options.get(name, {}))
        unit = unit_for(model, objective, None, generator)
        return [explain_text(unit, tokenizer, body.texts, seed=body.seed, trained=True, words=way)]

    if not any(text.strip() for text in body.texts):
        raise EtymonError("the text is blank: give a sentence")
    # Alone: the calls of the model are followed meanwhile.
    (explanation,) = await state.call(request, object(), [None], run)
    record = as_record(explanation)
    record["about"] = translated(record["about"], "result", body.language)
    return json_response({"model": body.model, "objectives": names, "explanation": record})
