"""`etymon explain`: what an objective does to a sentence."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.display import align_left, display_width
from etymon.errors import EtymonError, visible
from etymon.language import translated
from etymon.settings import (
    JsonOptions,
    ModelLike,
    OpeningOptions,
    PathText,
    Texts,
    Words,
    argument,
    option,
    settings,
)
from etymon.settings.reading import WordWays
from etymon.verbs.terminal import on_note, print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from rich.text import Text

    from etymon.explaining.explanation import ExplainedReader, ExplainedSample, Explanation, VisibilityMap
    from etymon.families.model import Model
    from etymon.text.tokenizer import Tokenizer

ENDINGS = (".html", ".svg", ".png", ".json")
VOCABULARY = 2000
"""Tokens of a tokenizer that is learnt for one explanation."""
WIDEST_PICTURE = 40
"""Keys of a picture of who sees whom that a terminal still shows."""
STYLES = {"mask": "bold red", "sentinel": "bold magenta", "changed": "bold yellow", "asked": "bold cyan"}
"""Of tokens by their kind; special ones are dim."""


@settings
class ExplainOptions(OpeningOptions, JsonOptions):
    model: ModelLike = argument(
        "a family (bert), or a model's folder or hub id: then its guesses are shown, too"
    )
    texts: Texts = argument("a sentence or more; several texts are several documents")
    objective: str | None = option(None, "what to explain (the model's own objective)")
    seed: int = option(0, "random seed; another one hides, replaces and reorders other tokens", ge=0)
    length: int | None = option(None, "tokens per sample (enough for the whole text)", ge=4)
    samples: int = option(3, "how many samples to show, if the text makes several", ge=1)
    set: Words = option((), "give an option of the objective a value: density=0.5")
    words: WordWays = option(
        (),
        "how words are found: tokens, jieba (Chinese), spaces (put there by a tool) or MODULE:FUNCTION; as "
        "in training unless given",
    )
    tokenizer: PathText = option(
        None,
        "for a family: folder or hub id of a tokenizer, a model or a run (one that is learnt from the text)",
    )
    teacher: PathText = option(None, "a model's folder, for objectives that learn from one")
    out: PathText = option(
        None, "a page to step through (.html), a picture (.svg, .png), or all of it as data (.json)"
    )


@verb(ExplainOptions)
def explain(options: ExplainOptions) -> Explanation:
    """Shows what the objective hides, replaces, reorders or corrupts in your own sentence, what the model
    reads, what it must predict, and which tokens may see which. It runs the code of training itself. `--seed
    1` draws again; `--out page.html` writes a page that steps through it.
    """
    from etymon.config import override
    from etymon.explaining.explain import explain_text, fitting_length, objective_of, unit_for
    from etymon.explaining.explanation import as_record
    from etymon.families import get_family
    from etymon.objectives import get_objective, objective_class
    from etymon.objectives.history import last_pretraining
    from etymon.objectives.objective import check_fit
    from etymon.verbs.load_inputs import read_texts, require_writable

    require_writable(options.out, *ENDINGS)
    texts = [text for text in read_texts(options.texts) if text.strip()]
    if not texts:
        raise EtymonError("the text is blank: give a sentence")
    family = _family_named(options.model)
    trained, generator = None, None
    if family is None:
        trained, generator = _load_trained(options.model, options.objective)
        family = get_family(trained.family.name)
    name = options.objective or objective_of(trained) or family.objective
    kind: Any = objective_class(name)
    if getattr(kind, "weights", None) is not None:
        raise EtymonError(f"{name!r} is a mixture: explain its objectives one by one, with --objective")
    check_fit(kind, family)
    tokenizer = _tokenizer(options, trained, family.name, texts)
    length = options.length or fitting_length(kind, tokenizer, texts)
    if options.length is None and trained is not None and trained.positions is not None:
        length = min(length, trained.positions)  # a longer text makes several samples
    # As it was trained: whole words where it learnt from whole words.
    trained_as = last_pretraining(trained.history if trained else [])
    given = [each.removeprefix("options.") for each in options.set]  # as `pretrain` has them
    objective_options = override(dict(trained_as.options.get(name, {})), given)
    objective = get_objective(name, tokenizer, length, **objective_options)
    way = trained_as.word_way(options.words, on_note)
    is_asked = any(each.startswith("masking=") for each in given)
    _check_words(objective, tokenizer, texts, way, is_asked=is_asked)
    model = trained or _new_model(family.name, kind.heads, tokenizer, length)
    teacher = None
    if kind.needs_teacher:
        teacher = _teacher(options, model, tokenizer)
    if model.positions is not None and length > model.positions:
        raise EtymonError(
            f"samples are to have {length} tokens, but the model reads {model.positions}: give a smaller "
            "--length"
        )
    unit = unit_for(model, objective, teacher, generator)
    explanation = explain_text(
        unit,
        tokenizer,
        texts,
        seed=options.seed,
        trained=trained is not None,
        most=options.samples,
        words=way,
    )
    if options.out is not None:
        _write(Path(options.out), as_record(explanation))
    return explanation


def _check_words(
    objective: Any, tokenizer: Tokenizer, texts: Sequence[str], way: str | None, *, is_asked: bool
) -> None:
    """Refuses whole words, or notes it, where nothing shows which tokens are one."""
    from etymon.runs.text_stores import check_split_words
    from etymon.text.segmenters import TOKENS
    from etymon.text.store import Split

    split = Split.of_texts(texts, tokenizer, way)
    check_split_words(objective, split, tokenizer, None if way == TOKENS else is_asked, on_note)


def _write(out: Path, record: dict[str, Any]) -> None:
    from etymon.files import atomic_write, json_text
    from etymon.report.explain_page import explain_page
    from etymon.report.explain_picture import explain_picture

    ending = out.suffix.lower()
    if ending in (".svg", ".png"):
        return explain_picture(out, record)
    text = json_text(record, indent=2) + "\n" if ending == ".json" else explain_page(record)
    with atomic_write(out) as file:
        file.write(text)


# --- what is explained


def _family_named(model: Any) -> Any:
    """The family, if one is named and no folder of that name lies here."""
    from etymon.families import REGISTRY, get_family

    if not isinstance(model, str) or Path(model).exists():
        return None
    plain = model.lower().replace("-", "").replace("_", "")
    if plain in {name.replace("-", "") for name in REGISTRY}:
        return get_family(model)
    return None


def _load_trained(model: Any, objective: str | None) -> tuple[Model, Model | None]:
    """The model with the heads that its objective needs, and the generator that was trained beside it."""
    from etymon.explaining.explain import objective_of
    from etymon.families import get_family
    from etymon.families.loading import load, model_folder
    from etymon.objectives import objective_class

    if not isinstance(model, str | Path):
        return model, None
    folder = model_folder(model, head="replaced" if objective == "replaced" else None)
    loaded = load(folder)
    family = get_family(loaded.family.name)
    heads = objective_class(objective or objective_of(loaded) or family.objective).heads
    if heads - loaded.heads.keys():
        loaded = load(folder, heads=heads)
        on_note(f"{model} has no {' and no '.join(loaded.new_heads)} head: its guesses there mean nothing")
    if loaded.tokenizer is None:
        raise EtymonError(f"{model} has no tokenizer, so it cannot read text: put its tokenizer.json there")
    beside = Path(folder).parent / "generator"
    generator = None
    if "replaced" in heads and (beside / "config.json").is_file():
        generator = load(beside)
        generator.tokenizer = loaded.tokenizer
    return loaded, generator


def _tokenizer(
    options: ExplainOptions, trained: Model | None, family: str, texts: Sequence[str]
) -> Tokenizer:
    from etymon.explaining.descriptions import COMMON_CHINESE, OTHER_TEXTS, is_chinese
    from etymon.families import get_family
    from etymon.objectives.denoising import SENTINELS
    from etymon.runs.tokenizer import training_choice
    from etymon.text.alphabets import is_spaceless
    from etymon.text.tokenizer_training import train_tokenizer
    from etymon.verbs.tokenizer import tokenizer_at

    if trained is not None:
        assert trained.tokenizer is not None
        return trained.tokenizer
    if options.tokenizer is not None:
        tokenizer = tokenizer_at(options.tokenizer)
    else:
        # Twice: what occurs only once is not learnt, and a sentence is easiest to follow by its whole words. In
        # Chinese, a token that is drawn at random is to be a character, no piece of an English word.
        is_zh = is_chinese("".join(texts))
        groups = (OTHER_TEXTS["zh"], (COMMON_CHINESE,)) if is_zh else OTHER_TEXTS.values()
        sentences = [*texts, *(text for group in groups for text in group)]
        # Where there are no spaces, by its characters: else a whole clause would be one token.
        learnt = [
            "".join(letters)
            for sentence in sentences
            for _, letters in groupby(sentence, key=lambda letter: letter if is_spaceless(letter) else "")
        ] * 2
        # A few sentences are too little for unigrams, which would be single letters.
        kind = "bpe" if get_family(family).tokenizer.kind == "unigram" else None
        choice = training_choice(kind, family, VOCABULARY)
        if options.objective == "span-corruption":
            choice["sentinels"] = choice["sentinels"] or SENTINELS  # of families that have none themselves
        tokenizer = train_tokenizer(texts=learnt, **choice)
    tokenizer.framing = get_family(family).framing
    return tokenizer


def _new_model(family: str, heads: frozenset[str], tokenizer: Tokenizer, length: int) -> Model:
    """A model of the family's smallest size with first values: who sees whom needs no training."""
    from dataclasses import fields

    from etymon.families import get_family
    from etymon.families.loading import build, shape_of

    kind = get_family(family)
    changed = {"vocabulary": tokenizer.size, **kind.tokenizer_fields(tokenizer)}
    changed |= kind.suggest_cutoffs(tokenizer, None, {})
    places = next((field.name for field in fields(kind.shape) if field.name == "positions"), None)
    if places is not None and getattr(shape_of(kind), places) < length + 2:
        changed[places] = length + 2
    model = build(kind, heads=heads, shape=changed)
    model.tokenizer = tokenizer
    return model


def _teacher(options: ExplainOptions, model: Model, tokenizer: Tokenizer) -> Model:
    from etymon.families.loading import load

    if options.teacher is None:
        # DistilBERT's teacher was BERT; others are taught by their like.
        family = "bert" if model.family.name == "distilbert" else model.family.name
        return _new_model(family, frozenset({"vocabulary"}), tokenizer, model.positions or 0).eval()
    teacher = load(options.teacher, heads=("vocabulary",))
    if teacher.tokenizer is None or teacher.tokenizer.tokens != tokenizer.tokens:
        raise EtymonError(f"{options.teacher} reads with another tokenizer than its student")
    return teacher


# --- on a terminal


def present(result: Explanation, options: ExplainOptions) -> None:
    from etymon.explaining.explanation import as_record

    if options.json:
        return print_json(as_record(result))
    from rich.console import Console

    # What is shown is made visible before: rich's own control characters must reach the terminal.
    console = Console(file=getattr(sys.stdout, "rich_proxied_file", sys.stdout), highlight=False)
    console.width = max(40, shutil.get_terminal_size((100, 24)).columns)
    say(f"{result.family}, {result.objective}, seed {result.seed}")
    print(translated(result.about, "result"))
    for sample in result.samples:
        if result.total > 1:
            print()
            say(f"sample {sample.number} of {result.total}")
        _show_sample(console, sample)
    if options.out is not None:
        say(f"{options.out} has all of it")


def _show_sample(console: Any, sample: ExplainedSample) -> None:
    for reader in sample.readers:
        print()
        say(f"{reader.name} reads")
        for line in token_lines(reader, console.width):
            console.print(line, soft_wrap=True)
        for picture in reader.sees:
            _show_picture(picture)
    for question in sample.about_text:
        chance = f", {question.probabilities[question.answer]:.0%} sure" if question.probabilities else ""
        answer = "no" if question.answer else "yes"
        print()
        say(f"{question.name.replace('_', ' ')}: {answer}{chance}")
    if sample.losses:
        print()
        terms = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in sample.losses.items())
        say(f"loss: {terms}")


def token_lines(reader: ExplainedReader, width: int) -> list[Text]:
    """The tokens side by side, what stood there and what is asked below them, in as many blocks as needed."""
    from rich.text import Text

    rows = _rows(reader)
    label_width = max(display_width(translated(label, "result")) for label, _ in rows) + 4
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    widths = [max(display_width(cell) for cell in column) + 2 for column in columns]
    lines: list[Text] = []
    first = 0
    while first < len(columns):
        last, taken = first, label_width
        while last < len(columns) and (last == first or taken + widths[last] <= width):
            taken += widths[last]
            last += 1
        if first:
            lines.append(Text(""))
        for label, cells in rows:
            if not any(cells[first:last]):
                continue
            line = Text("  " + align_left(translated(label, "result"), label_width - 2), style="dim")
            for place in range(first, last):
                kind = reader.tokens[place].kind
                style = (
                    STYLES.get(kind, "dim" if kind == "special" else "not dim")
                    if label == "reads"
                    else "not dim"
                )
                line.append(align_left(cells[place], widths[place]), style)
            lines.append(line)
        first = last
    return lines


def _rows(reader: ExplainedReader) -> list[tuple[str, list[str]]]:
    """Labelled rows of one cell a token; rows without anything in them are left out."""
    tokens = reader.tokens
    questions = {question.place: question for question in reader.questions}
    best = {
        place: f"{visible(question.guesses[0].token.strip())} {question.guesses[0].probability:.0%}"
        for place, question in questions.items()
        if question.guesses
    }

    def cells(values: Sequence[Any]) -> list[str]:
        return ["" if value is None else visible(str(value).strip() or str(value)) for value in values]

    places = range(len(tokens))
    # Of targets alone, counted from 1: between two texts of a sample, numbers are left out.
    targets = sorted((tokens[place].order, place) for place in questions if tokens[place].order)
    turns = {place: turn for turn, (_, place) in enumerate(targets, 1)}
    rows = [
        ("position", cells([token.position for token in tokens])),
        ("reads", cells([token.text for token in tokens])),
        ("was", cells([token.original for token in tokens])),
        ("segment", cells([token.segment for token in tokens])),
        ("order", cells([turns.get(place) for place in places])),
        ("predicts", cells([questions[place].target if place in questions else None for place in places])),
        ("guesses", cells([best.get(place) for place in places])),
        ("draws", cells([questions[place].drawn if place in questions else None for place in places])),
        ("replaced?", cells([None if t.replaced is None else f"{t.replaced:.0%}" for t in tokens])),
    ]
    return [row for row in rows if any(row[1])]


def _show_picture(picture: VisibilityMap) -> None:
    """Who sees whom: a row a query, a filled square for every key that it sees."""
    print()
    if picture.allowed.all():
        say(f"who sees whom ({picture.layers}): all see all")
        return
    if len(picture.keys) > WIDEST_PICTURE:
        say(f"who sees whom ({picture.layers}) is too wide for a terminal: --out page.html shows it")
        return
    remembered = sum(key.startswith("memory -") for key in picture.keys)
    if remembered:
        say(f"who sees whom ({picture.layers}): rows see columns, the first {remembered} are remembered")
    else:
        say(f"who sees whom ({picture.layers}): rows see columns")
    names = [visible(name.strip() or name) for name in picture.queries]
    widest = max(map(display_width, names))
    for name, row in zip(names, picture.allowed, strict=True):
        squares = ["■" if seen else "·" for seen in row]
        if remembered:
            squares.insert(remembered, "│")
        print(f"  {align_left(name, widest)}  {' '.join(squares)}")
