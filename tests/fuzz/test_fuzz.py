"""Damaged inputs of every kind break no promise, and the engine would notice if they did. `make fuzz` tries many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.case import Case
from tests.fuzz.engine import Outcome, case_of, fault_of, run_cases
from tests.fuzz.kinds import KINDS
from tests.fuzz.workspace import Workspace

SECONDS = 10.0


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    space = Workspace(tmp_path_factory.mktemp("fuzz") / "space")
    space.make()
    return space


@pytest.mark.slow
def test_damaged_inputs_are_refused_in_one_line_and_leave_nothing_behind(space: Workspace) -> None:
    """As many inputs of a fixed seed as fit into ten seconds, and one of every kind whatever that takes."""
    first = list(run_cases(space.scratch.parent, 20, list(range(len(KINDS)))))
    more = list(run_cases(space.scratch.parent, 20, list(range(len(KINDS), 1000)), SECONDS))
    faults = [
        f"{each.kind}, case {each.number}: {each.fault}\n{each.input}" for each in first + more if each.fault
    ]
    assert {each.kind for each in first} == set(KINDS)
    assert not faults, "\n\n".join(faults)


def test_a_case_is_a_function_of_seed_and_number(space: Workspace) -> None:
    for number, kind in enumerate(KINDS):
        first, again = case_of(3, number, space), case_of(3, number, space)
        assert first == again and first[0] == kind
    texts = [case_of(seed, list(KINDS).index("texts"), space)[1] for seed in range(4)]
    assert any(text != texts[0] for text in texts)


ERROR = "etymon: error: no such file: a\n"


@pytest.mark.parametrize(
    ("case", "outcome", "fault"),
    [
        (Case([]), Outcome(2, "", ERROR), None),
        (Case([]), Outcome(0, "fine", "etymon: note: something"), None),
        (Case([]), Outcome(1, "", "Traceback (most recent call last):\nKeyError: 1"), "a traceback"),
        (Case([]), Outcome(139, "", ""), "exit code 139"),
        (Case([]), Outcome(2, "", ERROR * 2), "not told in one line"),
        (Case([]), Outcome(2, "", "what?"), "not told in one line"),
        (Case([]), Outcome(2, "", f"etymon: error: {'a' * 3000}"), "not told in one line"),
        (Case([], must_fail=True), Outcome(0, "", ""), "damaged weights were accepted"),
        (Case([]), Outcome(2, "", "etymon: error: no such file: \x1b[31m"), "control characters in an error"),
        (Case([]), Outcome(0, "\x1b[31m", ""), None),
        (Case([], is_terminal=True), Outcome(0, "\x1b[31m", ""), "control characters on a terminal"),
    ],
)
def test_broken_promises_are_noticed(case: Case, outcome: Outcome, fault: str | None, tmp_path: Path) -> None:
    found = fault_of(case, outcome, tmp_path)
    assert found is None if fault is None else fault in (found or "")


def test_what_was_half_written_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text('a,b\n"1')
    assert "cannot be read back" in (fault_of(Case([], [out]), Outcome(0, "", ""), tmp_path) or "")
    assert "by a command that failed" in (fault_of(Case([], [out]), Outcome(2, "", ERROR), tmp_path) or "")
    (tmp_path / ".out.csv.123.partial").touch()
    assert "half-written" in (fault_of(Case([]), Outcome(0, "", ""), tmp_path) or "")
