"""lm-evaluation-harness: the same figures as its own backend, offline, on local tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import etymon
from etymon.families.saving import save
from tests.generation.conftest import tiny_model

harness = pytest.importorskip("lm_eval")

TEXTS = ["The cat sat on the mat.", "Paris is the capital of France.", "The naïve dog ate soup."]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
"""
CHOICES = """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""


class Request:
    def __init__(self, *arguments: object) -> None:
        self.args = arguments


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("harness")
    for family in ("gpt2", "t5", "bert"):
        save(tiny_model(family), place / family)
    return place


def backends(models: Path, family: str):
    from lm_eval.models.huggingface import HFLM

    from etymon.harness import HarnessModel

    backend = "seq2seq" if family == "t5" else "causal"
    theirs = HFLM(
        pretrained=str(models / family), device="cpu", dtype="float32", batch_size=2, backend=backend
    )
    return HarnessModel(path=str(models / family)), theirs


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_figures_equal_those_of_its_own_backend(models: Path, family: str):
    ours, theirs = backends(models, family)
    pairs = [Request(text.rpartition(" ")[0], " " + text.rpartition(" ")[2]) for text in TEXTS]
    if family == "gpt2":
        pairs += [Request("", text) for text in TEXTS]
    mine, other = (each.loglikelihood(pairs, disable_tqdm=True) for each in (ours, theirs))
    assert [value for value, _ in mine] == pytest.approx([value for value, _ in other], abs=1e-4)
    assert [bool(flag) for _, flag in mine] == [bool(flag) for _, flag in other]
    long = [Request(text) for text in (*TEXTS, " ".join(TEXTS * 3))]
    mine, other = (each.loglikelihood_rolling(long, disable_tqdm=True) for each in (ours, theirs))
    assert mine == pytest.approx(other, rel=1e-4)
    asked = [Request(text, {"until": ["."], "max_gen_toks": 6, "do_sample": False}) for text in TEXTS]
    written = ours.generate_until(asked)
    if family == "gpt2":
        assert written == theirs.generate_until(asked, disable_tqdm=True)
    else:
        # Its own backend lets T5 write sentinels, which decoding then drops, and adds the source's tokens to
        # the limit: `etymon generate` writes words, and as many as were asked for.
        plain = etymon.generate(models / family, TEXTS, max_new_tokens=6, stop=["."])
        assert [text.strip() for text in written] == [each.text.strip() for each in plain]


def test_encoders_give_pseudo_likelihoods_and_say_so(models: Path, caplog):
    from etymon.generation.likelihood import score_texts
    from etymon.harness import HarnessModel

    ours = HarnessModel(path=str(models / "bert"))
    assert "pseudo-likelihoods" in caplog.text
    scored = ours.loglikelihood([Request("", text) for text in TEXTS], disable_tqdm=True)
    expected = [score.log_likelihood for score in score_texts(tiny_model("bert"), TEXTS)]
    assert [value for value, _ in scored] == pytest.approx(expected, abs=1e-3)


def test_a_local_task_through_its_command_line(models: Path, tmp_path: Path):
    rows = [
        {"question": "The cat sat on the", "choices": [" mat", " soup"], "answer": n % 2} for n in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    text = TASK.format(name="mine", data=tmp_path / "rows.jsonl") + CHOICES
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "etymon.harness", "--model_args", f"path={models / 'gpt2'}", "--tasks", "mine",
            "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = (tmp_path / "out").rglob("results*.json")
    assert json.loads(found.read_text(encoding="utf-8"))["results"]["mine"]["acc,none"] in (0.0, 0.5, 1.0)
