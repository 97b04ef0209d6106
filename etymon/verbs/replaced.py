"""`etymon replaced`: which tokens of a text a discriminator takes for replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.errors import EtymonError
from etymon.verbs.options import opens_models
from etymon.verbs.terminal import print_json

if TYPE_CHECKING:
    from etymon.families.model import Model


@dataclass(frozen=True)
class Suspect:
    """A token of a text, where it stands, and how likely it is not the original one."""

    token: str
    start: int
    stop: int
    probability: float


@dataclass(frozen=True)
class Inspection:
    text: str
    tokens: list[Suspect]


@opens_models
def replaced(
    model: Annotated[str | Path | Model, "folder or hub id of a discriminator (ELECTRA)"],
    texts: Annotated[Sequence[str] | str, "texts to look at; - reads lines from standard input"] = (),
    *,
    file: Annotated[Path | None, "a file with a text a line"] = None,
    batch_size: Annotated[int, "texts that are computed together"] = 32,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    on_note: Callable[[str], None] | None = None,
) -> list[Inspection]:
    """Say which tokens of a text were replaced.

    A discriminator (ELECTRA, or any encoder trained with the objective `replaced`) gives every token the probability that
    it is not the one that stood there.
    """
    import torch

    from etymon.generation.decoding import eval_mode
    from etymon.nn.batch import Batch
    from etymon.verbs.opening import opened, texts_of

    if batch_size < 1:
        raise EtymonError(f"batch_size is {batch_size}: it must be 1 or more")
    asked = texts_of(texts, file, on_note=on_note)
    loaded = opened(model, device)
    if "replaced" not in loaded.heads:
        raise EtymonError(
            f"{model if isinstance(model, str | Path) else 'this model'} is no discriminator: train one with "
            "`etymon pretrain electra`, or give its discriminator's folder"
        )
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    found = []
    with torch.inference_mode(), eval_mode(loaded):
        for first in range(0, len(asked), batch_size):
            some = asked[first : first + batch_size]
            read = [tokenizer.offsets(text) for text in some]
            framed = [tokenizer.framing.frame(ids) for ids, _, _ in read]
            batch = Batch.of(
                [each.ids for each in framed],
                segments=[each.segments for each in framed],
                device=loaded.device,
            )
            hidden, _ = loaded.hidden(batch)
            probabilities = loaded.read("replaced", hidden, batch).sigmoid().split(batch.layout.lengths)
            for text, (_, starts, stops), each, row in zip(some, read, framed, probabilities, strict=True):
                own = row.cpu().numpy()[~each.special].tolist()
                tokens = zip(starts.tolist(), stops.tolist(), own, strict=True)
                found.append(Inspection(text, [Suspect(text[a:b], a, b, p) for a, b, p in tokens]))
    return found


def present(
    result: list[Inspection],
    threshold: Annotated[float, "tokens above this probability are marked"] = 0.5,
    json: Annotated[bool, "print a JSON record a text"] = False,
) -> None:
    if json:
        return print_json(*result)
    for number, one in enumerate(result):
        if number:
            print()
        print(one.text)
        for token in one.tokens:
            mark = "  replaced" if token.probability > threshold else ""
            print(f"{token.probability:8.2%}  {token.token.strip()}{mark}")
