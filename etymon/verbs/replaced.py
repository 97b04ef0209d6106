"""`etymon replaced`: which tokens of a text a discriminator takes for replaced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etymon.errors import EtymonError
from etymon.settings import ComputeOptions, JsonOptions, ModelLike, Notify, Texts, argument, option, settings
from etymon.settings.reading import EncodingSettings
from etymon.verbs.terminal import print_json
from etymon.verbs.verb import verb


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


@settings
class ReplacedOptions(ComputeOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("folder or hub id of a discriminator (ELECTRA)")
    texts: Texts = argument("texts to look at; - reads lines from standard input", ())
    file: Path | None = option(None, "a file with a text a line")
    batch_size: int = option(32, "texts that are computed together", ge=1)
    threshold: float = option(0.5, "tokens above this probability are marked", seen_by="command line")
    on_note: Notify | None = option(None, "is told of blank lines", seen_by="python")


@verb(ReplacedOptions)
def replaced(options: ReplacedOptions) -> list[Inspection]:
    """A discriminator (ELECTRA, or any encoder trained with the objective `replaced`) gives every token the
    probability that it is not the one that stood there.
    """
    import torch

    from etymon.nn.batch import Batch
    from etymon.nn.layers import eval_mode
    from etymon.verbs.load_inputs import load_model, read_texts

    texts = read_texts(options.texts, options.file, on_note=options.on_note, how=options)
    model = load_model(options.model, options)
    if "replaced" not in model.heads:
        raise EtymonError(
            f"{options.model if isinstance(options.model, str | Path) else 'this model'} is no "
            "discriminator: train one with `etymon pretrain electra`, or give its discriminator's folder"
        )
    tokenizer = model.tokenizer
    assert tokenizer is not None
    inspections = []
    with torch.inference_mode(), eval_mode(model):
        for first in range(0, len(texts), options.batch_size):
            chunk = texts[first : first + options.batch_size]
            encoded = [tokenizer.offsets(text) for text in chunk]
            framed = [tokenizer.framing.frame(ids) for ids, _, _ in encoded]
            batch = Batch.of(
                [frame.ids for frame in framed],
                segments=[frame.segments for frame in framed],
                device=model.device,
            )
            hidden, _ = model.hidden(batch)
            # By rows, special tokens included; below they are left out,
            # since nobody could have replaced them.
            rows = model.read("replaced", hidden, batch).sigmoid().split(batch.layout.lengths)
            for text, (_, starts, stops), frame, row in zip(chunk, encoded, framed, rows, strict=True):
                probabilities = row.cpu().numpy()[~frame.special].tolist()
                places = zip(starts.tolist(), stops.tolist(), probabilities, strict=True)
                suspects = [Suspect(text[start:stop], start, stop, p) for start, stop, p in places]
                inspections.append(Inspection(text, suspects))
    return inspections


def present(result: list[Inspection], options: ReplacedOptions) -> None:
    if options.json:
        return print_json(*result)
    for number, inspection in enumerate(result):
        if number:
            print()
        print(inspection.text)
        for token in inspection.tokens:
            mark = "  replaced" if token.probability > options.threshold else ""
            print(f"{token.probability:8.2%}  {token.token.strip()}{mark}")
