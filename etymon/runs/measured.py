"""What `evaluate --suite`, `pairs`, `probe` and `context` have kept of a model, for its card on the hub."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.families.card import HubResult
from etymon.files import read_json, some

RESULTS = "results.json"


def find_results(run: Path) -> list[Path]:
    """The results that were written into a run's folder, or into a folder of it."""
    return sorted([*run.glob(RESULTS), *run.glob(f"*/{RESULTS}")])


def read_results(
    run: Path, places: Mapping[Path, str], given: Sequence[str | Path]
) -> dict[str, list[HubResult]]:
    """Results by revision. `places` has the folders that each revision's model goes by; rows of other models
    are passed over. `given` are files, or folders with a results.json, which have to have some."""
    # Files that were asked for come first, and fail where those of the run are passed over.
    results: dict[str, list[HubResult]] = {}
    wanted = [Path(path) / RESULTS if Path(path).is_dir() else Path(path) for path in given]
    for path in dict.fromkeys([*wanted, *find_results(run)]):
        if path in wanted and not path.is_file():
            raise EtymonError(f"no such file: {path}; give a results.json, or the folder that has it")
        try:
            rows = list(_results_by_model(read_json(path)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if path in wanted:
                raise EtymonError(
                    f"{path} is no results.json of evaluate --suite, pairs, probe or context"
                ) from error
            continue
        mine = [(_revision(name, places), result) for name, result in rows]
        if path in wanted and not any(revision for revision, _ in mine):
            names = some(sorted({name for name, _ in rows}), 3) or "no model"
            raise EtymonError(f"{path} has no scores of this model, but of {names}: evaluate what you push")
        for revision, result in mine:
            if revision and result not in (listed := results.setdefault(revision, [])):
                listed.append(result)
    return results


def _revision(name: str, places: Mapping[Path, str]) -> str | None:
    """Which revision a row's model is: its folder by the name that it had then."""
    path = Path(name)
    for place, revision in places.items():
        # One part alone (`model`) may be anybody's.
        is_end = (
            not path.is_absolute() and len(path.parts) > 1 and place.parts[-len(path.parts) :] == path.parts
        )
        if is_end or path.resolve() == place:
            return revision
    return None


def _results_by_model(record: Mapping[str, Any]) -> Iterator[tuple[str, HubResult]]:
    """The name of a model and one figure of it, of whichever verb has written the file."""
    if "suite" in record:
        figures = _of_suite(record)
    elif "paradigms" in record:
        figures = _of_pairs(record)
    elif "tasks" in record:
        figures = _of_probe(record)
    elif "targets" in record:
        figures = _of_context(record)
    else:
        raise KeyError("suite")
    for name, result in figures:
        if math.isfinite(result.value):
            yield str(name), result


def _of_suite(record: Mapping[str, Any]) -> Iterator[tuple[str, HubResult]]:
    for row in record["rows"]:
        for part, score in row["scores"].items():
            ends = (score["low"], score["high"]) if score["low"] is not None else None
            yield row["name"], HubResult(f"{record['suite']}: {part}", score["metric"], score["value"], ends)


def _of_pairs(record: Mapping[str, Any]) -> Iterator[tuple[str, HubResult]]:
    for model in record["models"]:
        of = {"minimal pairs": model["overall"]} | {
            f"minimal pairs: {name}": field for name, field in model["fields"].items()
        }
        for name, measures in of.items():
            score = measures["sum"]
            yield (
                model["name"],
                HubResult(
                    name, f"accuracy by {model['method']}", score["value"], (score["low"], score["high"])
                ),
            )


def _of_probe(record: Mapping[str, Any]) -> Iterator[tuple[str, HubResult]]:
    for task in record["tasks"]:
        best = next(layer for layer in task["layers"] if layer["layer"] == task["best_layer"])
        value, margin = 100 * best["accuracy"], 100 * task["margin"]
        metric = f"accuracy of a probe of layer {best['layer']}"
        name = f"probe: {task['task']}, {task['reading']}"
        yield record["model"], HubResult(name, metric, value, (value - margin, value + margin))


def _of_context(record: Mapping[str, Any]) -> Iterator[tuple[str, HubResult]]:
    for model in record["models"]:
        value, margin = model["bits_per_byte"][-1], model["margins"][-1]
        name = f"text behind {model['lengths'][-1]} tokens"
        yield model["name"], HubResult(name, "bits per byte", value, (value - margin, value + margin))
