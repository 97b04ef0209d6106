"""The pages of a comparison: report.html, table.md and table.tex."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from etymon.files import atomic_write
from etymon.lab.compare_criteria import validation_score
from etymon.lab.compare_plan import AXES, Arm
from etymon.lab.compare_results import MORE, Compared, CriterionResult
from etymon.lab.statistics import PowerLaw, interquartile_mean
from etymon.report.forest import Estimate, Forest
from etymon.report.page import (
    Cell,
    Code,
    Curve,
    Figures,
    Paragraph,
    ReportSamples,
    ReportTable,
    Section,
    write_report,
)
from etymon.training.progress import format_count, format_seconds
from etymon.training.state import RunFolder

SCALES = ((1e12, "trillion "), (1e9, "billion "), (1e6, "million "), (1e3, "thousand "))
LATEX = {**dict.fromkeys("&%$#_{}", "\\{}"), "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def write_compare_report(compared: Compared) -> None:
    """Writes report.html, table.md and table.tex into the folder of the comparison."""
    # All sections before the first byte is written: an old report stays if one of them fails.
    sections = list(report_sections(compared))
    text = "" if compared.text is None else compared.text.description
    write_report(compared.report, "A comparison at equal budget", sections, text)
    header, rows = table_of(compared)
    for name, table in (("table.md", markdown_table(header, rows)), ("table.tex", latex_table(header, rows))):
        with atomic_write(compared.folder / name) as file:
            file.write(table)


def report_sections(compared: Compared) -> Iterator[Section]:
    """The report, from the answer to how it came about."""
    for result in compared.answers:
        group = f" ({result.criterion.group or result.criterion.name})"
        group = group if len(compared.answers) > 1 else ""
        yield Paragraph("\n\n".join(verdict_sentences(result)), title=f"The answer{group}")
    if len(compared.primary) > 1:
        yield Paragraph(
            "A likelihood and a pseudo-likelihood answer different questions: arms of different kinds are "
            "not ranked against each other. Minimal pairs, probes and tasks of your own (--tasks) compare "
            "them all."
        )
    runs = [entry for entry in compared.entries if entry.is_scored]
    yield Figures(
        {
            "arms": len(compared.arms),
            "budget of a final run": compared.design.budget,
            "seeds of a finalist": compared.design.seeds,
            "trials of an arm": compared.design.trials,
            "runs": len(runs),
            "time of all runs": format_seconds(sum(entry.cost["time"] for entry in runs)),
        }
    )
    for result in compared.results:
        yield _forest(result)
    header, rows = table_of(compared, with_costs=False)
    yield ReportTable(header, rows, "All arms, on the test part (* wins)", has_own_words=True)
    for result in compared.results:
        if result.verdict is not None:
            yield _difference_table(result)
    for result in compared.primary:
        for axis in AXES.values():
            curves = {
                arm.name: compared.points(result.criterion, arm.name, axis)
                for arm in compared.arms
                if arm.name in result.criterion.arms
            }
            largest = max((x for points in curves.values() for x, _ in points), default=1.0)
            scale, unit = _scale(axis, largest)
            group = f" ({result.criterion.group})" if result.criterion.group else ""
            yield Curve(
                {name: [(x / scale, y) for x, y in points] for name, points in curves.items() if points},
                x_label=unit,
                y_label=result.criterion.name,
                title=f"Validation by {axis}{group}",
                caption="A point for every round that an arm was in, and the mean of the final's seeds.",
            )
    for result in compared.results:
        if result.expected.get("fits"):
            yield _expected_curve(compared, result)
    yield _cost_table(compared)
    if sizes := [arm for arm in compared.arms if arm.file.sizing]:
        yield _size_table(sizes)
    if samples := list(_samples(compared)):
        yield ReportSamples(samples, title="What the finalists write")
    # Of the first seed: the others cannot do the same parts.
    reasons = [
        (entry.arm, part, reason)
        for entry in compared.entries
        if entry.round == 0 and entry.seed == compared.design.seed + 1 and entry.is_tested
        for part, reason in entry.scores("test").get("suite_reasons", {}).items()
    ]
    if reasons:
        yield ReportTable(("arm", "part", "why"), reasons, title="Parts of the suite that an arm cannot do")
    if compared.failed:
        failed = [(arm.name, arm.reason) for arm in compared.failed]
        yield ReportTable(("arm", "why it is out"), failed, "Arms that failed", has_own_words=True)
    for result in compared.primary:
        yield Code(compared.continue_command(result.leader), title="Go on with ten times the budget")
    yield Paragraph(METHOD, title="How it was decided")


def inline_sections(compared: Compared) -> Iterator[Section]:
    """What a notebook shows: the answer, a picture and the table; the rest is in the report."""
    for result in compared.primary:
        group = f" ({result.criterion.group})" if result.criterion.group else ""
        yield Paragraph("\n\n".join(verdict_sentences(result)), title=f"The answer{group}")
    for result in compared.results:
        yield _forest(result)
    header, rows = table_of(compared, with_costs=False)
    yield ReportTable(header, rows, "All arms, on the test part (* wins)", has_own_words=True)
    yield Paragraph(str(compared.report))


def _scale(axis: str, largest: float) -> tuple[float, str]:
    """What to divide an axis by so that its numbers are short, and what they then are."""
    if axis == "time":
        return (60.0, "minutes") if largest > 180 else (1.0, "seconds")
    scale, word = next(((scale, word) for scale, word in SCALES if largest >= 2 * scale), (1.0, ""))
    return scale, f"{word}{axis}"


METHOD = (
    "Every arm got the same budget, the same number of trials of its learning rate, and the same text. "
    "Rounds were decided on validation text and rows alone. Finalists were trained again with fresh seeds; "
    "the test part was opened once, after the last run.\n\n"
    "Intervals are 95%, over seeds and items together: passages of the text, or rows of a table, are "
    "resampled in pairs, and three seeds count as no more than three (Student's distribution). An arm "
    "wins if it is better than every other finalist at 5% error over all comparisons together (Holm's "
    "correction). The noise floor is the difference that repeats of one arm make by themselves.\n\n"
    "What counting reaches is measured on the same text: xz after it has read the training text, and n-grams "
    "with modified Kneser-Ney smoothing of the training tokens. Mixed with n-grams are the probabilities of "
    "the network and of these counts together, with a weight that was fitted on validation text."
)


def verdict_sentences(result: CriterionResult) -> list[str]:
    """The answer in words, for people who read nothing else."""
    criterion, leader = result.criterion, result.leader
    score = criterion.shown(result.scores[leader].mean)
    if result.verdict is None:
        return [
            f"{leader} was the only finalist of its kind: {score} on the test part, and nothing to "
            "compare it with.",
            *_best_baseline(result),
        ]
    # Scores are sorted: the second is the one that the leader has to beat.
    rival = list(result.scores)[1]
    gap = result.between(leader, rival)
    assert gap is not None
    size = f"{abs(gap.value):.3f} {criterion.name}" if criterion.falls else f"{abs(gap.value):.1f} points"
    if result.is_decided:
        ends = sorted((abs(gap.low), abs(gap.high)))
        interval = " to ".join(f"{end:.3f}" if criterion.falls else f"{end:.1f}" for end in ends)
        return [
            f"{leader} wins at this budget: {score} on the test part.",
            f"It is {size} better than {rival} (95% interval {interval}).",
            *_best_baseline(result),
        ]
    sentences = [
        "No winner at this budget.",
        f"{leader} leads with {score} on the test part, {size} before {rival}, which may be luck "
        f"(p = {gap.adjusted_p:.2f}; repeats of one arm differ by up to {result.verdict.noise_floor:.3g}).",
    ]
    times = result.expected.get("times")
    # A little more than this budget would be within the error of any line through three points.
    if times is not None and times > 1.5:
        sentences.append(
            f"If both went on as from round to round, {times:.0f} times the budget would tell them apart."
        )
    elif result.expected:
        sentences.append(
            "If both went on as from round to round, no larger budget would tell them apart; more seeds may."
        )
    return [*sentences, *_best_baseline(result)]


def _best_baseline(result: CriterionResult) -> list[str]:
    """A sentence if something without a network is better than the leader: the first thing to know."""
    order, leader = result.criterion.order, result.scores[result.leader].mean
    best = min(result.baselines, key=lambda name: order(result.baselines[name]), default=None)
    if best is None or order(result.baselines[best]) >= order(leader):
        return []
    reached = result.criterion.shown(result.baselines[best])
    return [f"But {best} alone reaches {reached}: no network of this budget does."]


def _forest(result: CriterionResult) -> Forest:
    arms = [Estimate(name, each.mean, *result.intervals[name]) for name, each in result.scores.items()]
    mixed = [Estimate(f"{name}, mixed with n-grams", value) for name, value in result.mixed.items()]
    others = [Estimate(name, value) for name, value in result.baselines.items()]
    better = "smaller" if result.criterion.falls else "larger"
    group = f" ({result.criterion.group})" if result.criterion.group else ""
    return Forest(
        [*arms, *mixed, *others],
        result.criterion.name,
        title=f"Test: {result.criterion.name}{group}",
        caption=f"Means over the seeds with 95% intervals; {better} is better. Diamonds have no network, or "
        "no interval.",
    )


def _difference_table(result: CriterionResult) -> ReportTable:
    rows: list[Sequence[Cell]] = []
    assert result.verdict is not None
    for each in result.verdict.differences:
        digits = 3 if result.criterion.falls else 1
        # `improvement` counts who is above; where smaller is better, the first is better when below.
        better = 1 - each.improvement if result.criterion.falls else each.improvement
        rows.append(
            (
                f"{each.first} − {each.second}",
                f"{each.value:+.{digits}f}",
                f"[{each.low:+.{digits}f}, {each.high:+.{digits}f}]",
                f"{each.adjusted_p:.3f}",
                f"{better:.0%}",
            )
        )
    header = ("difference", result.criterion.name, "95% interval", "p (Holm)", "first is better")
    floor = f"noise floor {result.verdict.noise_floor:.3g}"
    return ReportTable(header, rows, title=f"Differences: {result.criterion.name}, {floor}")


def table_of(compared: Compared, *, with_costs: bool = True) -> tuple[list[str], list[list[Cell]]]:
    """The table of a paper: a row an arm, finalists first, then baselines; a column a criterion, on the test
    part. What an arm cost is the mean of its runs in the final, or in the last round that it was in."""
    results = compared.results
    costs = ["operations", "words", "tokens", "time"] if with_costs else []
    header = [
        "arm",
        *(each.criterion.name for each in results),
        "interquartile mean",
        "validation",
        "parameters",
    ]
    header += [*costs, "came to"]
    rows: list[list[Cell]] = []
    order = list(dict.fromkeys(chain(*(each.scores for each in [*compared.primary, *results]))))
    for name in [*order, *(arm.name for arm in compared.arms if arm.name not in order)]:
        rounds = max((entry.round for entry in compared.entries if entry.arm == name), default=0)
        final = compared.runs_of(name, 0)
        runs = final or compared.runs_of(name, rounds)
        primary = next((each for each in compared.primary if name in each.criterion.arms), None)
        digits = 3 if primary is None or primary.criterion.falls else 1
        cells: list[Cell] = [name, *(_score_cell(each, name) for each in results), None, None, None]
        if primary is not None and name in primary.scores:
            cells[-3] = f"{interquartile_mean(primary.scores[name].by_seed):.{digits}f}"
        if primary is not None and runs:
            validation = np.mean([validation_score(run, primary.criterion) for run in runs])
            cells[-2] = f"{validation:.{digits}f}"
            cells[-1] = format_count(runs[0].scores("validation")["parameters"])
        for axis in costs:
            mean = float(np.mean([run.cost[axis] for run in runs])) if runs else 0.0
            shown = format_seconds(mean) if axis == "time" else format_count(mean)
            cells.append(shown if runs else None)
        reason = compared.arm(name).reason
        rows.append([*cells, "failed" if reason else "final" if final else f"round {rounds}"])
    # Baselines have no runs: their rows are empty but for the scores.
    blank: list[Cell] = [None] * (len(header) - len(results) - 2)
    for name in dict.fromkeys(chain(*(each.baselines for each in results))):
        rows.append(
            [name, *(_figure(each, each.baselines.get(name)) for each in results), *blank, "baseline"]
        )
    for result in results:
        for name, value in result.mixed.items():
            figures = [_figure(each, value if each is result else None) for each in results]
            rows.append([f"{name}, mixed with n-grams", *figures, *blank, "mixture"])
    return header, rows


def _figure(result: CriterionResult, value: float | None) -> Cell:
    return None if value is None else f"{value:.3f}" if result.criterion.falls else f"{value:.1f}"


def _score_cell(result: CriterionResult, name: str) -> Cell:
    if name not in result.scores:
        return None
    low, high = result.intervals[name]
    digits = 3 if result.criterion.falls else 1
    mark = " *" if result.verdict is not None and result.verdict.winner == name else ""
    # Hard spaces: an interval stays on one line.
    ends = f"({low:.{digits}f}\u00a0to\u00a0{high:.{digits}f})"
    return f"{result.scores[name].mean:.{digits}f} {ends}{mark}"


def _cost_table(compared: Compared) -> ReportTable:
    rows: list[Sequence[Cell]] = []
    for arm in compared.arms:
        runs = [entry for entry in compared.entries if entry.arm == arm.name and entry.is_scored]
        sums = {axis: sum(run.cost[axis] for run in runs) for axis in AXES.values()}
        rows.append(
            (
                arm.name,
                len(runs),
                *(format_count(sums[axis]) for axis in ("operations", "words", "tokens")),
                format_seconds(sums["time"]),
                f"{arm.file.learning_rate or arm.rate:g}",
            )
        )
    header = ("arm", "runs", "operations", "words", "tokens", "time", "learning rate")
    return ReportTable(header, rows, title="What it cost, all rounds together")


def _expected_curve(compared: Compared, result: CriterionResult) -> Curve:
    """The laws by which a winner is, or is not, expected at a larger budget."""
    axis, criterion = result.expected["axis"], result.criterion
    points = {name: compared.points(criterion, name, axis) for name in result.expected["fits"]}
    # From the first round on, so that everybody sees how few points a line goes through.
    first = min(x for each in points.values() for x, _ in each)
    last = result.expected["budget"] or MORE * max(x for each in points.values() for x, _ in each)
    scale, unit = _scale(axis, last)
    curves = {f"{name}, validation": [(x / scale, y) for x, y in each] for name, each in points.items()}
    for name, fit in result.expected["fits"].items():
        law = PowerLaw(**fit)
        # Laws are of what falls; an accuracy is shown as itself again.
        curves[f"{name}, fit"] = [
            (float(x) / scale, criterion.error(law.at(float(x)))) for x in np.geomspace(first, last, 30)
        ]
    return Curve(
        curves,
        x_label=unit,
        y_label=criterion.name,
        title=f"If both go on as they did ({criterion.name})",
        caption="Power laws through the rounds and the final, drawn to the budget at which they would be "
        "told apart, or to ten times the budget. They are shown, and decide nothing.",
    )


def _size_table(arms: Sequence[Arm]) -> ReportTable:
    rows: list[Sequence[Cell]] = []
    for arm in arms:
        sizing = arm.file.sizing
        chosen = next(each for each in sizing["candidates"] if each["chosen"])
        rows.append(
            (
                arm.name,
                f"{sizing['curve']}{', a relative' if sizing['borrowed'] else ''}",
                format_count(sizing["operations"]),
                f"{chosen['dim']} wide, {chosen['layers']} layers",
                f"{arm.file.batch} x {arm.file.length}",
                f"{chosen['expected_loss']:.3f}",
            )
        )
    header = ("arm", "by the curve of", "operations", "shape", "samples a step", "loss expected")
    return ReportTable(header, rows, "What --size auto chose for the final's budget", has_own_words=True)


def _samples(compared: Compared) -> Iterator[tuple[str, str]]:
    for arm in compared.arms:
        for run in compared.runs_of(arm.name, 0)[:1]:
            # The last sample is of the trained model; earlier ones show it learning.
            texts = [record["sample"] for record in RunFolder(run.folder).metrics() if "sample" in record]
            if texts:
                yield arm.name, texts[-1]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        "| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |\n" for row in lines
    )


def latex_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A tabular for a paper; needs the package booktabs."""

    def line(cells: Sequence[Cell]) -> str:
        return " & ".join("--" if cell is None else _latex(str(cell)) for cell in cells) + r" \\"

    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}",
        r"\toprule",
    ]
    lines += [line(header), r"\midrule", *map(line, rows), r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    return "".join(
        LATEX.get(sign, sign).replace("{}", sign) if sign in "&%$#_{}" else LATEX.get(sign, sign)
        for sign in text
    )
