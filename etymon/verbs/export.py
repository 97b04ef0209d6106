"""`etymon export`: a model for another runtime, checked by that runtime before it is called done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etymon.display import align_left
from etymon.errors import EtymonError
from etymon.files import format_bytes
from etymon.settings import JsonOptions, ModelLike, OpeningOptions, argument, option, settings
from etymon.verbs.terminal import print_json, result_text, say
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
    if isinstance(options.model, str | Path):
        name = Path(options.model).resolve().name
    else:
        name = options.model.family.name
    out = Path(f"{name}-{options.to}" if options.out is None else options.out)
    require_new_folder(out)
    is_open = not isinstance(options.model, str | Path)
    model = options.model if is_open else load(model_folder(options.model))
    return export_model(model, target, quantization, out, options.head)


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
    """A line a family, with the heads that each target takes; reasons below."""
    from etymon.exports import TARGETS, get_target

    if options.json:
        return print_json(cells, ascii=True)
    width = 24
    print(align_left("", 16) + "".join(align_left(name, width) for name in TARGETS).rstrip())
    for family in dict.fromkeys(cell.family for cell in cells):
        texts = []
        for target in TARGETS:
            mine = [cell for cell in cells if (cell.family, cell.target) == (family, target)]
            heads = [cell.head for cell in mine if not cell.reason]
            texts.append(result_text("all") if len(heads) == len(mine) else _shorten(heads, width))
        print("".join(map(align_left, [family, *texts], [16] + [width] * len(texts))).rstrip())
    print()
    for name in TARGETS:
        print(f"{name}: --quantize {', '.join(get_target(name).quantizations)}")
    for reason in dict.fromkeys(f"{cell.target}: {cell.reason}" for cell in cells if cell.reason):
        print(reason)


def _shorten(heads: list[str], width: int) -> str:
    text = ", ".join(heads) or "-"
    return text if len(text) < width else f"{len(heads)} heads"
