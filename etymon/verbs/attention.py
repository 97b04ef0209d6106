"""`etymon attention`: who attends to whom, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.errors import EtymonError
from etymon.verbs.options import opens_models
from etymon.verbs.terminal import print_json

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.report.plots import AttentionMap

FORMATS = (".html", ".svg", ".png")


@dataclass(frozen=True)
class Looked:
    """The maps, and the file with the picture if there is one."""

    maps: list[AttentionMap]
    out: Path | None


@opens_models
def attention(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    source: Annotated[str, "the text to read"],
    target: Annotated[
        Sequence[str] | str, "what is written (its own text otherwise); for an encoder a second text"
    ] = (),
    *,
    out: Annotated[Path | None, "the picture: .html to look around in, .svg or .png for one map"] = Path(
        "attention.html"
    ),
    kind: Annotated[str | None, "of a picture: cross, encoder, decoder or self (the first there is)"] = None,
    layer: Annotated[int | None, "of a picture: a layer, from 1 (the mean of all)"] = None,
    head: Annotated[int | None, "of a picture: a head, from 1 (the mean of all)"] = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
) -> Looked:
    """Draw who attends to whom.

    Cross-attention of an encoder-decoder (the alignment of a translation) and self-attention of everybody, tokens labelled,
    layers and heads to choose from in the page; `--out map.png --layer 3 --head 1` draws one map.
    """
    from etymon.files import atomic_write
    from etymon.lab.attention_map import attended
    from etymon.report.page import attention_page
    from etymon.report.plots import attention_picture
    from etymon.verbs.opening import opened

    written = [target] if isinstance(target, str) else list(target)
    if len(written) > 1:
        raise EtymonError(
            f"there are {len(written)} targets: put a text of several words into quotation marks"
        )
    out = None if out is None else Path(out)
    if out is not None and out.suffix.lower() not in FORMATS:
        raise EtymonError(f"{out} ends in {out.suffix or 'nothing'}: end it in {', '.join(FORMATS)}")
    page = out is not None and out.suffix.lower() == ".html"
    if page and (kind is not None or layer is not None or head is not None):
        raise EtymonError("a page has every kind, layer and head: give them for a picture (--out map.png)")
    loaded = opened(model, device)
    maps = attended(loaded, source, written[0] if written else None)
    if out is not None and not page:
        chosen = next((one for one in maps if kind in (None, one.kind)), None)
        if chosen is None:
            raise EtymonError(
                f"there is no {kind} attention here: there is {', '.join(one.kind for one in maps)}"
            )
        for name, number, count in (
            ("layer", layer, len(chosen.weights)),
            ("head", head, chosen.weights.shape[1]),
        ):
            if number is not None and not 1 <= number <= count:
                raise EtymonError(f"{name} is {number}: there are {count}, from 1 on")
        attention_picture(
            out, chosen, None if layer is None else layer - 1, None if head is None else head - 1
        )
    elif out is not None:
        title = f"Attention of {loaded.family.title}"
        text = attention_page(title, " → ".join([source, *written]), maps)
        with atomic_write(out) as file:
            file.write(text)
    return Looked(maps, out)


def present(
    result: Looked, json: Annotated[bool, "print the weights as JSON, a record a kind"] = False
) -> None:
    if json:
        for one in result.maps:
            record = {
                "kind": one.kind, "queries": one.queries, "keys": one.keys, "weights": one.weights.round(6).tolist()
            }  # fmt: skip
            print_json(record)
        return
    for one in result.maps:
        layers, heads = one.weights.shape[:2]
        print(f"{one.kind}: {len(one.queries)} x {len(one.keys)} tokens, {layers} layers of {heads} heads")
    if result.out is not None:
        print(f"{result.out} has the picture")
