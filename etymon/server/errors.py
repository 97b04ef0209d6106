"""Refusals in OpenAI's form: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etymon.errors import visible

LONGEST = 600
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}
"""Of refusals that name none of their own: clients decide by the code, and not by the words."""


class ApiError(Exception):
    """A refusal with its status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        # It may quote what was sent, which may steer a terminal.
        message = visible(self.message, breaks="")
        # A name of a megabyte is not sent back.
        if len(message) > LONGEST:
            message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
        # The type of everything that is the server's own fault.
        kind = TYPES.get(self.status, "server_error")
        code = self.code or CODES.get(self.status, "server_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": code}}


def complaint_of(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """What pydantic says of a request, in one line, and the name of the field."""
    first = errors[0]
    # Members of a union complain one after the other, all about the same field.
    place = [str(part) for part in first.get("loc", ()) if part != "body"]
    field = visible(place[0], breaks="")[:100] if place else None
    message = str(first.get("msg", "the request cannot be read")).removeprefix("Value error, ")
    if first.get("type") == "json_invalid":
        return "the body is no JSON: send an object as /docs shows it", None
    if first.get("type") == "extra_forbidden":
        return f"there is no field {field!r}: leave it out, or see /docs for those that there are", field
    if first.get("type") == "missing" and field is None:
        return "the body is missing: send a JSON object with the header Content-Type: application/json", None
    return (f"{field}: {message}" if field else message), field
