"""`etymon serve`: models behind an address, for programs and for people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from etymon.errors import EtymonError
from etymon.settings import Notify, WeightOptions, Words, argument, option, settings
from etymon.verbs.terminal import on_note as on_note
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.families.model import Model

LOCAL = ("127.0.0.1", "localhost", "::1")
SHARE = 4
"""Unless told, caches take this part of the memory that is free, and at most `MOST_CACHE`."""
MOST_CACHE = 4e9


@settings
class ServeOptions(WeightOptions):
    models: Words = argument("folders or hub ids of models; NAME=FOLDER gives one another name")
    port: int = option(8000, "port to listen on; 0: any free one", ge=0, le=65535)
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: all addresses of this machine")
    api_key: str | None = option(None, "name of the environment variable with the key that clients must send")
    allow_origin: Words = option((), "pages of this origin may ask, too (CORS); may be repeated")
    allow_host: Words = option((), "another name that the server is called by; may be repeated")
    rows: int = option(64, "how many texts a model writes at the same time", ge=1, le=4096)
    cache_memory: str | None = option(
        None, "memory for what was read already: 2GB (a quarter of what is free, at most 4 GB)"
    )
    queue: int = option(512, "texts that may wait; more are refused (429)", ge=1)
    max_tokens: int = option(4096, "tokens of a text, read and written; longer ones are refused (413)", ge=1)
    max_body: str = option("4MB", "largest request; larger ones are refused (413)")
    timeout: float = option(300.0, "seconds that a request may take (408)", gt=0)
    drain: int = option(30, "seconds to finish running answers when the server is told to stop", ge=0)
    preload: bool = option(False, "open all models at the start, not at their first request")
    log_texts: bool = option(False, "write the texts of requests to the log, too")
    on_note: Notify | None = option(None, "is told where the server listens", seen_by="python")


@verb(ServeOptions)
def serve(options: ServeOptions) -> None:
    """It answers OpenAI's protocol (/v1/completions, /v1/embeddings, /v1/models) and requests of its own
    (/fill, /predict, /rerank, /translate, /score, ...); /docs lists all. Requests are computed together, and
    none changes the answer of another. Only this machine can connect unless --host says otherwise. Ctrl-C or
    SIGTERM finishes running answers, then stops. Needs the extra `serve`.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise EtymonError(
            f"a server needs {error.name}: install it with pip install 'etymon[serve]'",
            code="missing-package",
        ) from error
    from etymon.nn.footprint import available_memory
    from etymon.server.app import create_app
    from etymon.server.guard import LOCAL_NAMES, GuardSettings
    from etymon.server.run import open_socket, run_server
    from etymon.server.scheduler import Scheduler
    from etymon.server.state import Limits, ServerState
    from etymon.server.store import ModelStore, named_folders
    from etymon.verbs.load_inputs import load_model, parse_size

    notify = options.on_note or (lambda note: None)
    if not options.models:
        raise EtymonError("there is no model to serve: give folders or hub ids")
    key = _read_key(options.api_key)
    limits = Limits(parse_size(options.max_body), options.max_tokens, options.queue, options.timeout)
    memory = min(MOST_CACHE, available_memory() / SHARE)
    if options.cache_memory is not None:
        memory = float(parse_size(options.cache_memory))

    def open_model(folder: Path) -> Model:
        return load_model(folder, options)

    store = ModelStore(named_folders(options.models), open_model, options.rows, memory)
    listener = open_socket(options.host, options.port)
    is_local = options.host in LOCAL
    hosts = (*LOCAL_NAMES, *options.allow_host) if is_local else None
    state = ServerState(store, Scheduler(options.queue), limits, logs_texts=options.log_texts)
    if options.preload:
        for name in store.folders:
            store.get(name)
    app = create_app(state, GuardSettings(key, options.allow_origin, hosts))
    address = (
        f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{listener.getsockname()[1]}"
    )

    def tell() -> None:
        names = ", ".join(store.folders)
        notify(
            f"{names} at {address}/v1 (in a browser: {address}; for programs: {address}/docs; Ctrl-C ends)"
        )
        if not is_local and key is None:
            notify("whoever reaches this machine can ask: ask for a key with --api-key VARIABLE")

    run_server(app, state, listener, options.drain, tell)


def _read_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    # A key on a command line can be read by every user of the machine.
    key = os.environ.get(variable)
    if not key:
        raise EtymonError(
            "--api-key is the name of an environment variable, and there is none of that name: "
            "export ETYMON_KEY=..., then --api-key ETYMON_KEY"
        )
    return key
