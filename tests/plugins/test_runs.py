"""Plugins through whole runs: trained, resumed, read, fine-tuned, swept, in workers; and code that never runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import etymon
from etymon import cli, registry
from etymon.errors import EtymonError
from etymon.training.state import RunFolder
from tests.conftest import forget_plugins
from tests.plugins.files import EVERY_THIRD, FAMILY, REVERSE, TASK, write, write_text
from tests.verbs.small_runs import metrics as curve_of

SMALL = ["shape.dim=32", "shape.layers=2", "shape.heads=2"]


def pretrain(family: str = "gpt2", out: str = "run", **changes: Any) -> Any:
    write_text()
    options: dict[str, Any] = {
        "data": ["text.txt"], "steps": 6, "batch": 8, "length": 32, "vocabulary": 300, "validate_every": 3,
        "save_every": 3, "set": SMALL, "progress": "silent", "out": out,
    }  # fmt: skip
    return etymon.pretrain(family, **{**options, **changes})


def resume(family: str = "gpt2", out: str = "run", **changes: Any) -> Any:
    return etymon.pretrain(family, out=out, resume=True, progress="silent", **changes)


def refused(message: str, call: Any, **options: Any) -> None:
    with pytest.raises(EtymonError, match=message) as raised:
        call(**options)
    assert "\n" not in str(raised.value)


def test_an_objective_of_a_file_trains_resumes_and_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    file = write("mine.py", REVERSE)
    run = pretrain(objective="mine.py:Reverse", keep=5)
    record = {
        "kind": "objective",
        "name": "reverse",
        "source": "mine.py",
        "digest": registry.plugins.digest_of(file),
    }
    assert yaml.safe_load(Path("run/run.yaml").read_text())["plugins"] == [record]
    assert yaml.safe_load(Path("run/run.yaml").read_text())["objective"] == "reverse"
    assert json.loads(Path("run/model/etymon.json").read_text())["plugins"] == [record]
    curve = curve_of(run.folder)

    # As after a kill: the last checkpoint is gone, and the process is another one.
    (last,) = RunFolder(Path("run")).checkpoints()[-1:]
    for path in sorted(RunFolder(Path("run")).checkpoint(last).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    RunFolder(Path("run")).checkpoint(last).rmdir()
    forget_plugins()
    os.environ[registry.plugins.NAMED] = ""
    refused(
        "run was made with the objective 'reverse' of the plugin mine.py, and a folder brings no code: give --plugin mine.py",
        resume,
    )
    again = resume(plugin="mine.py")
    assert curve_of(again.folder) == curve and again.metrics == run.metrics

    # A reader needs no plugin, and is told of one that has changed.
    forget_plugins()
    os.environ[registry.plugins.NAMED] = ""
    with pytest.raises(SystemExit) as left:
        cli.main(["show", "run"])
    shown = capsys.readouterr()
    assert left.value.code == 0 and f"objective 'reverse' of mine.py ({record['digest']})" in shown.out
    assert "note" not in shown.err
    write("mine.py", REVERSE + "# another\n")
    with pytest.raises(SystemExit):
        cli.main(["generate", "run", "the", "--max-new-tokens", "2", "--plugin", "mine.py"])
    noted = capsys.readouterr().err
    assert noted.count("etymon: note: the plugin mine.py is not as it was when run/model was made") == 1


def test_a_changed_plugin_is_refused_unless_insisted() -> None:
    write("mine.py", REVERSE)
    pretrain(objective="mine.py:Reverse")
    write("mine.py", REVERSE + "# another\n")
    refused("the plugin mine.py is not as it was .*--changed-plugins", resume, plugin="mine.py")
    assert resume(plugin="mine.py", changed_plugins=True).steps == 6
    Path("mine.py").unlink()
    forget_plugins()
    refused("there is no plugin mine.py", resume, plugin="mine.py")


def test_masking_optimiser_schedule_tokenizer_and_metrics_of_files() -> None:
    write("third.py", EVERY_THIRD)
    write(
        "lion.py",
        "import torch\n\nclass Lion(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):\n"
        "        super().__init__(params, {'lr': lr, 'betas': betas, 'weight_decay': 0.0})\n"
        "    @torch.no_grad()\n    def step(self, closure=None):\n        for group in self.param_groups:\n"
        "            for p in group['params']:\n                if p.grad is None:\n                    continue\n"
        "                m = self.state[p].setdefault('m', torch.zeros_like(p))\n"
        "                p.mul_(1 - group['lr'] * group['weight_decay'])\n"
        "                p.add_((m * group['betas'][0] + p.grad * (1 - group['betas'][0])).sign(), alpha=-group['lr'])\n"
        "                m.mul_(group['betas'][1]).add_(p.grad, alpha=1 - group['betas'][1])\n\n\n"
        "def triangle(step, steps, choice):\n    return 1 - abs(2 * (step + 1) / steps - 1)\n\n\n"
        "def words(texts, size, specials):\n"
        "    from tokenizers import Tokenizer, models, pre_tokenizers, trainers\n"
        "    made = Tokenizer(models.WordLevel(unk_token='[UNK]'))\n"
        "    made.pre_tokenizer = pre_tokenizers.Whitespace()\n"
        "    made.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=specials))\n"
        "    return made\n",
    )
    options = {"optimiser": "lion.py:Lion", "schedule": "lion.py:triangle", "learning_rate": 1e-3}
    masked = ["options.masking=third.py:every_third", *SMALL, "shape.inner_dim=32"]
    run = pretrain("bert", tokenizer="lion.py:words", objective="masked", set=masked, **options)
    records = {
        (each["kind"], each["name"]) for each in yaml.safe_load(Path("run/run.yaml").read_text())["plugins"]
    }
    assert records == {
        ("masking", "every-third"), ("optimiser", "Lion"), ("schedule", "triangle"), ("tokenizer", "words"),
    }  # fmt: skip
    rates = [row["learning_rate"] for row in RunFolder(run.folder).metrics() if "learning_rate" in row]
    np.testing.assert_allclose(rates, [1e-3 * (1 - abs(2 * (n + 1) / 6 - 1)) for n in range(6)])
    assert run.model.tokenizer.kind == "word"
    curve = curve_of(run.folder)
    # Resumed from the middle, with its optimiser's own state.
    checkpoint = RunFolder(run.folder).checkpoint(6)
    os.rename(checkpoint, "aside")
    forget_plugins()
    assert curve_of(resume("bert", plugin=["lion.py", "third.py"]).folder) == curve


def test_an_optimiser_whose_state_would_be_lost_is_refused_at_the_first_checkpoint() -> None:
    write(
        "sgd.py",
        "import torch\n\nclass Counting(torch.optim.SGD):\n    def step(self, closure=None):\n"
        "        super().step(closure)\n        for group in self.param_groups:\n"
        "            for p in group['params']:\n                self.state[p]['seen'] = 1\n",
    )
    refused(
        "Counting keeps seen as int, which no checkpoint can hold",
        pretrain,
        optimiser="sgd.py:Counting",
        learning_rate=1e-3,
    )


def test_a_family_of_a_file_is_saved_read_tuned_and_refused_without_it() -> None:
    write("families.py", FAMILY)
    write("mood.py", TASK)
    run = pretrain("families.py:FAMILY")
    assert json.loads(Path("run/model/config.json").read_text())["model_type"] == "etymon-gpt-mine"
    again = etymon.load("run")
    assert all(torch.equal(again.state_dict()[name], each) for name, each in run.model.state_dict().items())
    assert etymon.show("families.py:FAMILY").family.startswith("Mine")
    rows = [{"text": "a b c" if n % 2 else "c d", "label": str(n % 2)} for n in range(40)]
    etymon.finetune(
        "run", task="mood.py:Mood", train=rows, steps=3, baselines=False, out="tuned", progress="silent"
    )
    names = [entry["name"] for entry in json.loads(Path("tuned/model/etymon.json").read_text())["plugins"]]
    assert names == ["gpt-mine", "mood"]

    forget_plugins()
    os.environ[registry.plugins.NAMED] = ""
    refused(
        "run/model is a model of the family 'gpt-mine' of the plugin families.py, and a folder brings no code: "
        "give --plugin families.py",
        lambda: etymon.generate("run", ["a"], max_new_tokens=1),
    )
    refused(
        "there is no task 'mood': tuned/model was made with the plugin mood.py: give --plugin mood.py",
        lambda: etymon.predict("tuned", ["a b"], plugin="families.py"),
    )
    assert etymon.predict("tuned", ["a b"], plugin=["families.py", "mood.py"])[0].prediction in ("0", "1")


def test_a_metric_of_a_file_scores_and_chooses(tmp_path: Path) -> None:
    write(
        "metrics.py",
        "def right(predictions, references):\n"
        "    return [100.0 * (str(p) == str(r)) for p, r in zip(predictions, references)]\n\n\n"
        "def wrong(predictions, references):\n    return sum(map(lambda p, r: p != r, predictions, references))\n\n\n"
        "wrong.falls = True\n\n\ndef short(predictions, references):\n    return [1.0]\n",
    )
    rows = [{"text": "a b c" if n % 2 else "c d", "label": str(n % 2)} for n in range(60)]
    options: dict[str, Any] = {
        "task": "classify", "train": rows, "steps": 4, "baselines": False, "from_scratch": True, "out": "tuned",
        "set": [*SMALL, "shape.inner_dim=32"], "vocabulary": 40, "progress": "silent", "learning_rate": 1e-2,
    }  # fmt: skip
    metrics = ["metrics.py:right", "accuracy", "metrics.py:wrong"]
    run = etymon.finetune("bert", metric=metrics, **options)
    assert (
        run.scores["right"].value == pytest.approx(run.scores["accuracy"].value) and run.scores["wrong"].falls
    )
    scored = etymon.evaluate("tuned", data=rows, metric=["right", "wrong"], plugin="metrics.py").scores
    assert scored["right"].low is not None and scored["wrong"].low is None
    assert scored["wrong"].value == pytest.approx((100 - scored["right"].value) * 60 / 100)
    refused(
        "'short' gives 1 numbers for 60 rows",
        lambda: etymon.evaluate("tuned", data=rows, metric="metrics.py:short"),
    )


def test_worker_processes_prepare_samples_of_a_plugin() -> None:
    write("mine.py", REVERSE)
    alone = curve_of(pretrain(objective="mine.py:Reverse", out="alone").folder)
    assert curve_of(pretrain(objective="reverse", out="team", workers=1).folder) == alone


def test_a_sweep_over_objectives_takes_a_file_and_goes_on_with_it() -> None:
    write("mine.py", REVERSE)
    write_text()
    options: dict[str, Any] = {
        "data": ["text.txt"], "budget": "3steps", "batch": 8, "length": 32, "vocabulary": 300, "set": SMALL,
        "out": "swept", "progress": "silent", "grid": ["objective=causal,mine.py:Reverse"],
    }  # fmt: skip
    swept = etymon.sweep("gpt2", **options)
    assert {cell.name for ranking in swept.rankings for cell in ranking.cells} == {
        "objective=causal",
        "objective=reverse",
    }
    forget_plugins()
    os.environ[registry.plugins.NAMED] = ""
    refused(
        "swept was made with the objective 'reverse'", etymon.sweep, family="gpt2", out="swept", resume=True
    )
    assert etymon.sweep("gpt2", out="swept", resume=True, plugin="mine.py", progress="silent").done == 2


EVIL = "from pathlib import Path\n\nPath('was_run').write_text('x')\n" + REVERSE


def test_no_folder_brings_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a folder's files name, nothing of it is imported: not by a path, not by a module's name."""
    write("mine.py", REVERSE)
    pretrain(objective="mine.py:Reverse")
    forget_plugins()
    os.environ[registry.plugins.NAMED] = ""
    evil = write("run/evil.py", EVIL)
    write("evil_module.py", EVIL)
    for source in (str(evil), str(evil.absolute()), "evil_module", "evil.py", "run/evil.py:Reverse"):
        tree = yaml.safe_load(Path("run/run.yaml").read_text())
        tree["plugins"] = [{"kind": "objective", "name": "reverse", "source": source, "digest": "0" * 16}]
        Path("run/run.yaml").write_text(yaml.safe_dump(tree))
        manifest = json.loads(Path("run/model/etymon.json").read_text())
        manifest["plugins"] = [{"kind": "family", "name": "gpt-evil", "source": source, "digest": ""}]
        Path("run/model/etymon.json").write_text(json.dumps(manifest))
        refused("a folder brings no code", resume)
        refused("a folder brings no code", lambda: etymon.load("run"))
        for kind, value in (("objective", "run/evil.py:Reverse"), ("optimiser", "run/evil.py:Reverse")):
            write("config.yaml", f"family: gpt2\n{kind}: {value}\n")
            refused(
                "code is named on the command line, never in a file: say --plugin run/evil.py",
                pretrain,
                config="config.yaml",
                out="other",
            )
    write("config.yaml", "family: bert\nobjective: masked\noptions: {masking: 'run/evil.py:Reverse'}\n")
    refused("never in a file", pretrain, family="bert", config="config.yaml", out="other")
    assert not Path("was_run").exists()
    manifest["plugins"] = "all of them"
    Path("run/model/etymon.json").write_text(json.dumps(manifest))
    refused("plugins is no list", lambda: etymon.load("run"))


def test_a_plugin_that_raises_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write("mine.py", "raise RuntimeError('not today')\n")
    write_text()
    with pytest.raises(SystemExit) as left:
        cli.main("pretrain gpt2 --data text.txt --objective mine.py:Reverse --out run".split())
    line = capsys.readouterr().err
    assert left.value.code == 2 and line.count("\n") == 1
    assert "the plugin mine.py cannot be imported: RuntimeError, not today (line 1)" in line
    assert not Path("run").exists()


def test_several_processes_find_the_file() -> None:
    write("mine.py", REVERSE)
    write_text()
    line = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "etymon",
        *"pretrain gpt2 --data text.txt --objective mine.py:Reverse --slices 2 --steps 2 --batch 8 --length 32".split(),
        *"--vocabulary 300 --out run --progress silent".split(), *(word for each in SMALL for word in ("--set", each)),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(etymon.__file__).parents[1])}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    assert yaml.safe_load(Path("run/run.yaml").read_text())["plugins"][0]["name"] == "reverse"
