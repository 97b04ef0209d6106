"""Counts and times for Prometheus, in its text format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from threading import Lock

# Upper ends of the buckets of histograms.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and histograms by name and labels. Any thread may count."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counters: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._buckets: dict[tuple[str, Labels], list[int]] = {}
        self._sums: defaultdict[tuple[str, Labels], float] = defaultdict(float)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        with self._lock:
            self._counters[name, tuple(sorted(labels.items()))] += amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Adds a time to a histogram."""
        # In one order, so that equal labels are one row.
        key = name, tuple(sorted(labels.items()))
        # Counted in its own bucket; the text adds them up, as Prometheus wants them.
        place = sum(end < seconds for end in SECONDS)
        with self._lock:
            buckets = self._buckets.setdefault(key, [0] * (len(SECONDS) + 1))
            buckets[place] += 1
            self._sums[key] += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All figures, and those of the moment."""
        lines: list[str] = []
        kinds: set[str] = set()

        def add(name: str, kind: str, value: float, labels: Labels = (), ending: str = "") -> None:
            if name not in kinds:
                kinds.add(name)
                lines.append(f"# TYPE {name} {kind}")
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            lines.append(f"{name}{ending}{'{' + inner + '}' if inner else ''} {value:g}")

        for name, value in gauges.items():
            add(name, "counter" if name.endswith("_total") else "gauge", value)
        with self._lock:
            for (name, labels), value in sorted(self._counters.items()):
                add(name, "counter", value, labels)
            for (name, labels), buckets in sorted(self._buckets.items()):
                total = 0
                for end, number in zip((*map(str, SECONDS), "+Inf"), buckets, strict=True):
                    total += number
                    add(name, "histogram", total, (*labels, ("le", end)), "_bucket")
                add(name, "histogram", self._sums[name, labels], labels, "_sum")
                add(name, "histogram", total, labels, "_count")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
