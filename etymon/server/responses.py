"""JSON as it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from etymon.files import json_text


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON: dataclasses at any depth, null for NaN and infinity."""
    body = json_text(value).encode("utf-8", "replace")
    return Response(body, status, dict(headers or {}), media_type="application/json")
