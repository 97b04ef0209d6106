"""What stands before every request: sizes, the key, hosts, origins; and what is logged behind it."""

from __future__ import annotations

import hmac
import json
import logging
import time
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from etymon.server.errors import ApiError
from etymon.server.responses import json_response
from etymon.server.state import ServerState

logger = logging.getLogger("etymon.server")

# What needs no key: nothing of a model is told there.
OPEN_PATHS = ("/", "/docs", "/health", "/ready", "/openapi.json")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
LONGEST_LOGGED = 2000


@dataclass(frozen=True)
class GuardSettings:
    key: str | None = None
    """What clients have to send as `Authorization: Bearer KEY`."""
    origins: tuple[str, ...] = ()
    """Pages of these origins may ask, too (`*`: any)."""
    hosts: tuple[str, ...] | None = None
    """Names that the server may be called by; None: any. On a local address it is only called by local
    names, so that no page can reach it under a name of its own."""


class Guard:
    """An ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, state: ServerState, settings: GuardSettings) -> None:
        self.app, self.state, self.settings = app, state, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # There are no web sockets; the application refuses them itself.
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin, status, facts = time.monotonic(), 500, scope.setdefault("etymon", {})
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # On every answer, also on refusals.
                message["headers"] = [*message["headers"], *self._response_headers(headers)]
            await send(message)

        try:
            self._check(scope, headers)
            if scope["method"] == "OPTIONS" and self._is_allowed_origin(headers):
                # A browser asks before it asks.
                await json_response({}, 204)(scope, receive, send_on)
            else:
                await self.app(scope, self._limited(receive, headers), send_on)
        except ApiError as error:
            await json_response(error.body(), error.status, error.headers)(scope, receive, send_on)
        except Exception:
            # Told to the log alone: a traceback names files.
            logger.exception("a request has failed by a mistake of the server")
            mistake = ApiError(500, "the server made a mistake; its log has the reason")
            # What has begun to be sent cannot become an error.
            if status == 500:
                await json_response(mistake.body(), 500)(scope, receive, send_on)
        finally:
            self._record(scope, status, time.monotonic() - begin, facts)
        return None

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        settings, path = self.settings, scope["path"]
        # With a port or without; an IPv6 address has colons of its own.
        host = (
            headers.get("host", "").rsplit(":", 1)[0]
            if not headers.get("host", "").endswith("]")
            else headers["host"]
        )
        if settings.hosts is not None and host.lower() not in settings.hosts:
            raise ApiError(
                403,
                "this server is called by another name here: start it with --allow-host for that",
                code="host",
            )
        # The page has to be there before somebody can put a key into it.
        is_open = path in OPEN_PATHS or path.startswith("/static/")
        if settings.key is not None and not is_open and scope["method"] != "OPTIONS":
            given = headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "replace")
            # The time that the comparison takes tells nothing of the key.
            if not hmac.compare_digest(given, settings.key.encode("utf-8", "replace")):
                raise ApiError(
                    401,
                    "the key is missing or wrong: send Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        length = headers.get("content-length", "")
        # Before a byte of it is read.
        if length.isdecimal() and int(length[:20]) > self.state.limits.body:
            raise self._too_large()

    def _limited(self, receive: Receive, headers: dict[str, str]) -> Receive:
        """Counts the body as it comes, also where no header says how long it is."""
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > self.state.limits.body:
                    # FastAPI takes any other exception here for a body that cannot be read.
                    raise HTTPException(413, self._too_large().message)
            return message

        return limited

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body has more than {self.state.limits.body:,} bytes: send fewer texts at a time, or start "
            "the server with a larger --max-body",
            code="request_too_large",
        )

    def _is_allowed_origin(self, headers: dict[str, str]) -> bool:
        origin = headers.get("origin")
        return origin is not None and ("*" in self.settings.origins or origin in self.settings.origins)

    def _response_headers(self, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
        # Nothing that is sent is to be taken for a script.
        added = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        if self._is_allowed_origin(headers):
            added |= {
                "Access-Control-Allow-Origin": headers["origin"],
                "Access-Control-Allow-Methods": "GET, POST",
                "Access-Control-Allow-Headers": "Authorization, Content-Type",
                "Vary": "Origin",
            }
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in added.items()]

    def _record(self, scope: Scope, status: int, seconds: float, facts: dict[str, Any]) -> None:
        route = scope.get("route")
        # By the route and not by the path, of which there are any number.
        path = getattr(route, "path", "other")
        self.state.metrics.count("etymon_requests_total", path=path, status=str(status))
        self.state.metrics.observe("etymon_request_seconds", seconds, path=path)
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "method": scope["method"],
            "path": path,
            "status": status,
            "seconds": round(seconds, 4),
            **(facts.get("usage") or {}),
        }
        if self.state.logs_texts and "texts" in facts:
            line["texts"] = [text[:LONGEST_LOGGED] for text in facts["texts"]]
        logger.info(json.dumps(line, ensure_ascii=True))
