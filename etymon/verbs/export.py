"""`etymon export`: a model for another runtime, checked by that runtime before it is called done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etymon.display import align_left, display_width
from etymon.errors import EtymonError
from etymon.files import format_bytes
from etymon.settings import JsonOptions, ModelLike, OpeningOptions, argument, option, settings
from etymon.verbs.terminal import message_text, print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.exports import ExportCell
    from etymon.exports.writing import Exported


@settings
class ExportOptions(OpeningOptions, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id; none with --list", None)
    to: str | None = option(None, "the runtime: onnx, ctranslate2, gguf or torch")
    quantize: str | None = option(
        None, "number format of the weights: int8, fp16 ... (as they are; --list says what a runtime has)"
    )
    out: str | Path | None = option(None, "the folder to write (MODEL-RUNTIME in the current folder)")
    head: str | None = option(
        None, "the outputs to export: one of the model's heads, or states (its only head, or vocabulary)"
    )
    list: bool = option(False, "say what every family and head can become, and export nothing")


@verb(ExportOptions)
def export(options: ExportOptions) -> Exported | list[ExportCell]:
    """Before an export counts as done, its own runtime answers rows of 1, 7 and as many tokens as the model
    can read, one and three at a time, in English and Chinese. The largest difference and the share of best
    outputs that agree are printed and stored in export.json. If they are too far off, nothing is written.
    Each runtime is an extra: pip install 'etymon[onnx]'. With --list no model is opened.
    """
    from etymon.exports import TARGETS, export_cells

    if options.list:
        return export_cells()
    if options.model is None:
        raise EtymonError("there is no model to export: give its folder, or say --list")
    if options.to is None:
        raise EtymonError(f"say what to export to: --to {', '.join(TARGETS)}")
    from etymon.exports.writing import export_model, find_target, require_new_folder
    from etymon.families.loading import load, model_folder

    # Whatever can be refused is refused before a large model is read.
    target, quantization = find_target(options.to, options.quantize)
    out = Path(f"{_name_of(options.model)}-{options.to}" if options.out is None else options.out)
    require_new_folder(out)
    is_open = not isinstance(options.model, str | Path)
    model = options.model if is_open else load(model_folder(options.model))
    return export_model(model, target, quantization, out, options.head)


def _name_of(model: ModelLike) -> str:
    """What an export is called if nobody says: as its model, or as the run that the model is of."""
    if not isinstance(model, str | Path):
        return model.family.name
    folder = Path(model).resolve()
    # Of every run, the model is in a folder of this name.
    return folder.parent.name if folder.name == "model" else folder.name


def present(result: Exported | list[ExportCell], options: ExportOptions) -> None:
    if isinstance(result, list):
        return _present_cells(result, options)
    if options.json:
        return print_json([result], ascii=True)
    say(
        f"{result.family} ({result.head}) written to {result.folder}: {result.target}, "
        f"{result.quantization}, {format_bytes(result.bytes)}"
    )
    say(
        f"checked by {result.checked_by} on {result.check.rows} rows: worst difference {result.check.worst:.1e}, "
        f"{result.check.agreement:.1%} of the best outputs agree"
    )


def _present_cells(cells: list[ExportCell], options: ExportOptions) -> None:
    """A line a family, with the heads that each target takes; below, the reasons and whom they concern."""
    from etymon.exports import TARGETS, get_target

    if options.json:
        return print_json(cells, ascii=True)
    rows = [["", *TARGETS]]
    for family in dict.fromkeys(cell.family for cell in cells):
        mine = [[cell for cell in cells if (cell.family, cell.target) == (family, name)] for name in TARGETS]
        rows.append([family, *map(_heads_text, mine)])
    widths = [max(map(display_width, column)) + 2 for column in zip(*rows, strict=True)]
    for row in rows:
        print("".join(map(align_left, row, widths)).rstrip())
    print()
    for name in TARGETS:
        print(f"{name}: --quantize {', '.join(get_target(name).quantizations)}")
    families: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.reason:
            families.setdefault((cell.target, cell.reason), []).append(cell.family)
    for (name, reason), concerned in families.items():
        print(f"{name}: {message_text(reason)} ({', '.join(dict.fromkeys(concerned))})")


def _heads_text(cells: list[ExportCell]) -> str:
    """The heads that can be exported, or those that cannot, whichever are fewer."""
    heads = [cell.head for cell in cells if not cell.reason]
    missing = [cell.head for cell in cells if cell.reason]
    if not missing:
        return result_text("all")
    return (
        result_text(f"all but {', '.join(missing)}") if len(missing) < len(heads) else ", ".join(heads) or "-"
    )
