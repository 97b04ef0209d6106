"""Moving pictures of a terminal, made from what commands really printed.

    python -m tests.terminal_picture --record docs/pictures/run.json FOLDER   # runs the commands of SESSION in FOLDER
    python -m tests.terminal_picture                                          # draws docs/pictures/run.svg from the recording

A recording is a list of [seconds, text] as it came from a pseudo-terminal. The picture plays it faster, and leaves nothing out but pauses.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
COLUMNS, ROWS = 92, 24
SESSION = (
    "etymon pretrain gpt2 --data my.txt --budget 90s --set shape.dim=128 --set shape.layers=2",
    'etymon generate runs/gpt2-pocket "The function returns" --temperature 0.8 --seed 3 --max-new-tokens 30',
)
Event = tuple[float, str]
CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
# Of the palette that rich uses, by the number of the colour.
COLOURS = {
    "31": "red",
    "32": "green",
    "33": "yellow",
    "35": "pink",
    "36": "cyan",
    "90": "dim",
    "2": "dim",
    "1": "bold",
}


def record(commands: Sequence[str], folder: Path) -> list[Event]:
    """Runs the commands in a terminal of fixed size; what they print, with the seconds since the first began."""
    events: list[Event] = []
    start = time.monotonic()
    for command in commands:
        events.append((time.monotonic() - start, f"$ {command}\r\n"))
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        settings = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        environment = {**os.environ, **settings}
        words = [sys.executable, "-m", "etymon", *shlex.split(command)[1:]]
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not data:
                break
            events.append((time.monotonic() - start, decoder.decode(data)))
        os.close(master)
        if process.wait() != 0:
            raise SystemExit(f"{command} failed")
        events.append((time.monotonic() - start, "\r\n"))
    return events


class Screen:
    """As much of a terminal as live displays use: lines, colours, going up and clearing."""

    def __init__(self) -> None:
        self.lines: list[list[tuple[str, str]]] = [[]]
        self.row = self.column = 0
        self.style = ""

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            control = CONTROL.match(text, at)
            if control is not None:
                self._obey(control[2], control[1])
                at = control.end()
                continue
            self._put(text[at])
            at += 1

    def _obey(self, letter: str, argument: str) -> None:
        if letter == "A":
            self.row = max(0, self.row - int(argument or 1))
        elif letter == "K":
            line = self.lines[self.row]
            del line[0 if argument == "2" else self.column :]
        elif letter == "m":
            codes = argument.split(";")
            self.style = next(
                (COLOURS[code] for code in codes if code in COLOURS), "" if codes != ["1"] else "bold"
            )

    def _put(self, letter: str) -> None:
        if letter == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append([])
        elif letter == "\r":
            self.column = 0
        elif letter.isprintable():
            line = self.lines[self.row]
            line += [(" ", "")] * (self.column - len(line))
            line[self.column : self.column + 1] = [(letter, self.style)]
            self.column += 1

    def shown(self) -> list[list[tuple[str, str]]]:
        """The last lines, each as runs of one style."""
        lines = self.lines[:-1] if not self.lines[-1] else self.lines
        result = []
        for line in lines[-ROWS:]:
            runs: list[tuple[str, str]] = []
            for letter, style in line:
                if runs and runs[-1][1] == style:
                    runs[-1] = (runs[-1][0] + letter, style)
                else:
                    runs.append((letter, style))
            result.append(runs)
        return result


def frames(
    events: Sequence[Event], most: int = 44, longest_pause: float = 1.2, speed: float = 6.0
) -> Iterator[tuple[float, list[list[tuple[str, str]]]]]:
    """(seconds in the picture, what is on the screen) of at most about `most` moments."""
    screen, at, before = Screen(), 0.0, 0.0
    moments = []
    for seconds, text in events:
        at += min((seconds - before) / speed, longest_pause)
        before = seconds
        screen.feed(text)
        moments.append((at, screen.shown()))
    gap = at / most
    last = -gap
    for number, (moment, shown) in enumerate(moments):
        is_last = number + 1 == len(moments) or moments[number + 1][0] - last >= 2 * gap
        if moment - last >= gap or is_last:
            last = moment
            yield moment, shown


STYLE = """
.t { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; fill: #d8dee9; }
.bold { font-weight: 700; fill: #ffffff; } .dim { fill: #8b96a8; } .cyan { fill: #67e8f9; } .green { fill: #86efac; }
.yellow { fill: #fde68a; } .red { fill: #fca5a5; } .pink { fill: #f9a8d4; } .prompt { fill: #86efac; }
"""


def draw(events: Sequence[Event], title: str, hold: float = 4.0) -> str:
    """An `<svg>` that plays the recording again and again."""
    moments = list(frames(events))
    total = moments[-1][0] + hold
    line_height, width = 17, 8 * COLUMNS + 32
    height = line_height * max(len(shown) for _, shown in moments) + 58
    rules, groups = [STYLE], []
    for number, (begin, shown) in enumerate(moments):
        end = moments[number + 1][0] if number + 1 < len(moments) else total
        first, last = 100 * begin / total, 100 * end / total
        if number == 0:
            first = 0.0
        # Frames are shown one after the other; each is there from its beginning to the next one's.
        keys = f"0%,{first:.2f}%{{visibility:hidden}}{first + 0.01:.2f}%,{last:.2f}%{{visibility:visible}}{min(100, last + 0.01):.2f}%,100%{{visibility:hidden}}"
        if number == 0:
            keys = f"0%,{last:.2f}%{{visibility:visible}}{last + 0.01:.2f}%,100%{{visibility:hidden}}"
        if number + 1 == len(moments):
            keys = f"0%,{first:.2f}%{{visibility:hidden}}{first + 0.01:.2f}%,100%{{visibility:visible}}"
        rules.append(
            f"@keyframes f{number}{{{keys}}} #f{number}{{animation:f{number} {total:.1f}s infinite step-end}}"
        )
        texts = []
        for row, runs in enumerate(shown):
            spans = "".join(_span(text, style) for text, style in runs)
            if spans:
                texts.append(
                    f'<text class="t" x="16" y="{50 + line_height * row}" xml:space="preserve">{spans}</text>'
                )
        groups.append(f'<g id="f{number}">{"".join(texts)}</g>')
    # Who wants no movement sees the end.
    last_frame = len(moments) - 1
    rules.append(
        f"@media (prefers-reduced-motion: reduce){{g[id]{{animation:none!important;visibility:hidden}}#f{last_frame}{{visibility:visible}}}}"
    )
    dots = "".join(
        f'<circle cx="{18 + 18 * place}" cy="17" r="5.5" fill="{colour}"/>'
        for place, colour in enumerate(("#f87171", "#fbbf24", "#4ade80"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><style>{''.join(rules)}</style>"
        f'<rect width="{width}" height="{height}" rx="9" fill="#1b2230"/>{dots}{"".join(groups)}</svg>\n'
    )


def _span(text: str, style: str) -> str:
    if text.startswith("$ ") and not style:
        return f'<tspan class="prompt">$ </tspan><tspan class="bold">{escape(text[2:])}</tspan>'
    return f'<tspan class="{style}">{escape(text)}</tspan>' if style else escape(text)


TITLE = "A terminal: a small GPT-2 is trained on a text and then writes on from a prompt"


def picture(recording: Path) -> str:
    return draw(
        [(seconds, text) for seconds, text in json.loads(recording.read_text(encoding="utf-8"))], TITLE
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        events = [[round(seconds, 2), text] for seconds, text in record(SESSION, Path(sys.argv[3]))]
        Path(sys.argv[2]).write_text(json.dumps(events, ensure_ascii=False) + "\n", encoding="utf-8")
    (PICTURES / "run.svg").write_text(picture(PICTURES / "run.json"), encoding="utf-8")
