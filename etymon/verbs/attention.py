"""`etymon attention`: who attends to whom, as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.errors import EtymonError
from etymon.report.inline import Inline, Picture
from etymon.settings import (
    ComputeOptions,
    JsonOptions,
    ModelLike,
    Spelling,
    Words,
    argument,
    option,
    settings,
)
from etymon.verbs.terminal import print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.report.page import Section
    from etymon.report.plots import AttentionMap

FORMATS = (".html", ".svg", ".png")


@dataclass(frozen=True)
class AttentionMaps(Inline):
    """The maps, and the file with the picture if there is one."""

    maps: list[AttentionMap]
    out: Path | None

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.plots import attention_svg

        yield Picture(attention_svg(self.maps[0]), caption="" if self.out is None else str(self.out))


@settings
class AttentionOptions(ComputeOptions, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id")
    source: str = argument("the text to read")
    target: Words = argument(
        "the text to write (the model's own otherwise); for an encoder, a second text", ()
    )
    out: Annotated[Path | None, Spelling("str | Path | None", Path)] = option(
        Path("attention.html"), "the picture: .html to look around in, .svg or .png for one map"
    )
    kind: str | None = option(None, "for a picture: cross, encoder, decoder or self (the first there is)")
    layer: int | None = option(None, "for a picture: which layer, from 1 (the mean of all)")
    head: int | None = option(None, "for a picture: which head, from 1 (the mean of all)")


@verb(AttentionOptions)
def attention(options: AttentionOptions) -> AttentionMaps:
    """Draws the cross-attention of an encoder-decoder (the alignment of a translation) and the
    self-attention of any model. In the page you choose layers and heads; `--out map.png --layer 3 --head 1`
    draws one map.
    """
    from etymon.files import atomic_write
    from etymon.lab.attention_map import attention_maps
    from etymon.report.page import attention_page
    from etymon.report.plots import attention_picture
    from etymon.verbs.load_inputs import load_model

    source, target, out = options.source, options.target, options.out
    kind, layer, head = options.kind, options.layer, options.head
    if len(target) > 1:
        raise EtymonError(
            f"there are {len(target)} targets: put a text of several words into quotation marks"
        )
    if out is not None and out.suffix.lower() not in FORMATS:
        raise EtymonError(f"{out} ends in {out.suffix or 'nothing'}: end it in {', '.join(FORMATS)}")
    # A page holds all maps and is looked around in; a picture is one of them, for a paper.
    page = out is not None and out.suffix.lower() == ".html"
    if page and (kind is not None or layer is not None or head is not None):
        raise EtymonError("a page has every kind, layer and head: give them for a picture (--out map.png)")
    model = load_model(options.model, options)
    maps = attention_maps(model, source, target[0] if target else None)
    if out is not None and not page:
        # The first there is: of an encoder-decoder that is cross-attention, which people come for.
        chosen = next((candidate for candidate in maps if kind in (None, candidate.kind)), None)
        if chosen is None:
            kinds = ", ".join(candidate.kind for candidate in maps)
            raise EtymonError(f"there is no {kind} attention here: there is {kinds}")
        layers, heads = chosen.weights.shape[:2]
        for name, number, count in (("layer", layer, layers), ("head", head, heads)):
            if number is not None and not 1 <= number <= count:
                raise EtymonError(f"{name} is {number}: there are {count}, from 1 on")
        attention_picture(
            # People count layers from 1, arrays from 0.
            out,
            chosen,
            None if layer is None else layer - 1,
            None if head is None else head - 1,
        )
    elif out is not None:
        title = f"Attention of {model.family.title}"
        text = attention_page(title, " → ".join([source, *target]), maps)
        with atomic_write(out) as file:
            file.write(text)
    return AttentionMaps(maps, out)


def present(result: AttentionMaps, options: AttentionOptions) -> None:
    if options.json:
        for each in result.maps:
            # Six digits: all that a float has would make the output more than twice as long.
            weights = each.weights.round(6).tolist()
            print_json({"kind": each.kind, "queries": each.queries, "keys": each.keys, "weights": weights})
        return
    for each in result.maps:
        layers, heads = each.weights.shape[:2]
        say(f"{each.kind}: {len(each.queries)} x {len(each.keys)} tokens, {layers} layers of {heads} heads")
    if result.out is not None:
        say(f"{result.out} has the picture")
