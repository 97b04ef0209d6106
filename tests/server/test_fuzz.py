"""Damaged requests break nothing. `make fuzz-serve` sends many more."""

from __future__ import annotations

from pathlib import Path

import httpx2

from tests.server.conftest import Running, wait_until
from tests.server.fuzzing import VALID, Case, case, dump, fault_of, send


def test_damaged_requests_are_refused_and_tell_nothing(server: Running, folders: dict[str, Path]) -> None:
    sent = list(send(server.url, folders["gpt2"].parent, 20, range(240)))
    faults = [f"case {number}: {asked}: {fault}" for number, asked, _, fault in sent if fault]
    assert not faults, "\n".join(faults)
    assert {200, 400} <= {status for _, _, status, _ in sent}
    wait_until(lambda: server.state.scheduler.rows == 0)


def test_what_is_damaged_was_right(server: Running) -> None:
    """Otherwise all would be refused for one reason."""
    for path, body in VALID.items():
        answer = server.post(
            path, **{key: value for key, value in body.items() if key not in ("best_of", "targets")}
        )
        assert answer.status_code == 200, (path, answer.text)


def test_the_engine_would_notice() -> None:
    assert case(3, 17) == case(3, 17) != case(4, 17)
    asked = Case("POST", "/fill", dump({}))
    assert fault_of(asked, httpx2.Response(500, text="x"), []) == "status 500: x"
    assert "tells of" in str(
        fault_of(asked, httpx2.Response(200, text="in /home/secret/x"), ["/home/secret"])
    )
    assert "OpenAI" in str(fault_of(asked, httpx2.Response(400, text="no"), []))
    assert fault_of(asked, httpx2.Response(400, json={"error": {"message": "a"}}), []) is None
