"""The web application: which address does what, and how mistakes are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

import etymon
from etymon.errors import EtymonError
from etymon.server import completions, endpoints, looking, schemas
from etymon.server.docs_page import docs_page
from etymon.server.errors import ApiError, complaint_of
from etymon.server.guard import Guard, GuardSettings
from etymon.server.jobs import CancelledError
from etymon.server.responses import json_response
from etymon.server.state import ServerState

# The page at `/` and what it needs; nothing else of the disk is ever sent.
STATIC = Path(__file__).parent / "static"
# What pages of reports and the page at `/` share.
TEMPLATES = Path(__file__).parents[1] / "report" / "templates"
SHARED = ("page.css", "tokens.css", "explain.css", "explain.js")
# Nothing of another origin, no script and no style in the page itself.
POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    # A newer version of the server has newer files at the same addresses.
    "Cache-Control": "no-cache",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer} for status in (400, 401, 404, 408, 413, 429, 503)
}


def create_app(state: ServerState, guard: GuardSettings | None = None) -> FastAPI:
    """The application over open models and a scheduler that runs."""
    app = FastAPI(
        title="Etymon",
        version=etymon.__version__,
        description="Language models: OpenAI's protocol, and what these families do beyond it.",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
        responses=REFUSALS,
    )
    # For whoever adds addresses of their own to the application.
    app.state.etymon = state
    _add_refusals(app, state)
    _add_openai(app, state)
    _add_verbs(app, state)
    _add_watching(app, state)
    _add_pages(app)
    app.add_middleware(Guard, state=state, settings=guard or GuardSettings())
    return app


def _add_refusals(app: FastAPI, state: ServerState) -> None:
    def refuse(error: ApiError) -> Response:
        # Here, where all refusals come by: a message may have been written by any part of the library.
        error.message = state.store.without_paths(error.message)
        return json_response(error.body(), error.status, error.headers)

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return refuse(error)

    @app.exception_handler(EtymonError)
    async def etymon_error(request: Request, error: EtymonError) -> Response:
        return refuse(ApiError(400, str(error)))

    @app.exception_handler(CancelledError)
    async def cancelled(request: Request, error: CancelledError) -> Response:
        # Nobody reads it; the number is what web servers write to their logs for it.
        return refuse(ApiError(499, "the client has gone", code="cancelled"))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        message, param = complaint_of(error.errors())
        return refuse(ApiError(400, message, param=param))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        # Starlette's own words say what happened and not what to do.
        messages = {
            400: "the body cannot be read: send JSON in UTF-8",
            404: "there is nothing at this address: see /docs for what there is",
            405: "this address takes another method: see /docs",
        }
        message = messages.get(error.status_code, str(error.detail))
        code = "request_too_large" if error.status_code == 413 else None
        return refuse(ApiError(error.status_code, message, code=code, headers=error.headers))


def _add_openai(app: FastAPI, state: ServerState) -> None:
    @app.get("/v1/models", tags=["OpenAI"], summary="The models, and what each can do")
    async def models() -> schemas.ModelList:
        return schemas.ModelList(data=[_card(state, name) for name in state.store.folders])

    # Names may have slashes: those of the hub do.
    @app.get("/v1/models/{model:path}", tags=["OpenAI"], summary="One model")
    async def one_model(model: str) -> schemas.ModelCard:
        # The name is looked up in a table and never becomes a path.
        state.store.require(model)
        return _card(state, model)

    @app.post(
        "/v1/completions",
        tags=["OpenAI"],
        summary="Write on from prompts, or answer sources",
        response_model=schemas.CompletionAnswer,
    )
    async def complete(body: schemas.CompletionRequest, request: Request) -> Response:
        return await completions.complete(state, body, request)

    @app.post(
        "/v1/embeddings",
        tags=["OpenAI"],
        summary="A vector for every text",
        response_model=schemas.EmbeddingAnswer,
    )
    async def embed(body: schemas.EmbeddingRequest, request: Request) -> Response:
        return await endpoints.embed(state, body, request)


def _card(state: ServerState, name: str) -> schemas.ModelCard:
    summary = state.store.summaries[name]
    return schemas.ModelCard(
        id=name,
        created=state.store.created,
        family=summary.family,
        abilities=summary.abilities,
        positions=summary.positions,
        is_open=state.store.is_open(name),
    )


def _add_verbs(app: FastAPI, state: ServerState) -> None:
    def add(
        path: str, summary: str, body: type, answer: type, run: Callable[..., Awaitable[Response]]
    ) -> None:
        async def handler(body: Any, request: Request) -> Response:
            return await run(state, body, request)

        # FastAPI reads the types of the arguments.
        handler.__annotations__ = {"body": body, "request": Request, "return": Response}
        handler.__name__ = path.strip("/")
        app.post(path, tags=["Etymon"], summary=summary, response_model=answer)(handler)

    add("/fill", "Fill the blanks of texts", schemas.FillRequest, schemas.FillAnswer, endpoints.fill)
    add(
        "/replaced",
        "Which tokens of texts were replaced",
        schemas.TextsRequest,
        schemas.ReplacedAnswer,
        endpoints.replaced,
    )
    add(
        "/predict",
        "Classes, tags, spans, numbers or choices, with probabilities",
        schemas.PredictRequest,
        schemas.PredictAnswer,
        endpoints.predict,
    )
    add(
        "/rerank",
        "Documents in the order of their relevance to a query",
        schemas.RerankRequest,
        schemas.RerankAnswer,
        endpoints.rerank,
    )
    for verb in ("translate", "summarize"):
        add(
            f"/{verb}",
            f"{verb.capitalize()} texts",
            schemas.RewriteRequest,
            schemas.RewriteAnswer,
            _rewriting(verb),
        )
    add(
        "/score",
        "How likely texts are, by token and by word",
        schemas.ScoreRequest,
        schemas.ScoreAnswer,
        endpoints.score,
    )
    add(
        "/attention",
        "Who attends to whom, by layer and head",
        schemas.AttentionRequest,
        schemas.AttentionAnswer,
        endpoints.attention,
    )
    add(
        "/lens",
        "What every layer would predict",
        schemas.LensRequest,
        schemas.LensAnswer,
        looking.lens,
    )
    add(
        "/explain",
        "What the objective does to texts",
        schemas.ExplainRequest,
        schemas.ExplainAnswer,
        looking.explain,
    )
    add(
        "/task",
        "The task of a model, and what it reads",
        schemas.TaskRequest,
        schemas.TaskAnswer,
        looking.task,
    )
    add(
        "/tokenize",
        "The tokens of a text",
        schemas.TokenizeRequest,
        schemas.TokenizeAnswer,
        endpoints.tokenize,
    )


def _rewriting(verb: str) -> Callable[..., Awaitable[Response]]:
    async def rewrite(state: ServerState, body: schemas.RewriteRequest, request: Request) -> Response:
        return await endpoints.rewrite(state, body, request, verb)

    return rewrite


def _add_watching(app: FastAPI, state: ServerState) -> None:
    @app.get("/health", tags=["Watching"], summary="Whether the process answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", tags=["Watching"], summary="Whether it takes requests")
    async def ready() -> Response:
        if state.is_draining:
            raise ApiError(503, "the server is stopping: ask another one")
        return json_response({"status": "ready"})

    @app.get("/metrics", tags=["Watching"], summary="Figures for Prometheus")
    async def metrics() -> Response:
        scheduler = state.scheduler
        # Another thread may add to it meanwhile.
        decoders = list(scheduler.decoders)
        gauges = {
            "etymon_waiting": scheduler.waiting,
            "etymon_rows": scheduler.rows,
            "etymon_open_models": len(state.store.opened),
            "etymon_busy_seconds_total": scheduler.busy_seconds,
            "etymon_prompt_tokens_total": sum(each.prompt_tokens for each in decoders),
            "etymon_shared_prompt_tokens_total": sum(each.shared_tokens for each in decoders),
            "etymon_new_tokens_total": sum(each.new_tokens for each in decoders),
            "etymon_steps_total": sum(each.steps for each in decoders),
        }
        return PlainTextResponse(state.metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))

    # Listed once: what is put there later is not served before the next start.
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("[!.]*") if path.is_file()}
    files |= {name: TEMPLATES / name for name in SHARED}

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(files["index.html"], headers=POLICY)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str) -> Response:
        # Only names that were there at the start: no path is ever made of a request.
        if name not in files:
            raise ApiError(404, "there is nothing at this address")
        return FileResponse(files[name], headers=POLICY)
