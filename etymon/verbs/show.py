"""`etymon show`: what a model folder holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from etymon.verbs.options import opens_models
from etymon.verbs.terminal import print_json


@dataclass
class Shown:
    folder: Path
    family: str
    architecture: str
    parameters: int
    heads: tuple[str, ...]
    shape: dict[str, Any]
    tokenizer: dict[str, Any]
    weights: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)


@opens_models
def show(
    folder: Annotated[str | Path, "model folder, run folder or hub id"],
) -> Shown:
    """Say what a model folder holds: family, shape, parameters, tokenizer, training history."""
    from etymon.checkpoints.folder import read_config
    from etymon.checkpoints.weights import ADAPTER_FILES, MODEL_FILES, open_weights
    from etymon.families.loading import load, model_folder, read_history
    from etymon.families.recognising import class_names

    place = model_folder(folder)
    model = load(place)
    tokenizer = model.tokenizer
    adapted = model.lora is not None
    files = open_weights(place, ADAPTER_FILES if adapted else MODEL_FILES).files
    return Shown(
        folder=place,
        family=model.family.title,
        architecture=f"LoRA on {model.lora_base}"
        if adapted
        else (class_names(read_config(place)) or ["?"])[0],
        parameters=model.parameter_count(),
        heads=tuple(sorted(model.asked)),
        shape=model.shape_fields(),
        tokenizer={}
        if tokenizer is None
        else {"kind": tokenizer.kind, "tokens": tokenizer.size, **tokenizer.roles},
        weights={"files": [file.name for file in files], "bytes": sum(file.stat().st_size for file in files)},
        history=read_history(place),
    )


def present(result: Shown, json: Annotated[bool, "print JSON"] = False) -> None:
    if json:
        return print_json(result, indent=2, ascii=True)
    print(f"{result.family} ({result.architecture}), {result.parameters:,} parameters")
    print(f"folder     {result.folder}")
    print(f"heads      {', '.join(result.heads) or 'none'}")
    print(f"shape      {_row(result.shape)}")
    print(f"tokenizer  {_row(result.tokenizer) or 'none in the folder'}")
    print(f"weights    {', '.join(result.weights['files'])}, {result.weights['bytes'] / 1e6:,.1f} MB")
    if not result.history:
        print("history    not known")
    for entry in result.history:
        print(f"trained    {entry.get('objective', '?')} on {entry.get('data', '?')}")
        for part in ("training", "metrics"):
            if entry.get(part):
                print(f"           {_row(entry[part])}")


def _row(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
        if value is not None
    )
