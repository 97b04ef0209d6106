"""Results in a notebook: every verb's is shown as HTML, safe with any text, and a run draws its curve while it goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.report.inline import Inline, ResultList, ShadedText, live_curve, render_inline, shaded_spans
from etymon.text.sources import Texts
from etymon.verbs.predict import Predicted
from tests import tiny
from tests.generation.conftest import tiny_model
from tests.test_report import EVIL, Reader
from tests.verbs import small_runs

SHOWN_OTHERWISE = {"serve", "embed", "convert", "export", "push", "new"}
"""No result, an array, and those that say where something was written."""


def html(result: Any) -> str:
    """What a notebook gets of it, checked to be whole."""
    shown: str = result._repr_html_()
    page = Reader(shown)
    assert "script" not in page.tags and page.tags[0] == "div"
    return shown


@pytest.mark.parametrize("verb", sorted(set(etymon.VERBS) - SHOWN_OTHERWISE))
def test_the_result_of_every_verb_is_shown(verb):
    module = __import__(f"etymon.verbs.{verb}", fromlist=[verb])
    source = Path(module.__file__).read_text(encoding="utf-8")
    # The annotation is only imported for types: its names are looked up in the stub, which imports them all.
    answer = re.search(rf"def {verb}\([^)]*\) -> ([^:]+):", source)
    assert answer is not None
    stub = (Path(etymon.__file__).parent / "__init__.pyi").read_text(encoding="utf-8")
    names = [name for name in re.findall(r"[A-Z]\w+", answer[1]) if name != "Any"]
    assert names
    for name in names:
        home = re.search(rf"^from (\S+) import .*\b{name}\b", stub, re.MULTILINE)
        assert home is not None, name
        assert issubclass(getattr(__import__(home[1], fromlist=[name]), name), Inline), name


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return tiny_model("gpt2")


def test_lists_of_results_are_lists_and_one_table(gpt2):
    texts = etymon.generate(gpt2, ["a", "b"], max_new_tokens=2)
    assert isinstance(texts, list) and isinstance(texts, ResultList)
    assert html(texts).count("<tr>") == 3
    assert html(texts[0]).count("<tr>") == 2


def test_print_says_the_same_in_words(gpt2, tmp_path):
    texts = etymon.generate(gpt2, ["a", "b"], max_new_tokens=2)
    lines = str(texts).splitlines()
    assert lines[0].split() == ["prompt", "text", "log-probability"] and len(lines) == 3
    assert re.search("bits per byte +[0-9.]+\n", str(etymon.score(gpt2, ["the river crossed"])[0]))
    assert str(etymon.explain("gpt2", "The cat.")).startswith("Every token is predicted")
    with small_runs.with_test_sizes():
        run = small_runs.pretrain("gpt2", tmp_path / "run")
    shown = str(run)
    assert "validation bits per byte" in shown and "Linear" not in shown and str(run.model_folder) in shown
    # Every line says what it is.
    assert "What it writes, step " in shown and f"model {run.model_folder}, report {run.report}" in shown


def test_tokens_are_shown_as_people_read_them(gpt2):
    (score,) = etymon.score(gpt2, ["the river crossed 好"])
    assert "Ġ" not in html(score) and "".join(score.pieces) == r"the␣river crossed␣\xe5\xa5\xbd"


def test_the_runs_of_a_comparison_draw_nothing_into_a_notebook(tmp_path, monkeypatch):
    for name in ("_in_notebook", "_can_draw"):
        monkeypatch.setattr(f"etymon.training.progress.{name}", lambda: True)

    def run(self, jobs):
        raise LookupError(*(job.run.progress for job in jobs))

    monkeypatch.setattr("etymon.lab.compare_jobs.IsolatedExecutor.run", run)
    with small_runs.with_test_sizes(), pytest.raises(LookupError, match="'silent'"):
        etymon.compare(
            ["gpt2", "bert"], data=Texts(tiny.texts(60)), budget="2ktokens", size="test", length=32, vocabulary=300,
            order=0, out=tmp_path / "compared",
        )  # fmt: skip


def test_scores_shade_what_was_not_expected(gpt2):
    scores = etymon.score(gpt2, ["the river crossed"])
    assert html(scores).count("<span") == len(scores[0].pieces)
    assert "bits" in html(etymon.surprisal(gpt2, "the river crossed"))


def test_models_and_pictures(gpt2, tmp_path):
    assert "GPT-2" in html(gpt2) and "layers" in html(gpt2)
    assert "<svg" in html(etymon.explain("bert", "The cat sat on the mat."))
    assert "<svg" in html(etymon.attention(gpt2, "the river", out=None))


def test_a_run_shows_its_curve_figures_and_what_it_writes(tmp_path):
    with small_runs.with_test_sizes():
        run = small_runs.pretrain("gpt2", tmp_path / "run")
    shown = html(run)
    assert "validation bits per byte" in shown and "<svg" in shown and "<blockquote" in shown
    assert "causal" in html(etymon.show(tmp_path / "run"))


def test_a_fine_tuned_model_shows_scores_beside_baselines(tmp_path):
    rows = [{"text": text, "label": text.split()[1][0]} for text in tiny.texts(40)]
    with small_runs.with_test_sizes():
        run = etymon.finetune(
            "bert", from_scratch=True, size="test", task="classify", train=rows, out=tmp_path / "run",
            steps=3, batch=4, length=32, progress="silent",
        )  # fmt: skip
    shown = html(run)
    assert "accuracy" in shown and "this model" in shown
    assert run.beside and all(who in shown for who in run.beside)


def test_ids_of_two_pictures_in_one_notebook_differ(gpt2):
    first, second = (
        set(re.findall(r' id="([^"]+)"', html(etymon.explain("bert", text))))
        for text in ("A cat.", "Two dogs.")
    )
    assert first and second and not first & second


def test_any_text_is_harmless():
    assert "<script>alert" not in html(
        Predicted({"text": EVIL}, {"prediction": EVIL, "probabilities": [0.5, 0.5]})
    )
    assert "<script>alert" not in render_inline([ShadedText([(EVIL, 0.5, EVIL)], EVIL)])
    assert "<script>alert" not in live_curve({EVIL: [(1, 2.0)]}, EVIL, None)


def test_spans_and_what_lies_between_make_up_the_text():
    parts = shaded_spans("one two three", [(0, 3, 0.1, ""), (8, 13, 7.0, "")])
    assert "".join(text for text, _, _ in parts) == "one two three"
    assert [share for _, share, _ in parts] == [0.1, None, 1.0]


def test_a_live_curve_is_small_however_long_the_run_is():
    points = [(float(step), 1 / (step + 1)) for step in range(100_000)]
    assert len(live_curve({"training": points}, "loss", 200_000)) < 6_000
    assert live_curve({}, "loss", 10) == live_curve({"training": [(1, float("nan"))]}, "loss", 10) == ""


def test_pretraining_in_a_notebook_draws_a_live_curve(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = f"""
import sys
sys.path.insert(0, {str(Path(etymon.__file__).parents[1])!r})
import etymon
from etymon.text.sources import Texts
run = etymon.pretrain("gpt2", data=Texts({tiny.texts(30)!r}), steps=4, batch=4, length=32, validate_every=2,
                      vocabulary=300, out={str(tmp_path / "run")!r}, set=("shape.layers=1", "shape.dim=32", "shape.heads=2"))
run
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    live = next(each.data for each in outputs if "100%" in each.get("data", {}).get("text/plain", ""))
    assert live["text/html"].count("<polyline") == 2 and "validation" in live["text/html"]
    result = outputs[-1]
    assert result.output_type == "execute_result" and "<svg" in result.data["text/html"]
