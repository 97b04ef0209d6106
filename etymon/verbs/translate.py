"""`etymon translate`: texts into another language."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etymon.settings import option, settings
from etymon.verbs.seq2seq_verb import Seq2SeqOptions, rewrite
from etymon.verbs.seq2seq_verb import present as present
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.tasks.rewriting import Rewritten


@settings
class TranslateOptions(Seq2SeqOptions):
    file: Path | None = option(None, "a file of texts, one a line")


@verb(TranslateOptions)
def translate(options: TranslateOptions) -> list[Rewritten]:
    """The columns, the prefix and the longest target are those that the model was fine-tuned with. Texts of
    similar length are translated together; the order stays, and a blank line stays a blank line.
    """
    return rewrite(options, published_task="translation_en_to_de", lines=True)
