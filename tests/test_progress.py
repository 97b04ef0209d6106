"""Progress displays: what they say, how often, and that a narrow or dumb terminal does no harm."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from etymon.display import display_width
from etymon.errors import EtymonError
from etymon.training import progress as module
from etymon.training.progress import LiveProgress, PlainProgress, Progress, format_value, make_progress

VALUES = {"loss": 2.5, "bits_per_byte": 1.25, "tokens_per_second": 12_345.0, "mfu": 0.31, "memory": 1.5e9}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(steps: range, seconds_per_step: float, total: int | None = 100) -> list[str]:
    stream, clock = io.StringIO(), Clock()
    display = PlainProgress(stream, clock)
    display.start(total, "title")
    for step in steps:
        clock.now += seconds_per_step
        display.update(step, VALUES)
    display.close()
    display.close()
    assert stream.getvalue().replace("\n", "").isprintable()
    return stream.getvalue().splitlines()


def test_plain_prints_each_tenth_when_fast():
    lines = plain(range(1, 101), 0.001)
    assert lines[0] == "title: 100 steps"
    assert [line.split()[2] for line in lines[1:]] == [
        "1/100",
        *(f"{10 * tenth}/100" for tenth in range(1, 11)),
    ]
    assert lines[-1].endswith("loss 2.500  1.250 bits/byte  12.3k tokens/s  MFU 31.0%  1.5 GB")


def test_plain_prints_every_ten_seconds_when_slow():
    lines = plain(range(1, 51), 1.0, total=100_000)
    assert [line.split()[2] for line in lines[1:]] == [f"{step}/100,000" for step in (1, 11, 21, 31, 41, 50)]
    assert "1d03h left" in lines[3]


def test_plain_without_a_known_end():
    lines = plain(range(1, 12), 1.0, total=None)
    assert lines == ["title"] + [
        f"step {step}  loss 2.500  1.250 bits/byte  12.3k tokens/s  MFU 31.0%  1.5 GB" for step in (1, 11)
    ]


def test_time_left_of_a_resumed_run_counts_only_its_own_steps():
    lines = plain(range(900, 1000, 50), 50.0, total=1000)
    assert "50s left" in lines[-1]


def test_missing_values_keep_their_last_report():
    stream = io.StringIO()
    display = PlainProgress(stream, Clock())
    display.start(2, "title")
    display.update(1, {"loss": 3.0, "bits_per_byte": 2.0})
    display.update(2, {"loss": 2.0, "stage": "long", "gradient_norm": 0.123456})
    assert (
        stream.getvalue()
        .splitlines()[-1]
        .endswith("loss 2.000  2.000 bits/byte  stage long  gradient norm 0.1235")
    )


@pytest.mark.parametrize("width", [1, 5, 12, 20, 34, 60, 200])
def test_live_display_never_wraps(width):
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False, color_system=None)
    run = module._Run(100, "a rather long title of a run", Clock())
    run.update(50, VALUES)
    console.print(module._Panel(run), end="")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    if width >= 34:
        assert "50%" in lines[0]
        assert "1.250 bits/byte" in lines[1]


@pytest.mark.parametrize("width", [1, 5, 12, 20, 34, 60, 200])
def test_live_display_in_chinese_fits_the_cells_of_the_terminal(width, monkeypatch):
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False, color_system=None)
    run = module._Run(100, "在评论数据上预训练一个不太大的模型", Clock())
    run.update(50, VALUES)
    console.print(module._Panel(run), end="")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(display_width(line) <= width for line in lines)
    if width >= 34:
        assert "第 50/100 步" in lines[0]
        assert "1.250 比特/字节" in lines[1]


def test_live_display_from_start_to_close():
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    display = LiveProgress(console)
    display.note("before")
    display.start(4, "title")
    for step in range(1, 5):
        display.update(step, VALUES)
        display.note(f"[bold]note {step}[/bold]")
    display.close()
    display.close()
    display.update(5, VALUES)
    output = stream.getvalue()
    assert "before\n" in output
    assert "[bold]note 4[/bold]" in output
    assert "100%" in output
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1  # the cursor comes back


def test_notebook_display_in_a_real_kernel():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = f"""
import sys
sys.path.insert(0, {str(Path(module.__file__).parents[2])!r})
from etymon.training.progress import make_progress
display = make_progress()
display.start(4, "title")
for step in range(1, 5):
    display.update(step, {{"loss": 5.0 - step}})
display.note("saved")
display.close()
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown, note = notebook.cells[0].outputs
    assert shown.data["text/plain"] == f"title  {'█' * 30}  100%  step 4/4\nloss 1.000"
    assert note.text == "saved\n"


def test_kinds(monkeypatch):
    assert type(make_progress("silent")) is Progress
    assert isinstance(make_progress("plain"), PlainProgress)
    assert isinstance(make_progress("rich"), LiveProgress)
    with pytest.raises(EtymonError, match="did you mean 'plain'"):
        make_progress("plane")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("terminal", "name", "expected"),
    [(True, "xterm", LiveProgress), (True, "dumb", PlainProgress), (False, "xterm", PlainProgress)],
)
def test_auto_looks_at_the_terminal(monkeypatch, terminal, name, expected):
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr(sys, "stderr", Stream())
    monkeypatch.setenv("TERM", name)
    assert isinstance(make_progress(), expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("memory", 640e6, "640 MB"),
        ("memory", 999_700_000.0, "1 GB"),
        ("tokens_per_second", 999.0, "999 tokens/s"),
        ("tokens_per_second", 999_700.0, "1M tokens/s"),
        ("mfu", "unknown", "MFU unknown"),
        ("learning_rate", 0.0006, "rate 6.00e-04"),
        ("loss", float("nan"), "loss nan"),
    ],
)
def test_values(name, value, expected):
    assert format_value(name, value) == expected
