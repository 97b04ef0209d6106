"""`etymon translate`: texts into another language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.verbs.options import opens_models
from etymon.verbs.rewriting import Rewritten, rewrite
from etymon.verbs.rewriting import present as present

if TYPE_CHECKING:
    from etymon.families.model import Model


@opens_models
def translate(
    model: Annotated[
        str | Path | Model, "folder or hub id of a model that writes from a source: t5, bart, or fine-tuned"
    ],
    texts: Annotated[list[str] | str, "what to translate; - reads lines from standard input"] = (),  # type: ignore[assignment]
    *,
    file: Annotated[Path | None, "a file of texts, one a line"] = None,
    prefix: Annotated[str | None, "put before every text (as in training, or as published)"] = None,
    beams: Annotated[int, "search with so many beams"] = 4,
    length_penalty: Annotated[float, "beams: above 0 favours long texts, below 0 short ones"] = 1.0,
    length_offset: Annotated[float, "beams: 5 makes it the penalty of the Transformer's paper"] = 0.0,
    max_new_tokens: Annotated[int | None, "at most so many tokens (as the targets in training)"] = None,
    no_repeat_ngram: Annotated[int, "never repeat so many tokens in a row"] = 0,
    chunk: Annotated[bool, "read a text that is too long in parts, sentence by sentence"] = False,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    out: Annotated[Path | None, "a file to write, a line a text (.jsonl: a JSON record)"] = None,
    on_note: Callable[[str], None] | None = None,
) -> list[Rewritten]:
    """Translate texts with a model that was trained for it.

    The columns, the prefix and the longest target are those that the model was fine-tuned with. Texts of similar length are
    translated together; the order stays, and a blank line stays a blank line.
    """
    return rewrite(locals(), usual="translation_en_to_de", lines=True)
