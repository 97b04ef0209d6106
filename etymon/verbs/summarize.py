"""`etymon summarize`: long texts as short ones."""

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
class SummarizeOptions(Seq2SeqOptions):
    file: Path | None = option(None, "a file that is one text")


@verb(SummarizeOptions)
def summarize(options: SummarizeOptions) -> list[Rewritten]:
    """A text that is longer than the model can read is refused with the numbers. With --chunk it is read in
    parts, and their summaries follow one another.
    """
    return rewrite(options, published_task="summarization", lines=False)
