"""Ways of decoding compared on the same prompts: repetition, diversity, and copies from the training text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from etymon.display import align_left, align_right, display_width
from etymon.families.model import Model
from etymon.generation.quality import Copy, distinct, longest_copies, repetition, self_bleu
from etymon.generation.text import Generation, generate_texts, tokenizer_of
from etymon.report.page import Cell, Paragraph, ReportSamples, ReportTable, Section, shown, write_report
from etymon.settings.decoding import DecodingSettings
from etymon.settings.reading import EncodingSettings, TextSettings
from etymon.text.languages import training_splits
from etymon.text.sources import PreparedText, text_source
from etymon.text.store import Split, TokenStore, is_store
from etymon.text.store_building import build_store
from etymon.text.tokenizer import Tokenizer

HEADER = (
    "way,texts,tokens,repeated 2-grams %,repeated 4-grams %,distinct 1-grams %,distinct 2-grams %,self-BLEU,"
    "longest copy,mean copy"
).split(",")
HOW_TO_READ = """\
Repeated n-grams are those that a text has had before, as a share of its n-grams (mean over texts). \
Distinct n-grams are counted over all texts of a way together, so they fall as there is more text: compare \
ways, not prompts. Self-BLEU is the mean BLEU of a text with the others of its way as references: 100 is \
always the same text.

The longest copy is the longest run of tokens that a text shares with a document of the training text; the \
mean is over texts."""


@dataclass(frozen=True)
class Way:
    """What one way of decoding made of the prompts; shares are in percent."""

    name: str
    texts: int
    tokens: int
    repeated_2: float | None
    repeated_4: float | None
    distinct_1: float | None
    distinct_2: float | None
    self_bleu: float | None
    longest_copy: int | None
    mean_copy: float | None
    copied: str | None
    """The longest copy, spelled out."""


class Comparison(list[Generation]):
    """The texts of all ways, one way after the other, and what they are like."""

    def __init__(self, texts: Sequence[Generation], ways: list[Way], notes: list[str]) -> None:
        super().__init__(texts)
        self.ways, self.notes = ways, notes

    def table(self) -> list[list[Cell]]:
        return [list(asdict(way).values())[: len(HEADER)] for way in self.ways]

    def lines(self, translate: Callable[[str], str] = str) -> Iterator[str]:
        """The table, for a terminal."""
        cells = [[*map(translate, HEADER)]]
        for row in self.table():
            name, *numbers = row
            figures = [f"{cell:.1f}" if isinstance(cell, float) else shown(cell) for cell in numbers]
            cells.append([translate(str(name)), *figures])
        widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
        for name, *rest in cells:
            yield "  ".join([align_left(name, widths[0]), *map(align_right, rest, widths[1:])])
        yield from map(translate, self.notes)

    def sections(self) -> Iterator[Section]:
        rows = [[round(cell, 1) if isinstance(cell, float) else cell for cell in row] for row in self.table()]
        yield ReportTable(HEADER, rows, title="Ways to decode", has_own_words=True)
        yield Paragraph("\n\n".join([HOW_TO_READ, *self.notes]), title="How to read this")
        if copied := [(way.name, way.copied) for way in self.ways if way.copied]:
            yield ReportSamples(
                copied, title="The longest copies from the training text", has_own_labels=True
            )
        begin, firsts = 0, []
        for way in self.ways:
            firsts.append((way.name, f"{self[begin].prompt} …{self[begin].text}"))
            begin += way.texts
        yield ReportSamples(firsts, title="The first text of each", has_own_labels=True)


def compare(
    model: Model,
    prompts: Sequence[str],
    settings: DecodingSettings,
    *,
    data: Sequence[str] = (),
    how: EncodingSettings | None = None,
    folder: Path | None = None,
    batch_size: int = 32,
    on_progress: Callable[[str], None] = lambda note: None,
) -> Comparison:
    """Every way on the same prompts. The training text is `data`, or the store of the run that the
    `folder` is of."""
    tokenizer, notes = tokenizer_of(model), []
    texts_by_way: dict[str, list[Generation]] = {}
    for name, way in ways(settings).items():
        on_progress(f"decoding: {name}")
        texts_by_way[name] = generate_texts(model, prompts, way, batch_size=batch_size)
    texts = [text for way_texts in texts_by_way.values() for text in way_texts]
    # Special tokens are no part of a text: every text ends with the same one.
    rows = [[number for number in text.ids if number not in tokenizer.special_ids] for text in texts]
    with ExitStack() as stack:
        on_progress("looking for copies")
        splits = _training_text(tokenizer, data, folder, stack, how)
        copies: list[tuple[Copy, str]] = [(Copy(), "") for _ in rows]
        for split in splits:
            for place, copy in enumerate(longest_copies(rows, split.tokens, split.documents)):
                if copy.length > copies[place][0].length:
                    copied = tokenizer.decode(rows[place][copy.start : copy.start + copy.length])
                    copies[place] = copy, copied
    if not splits:
        notes.append("Without the training text there are no copies to look for: give --data.")
    # Texts of a way lie side by side, and so do their rows and copies.
    results, begin = [], 0
    for name, way_texts in texts_by_way.items():
        end = begin + len(way_texts)
        results.append(_measure(name, way_texts, rows[begin:end], copies[begin:end] if splits else []))
        begin = end
    if all(way.self_bleu is None for way in results):
        notes.append("Self-BLEU needs several texts a way and sacrebleu: pip install 'etymon[evaluate]'.")
    return Comparison(texts, results, notes)


def write(comparison: Comparison, path: Path, name: str) -> None:
    write_report(path, f"How {name} writes", list(comparison.sections()))


def ways(settings: DecodingSettings) -> dict[str, DecodingSettings]:
    """Greedy, sampling and four others by name: with the settings given where they are of that way, else
    usual ones.

    Limits and penalties are the given ones for all.
    """
    # Limits and penalties that forbid repetition hold for all ways: only what chooses a token is reset.
    greedy = replace(
        settings,
        sample=False,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        typical_p=1.0,
        penalty_alpha=0.0,
        beams=1,
        length_penalty=1.0,
        length_offset=0.0,
        early_stopping=False,
        returns=1,
    )
    returns = settings.returns if settings.sample else 1
    # Usual values of beams, of contrastive search (Su et al. 2022), nucleus (Holtzman et al. 2020) and
    # typical sampling (Meister et al. 2022), unless the settings have others.
    beams = replace(settings, returns=1) if settings.beams > 1 else replace(greedy, beams=4)
    contrastive = settings if settings.contrastive else replace(greedy, penalty_alpha=0.6, top_k=4)
    sampling = settings if settings.sample else replace(greedy, sample=True)
    filters = [
        f"{name.replace('_', '-')} {getattr(sampling, name):g}"
        for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")
        if getattr(sampling, name) != getattr(greedy, name)
    ]
    return {
        "greedy": greedy,
        ", ".join(["sampling", *filters]): sampling,
        "top-p 0.95": replace(greedy, sample=True, top_p=0.95, returns=returns),
        "typical-p 0.95": replace(greedy, sample=True, typical_p=0.95, returns=returns),
        f"contrastive, alpha {contrastive.penalty_alpha:g}, top-k {contrastive.top_k}": contrastive,
        f"{beams.beams} beams": beams,
    }


def _measure(
    name: str, texts: list[Generation], rows: list[list[int]], copies: list[tuple[Copy, str]]
) -> Way:
    def percent(share: float | None) -> float | None:
        return None if share is None else 100 * share

    longest, copied = max(copies, key=lambda pair: pair[0].length) if copies else (None, None)
    return Way(
        name=name,
        texts=len(texts),
        tokens=sum(map(len, rows)),
        repeated_2=percent(repetition(rows, 2)),
        repeated_4=percent(repetition(rows, 4)),
        distinct_1=percent(distinct(rows, 1)),
        distinct_2=percent(distinct(rows, 2)),
        self_bleu=self_bleu([text.text for text in texts]),
        longest_copy=None if longest is None else longest.length,
        mean_copy=sum(copy.length for copy, _ in copies) / len(copies) if copies else None,
        copied=copied,
    )


def _training_text(
    tokenizer: Tokenizer,
    data: Sequence[str],
    folder: Path | None,
    stack: ExitStack,
    how: EncodingSettings | None = None,
) -> list[Split]:
    """What the model was trained on, as tokens; empty where that cannot be said."""
    if data:
        options = {} if how is None else how.reader_options
        source = text_source([str(path) for path in data], TextSettings(**options))
        if isinstance(source, PreparedText):
            return training_splits(TokenStore.open(source.folder, tokenizer))
        # Copies are looked for in tokens, so raw text is encoded as the model would read it.
        aside = Path(stack.enter_context(TemporaryDirectory())) / "store"
        build_store(source.documents(), tokenizer, aside, validation=0.0, source=source)
        return [TokenStore.open(aside, tokenizer).train]
    # A run keeps its text beside its model, and other texts for some phases. A hub's name is no folder.
    places = [] if folder is None or not folder.is_dir() else [folder, folder.absolute().parent]
    paths = [path for place in places for path in sorted(place.glob("store*")) if is_store(path)]
    # Other tokens cannot be compared: a store of another tokenizer is passed over.
    stores = [TokenStore.open(path) for path in paths]
    comparable = [store for store in stores if store.description["tokenizer"] == tokenizer.fingerprint]
    return [split for store in comparable for split in training_splits(store)]
