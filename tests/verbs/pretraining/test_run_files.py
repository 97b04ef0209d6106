"""Run files: YAML, options and overrides become one strict description, which is documented and repeats the run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_core import PydanticUndefined

from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.runs.result import Pretrained
from etymon.runs.run_file import RunFile, assemble, find_difference, plain
from etymon.settings.training import PhaseFile
from etymon.training.optimisers import OptimiserChoice
from etymon.training.schedules import ScheduleChoice
from etymon.training.settings import TrainingSettings
from etymon.verbs.pretrain import pretrain as pretrain_verb
from tests import tiny
from tests.verbs.small_runs import metrics, pretrain, resume

PAGE = Path(__file__).parents[3] / "docs" / "run-files.md"


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        return tmp_path / "run.yaml"

    return write


# ------------------------------------------------------------ what counts


def test_options_beat_the_file_and_overrides_beat_both(written: Callable[[str], Path]) -> None:
    file = written(
        "family: bert\nbatch: 4\nlength: 16\nseed: 1\nshape: {layers: 3, heads: 1}\nsave_at: [1epoch]\n"
    )
    plainly = assemble(RunFile, {"family": "bert", "batch": None}, file)
    assert (plainly.batch, plainly.length, plainly.seed) == (4, 16, 1)
    assert plainly.shape == {"layers": 3, "heads": 1} and plainly.save_at == ("1epoch",)
    given = assemble(
        RunFile, {"family": "bert", "batch": 8, "length": 32}, file, ["length=64", "shape.layers=2"]
    )
    assert (given.batch, given.length, given.seed) == (8, 64, 1)
    assert given.shape == {"layers": 2, "heads": 1}
    assert assemble(
        RunFile, {"family": "bert"}, None, ["batch=3", "phases=[{share: 1.0, length: 8}]"]
    ) == RunFile(family="bert", batch=3, phases=(PhaseFile(share=1.0, length=8),))
    assert assemble(RunFile, {"family": "gpt2"}, written("size: pocket")).family == "gpt2"


def test_what_a_verb_was_given_becomes_settings(written: Callable[[str], Path]) -> None:
    options = pretrain_verb.read(
        {
            "family": "bert",
            "batch": 3,
            "frozen": (),
            "save_at": [],
            "tensorboard": False,
            "from_": Path("there"),
        }
    )
    assert options.run == {"batch": 3, "tensorboard": False, "start": Path("there")}
    given = {"family": options.family, **options.run}
    file = assemble(RunFile, given, written("tensorboard: true\nsave_at: [1epoch]"))
    assert (file.start, file.tensorboard, file.save_at) == ("there", False, ("1epoch",))


@pytest.mark.parametrize(
    "text, overrides, reason",
    [
        ("bacth: 3", [], r"unknown key 'bacth' in .*run\.yaml: did you mean 'batch'\?"),
        ("phases: [{shrae: 1}]", [], r"unknown key 'shrae' in .*run\.yaml, section phases\.0: did you mean 'share'\?"),
        ("training: {steps: 3, rows: 1, schedule: {nam: linear}}", [], "did you mean 'name'"),
        ("batch: many", [], r"batch is \"many\", expected a valid integer"),
        ("batch: '8'", [], r"batch is \"8\", expected a valid integer"),
        ("tensorboard: 1", [], "tensorboard is 1, expected true or false"),
        ("documents: page", [], "documents is \"page\", expected 'file', 'blank' or 'line'"),
        ("phases: {share: 1}", [], "phases is .*expected"),
        ("data: corpus.txt", [], "data is \"corpus.txt\", expected"),
        ("batch: 3\nbatch: 4", [], "key 'batch' is written twice .*again in line 2"),
        ("- a\n- b", [], "must hold keys and values, but it is a list"),
        ("family: gpt2", [], r"run\.yaml is for gpt2, not bert"),
        ("", ["family=gpt2"], "the run is for bert, and --set family=gpt2 is not"),
        ("", ["lenght=3"], "unknown key 'lenght'.*did you mean 'length'"),
        ("", ["batch"], "cannot read the override 'batch': write it as key=value"),
        ("", ["batch.size=3"], "unknown key 'size'|batch is"),
        ("phases: [{share: 0.5}, {share: 0.4}]", [], "shares of the phases must add up to 1, not 0.9"),
        ("phases: [{share: 1.5}, {share: -0.5}]", [], r"phases\.1\.share is -0.5, expected above 0"),
        ("phases: [{share: 1, batch: 3}]\nslices: 2", [], "a batch of 3 samples cannot be cut into 2 equal slices"),
        ("phases: [{share: 1, length: 0}]", [], r"phases\.0\.length is 0, expected at least 1"),
        ("start: somewhere\nshape: {layers: 1}", [], "has its shape: leave that out"),
        ("tokenizer: here\nvocabulary: 300", [], "give a tokenizer or the size of a vocabulary"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    text: str, overrides: list[str], reason: str, written: Callable[[str], Path]
) -> None:
    with pytest.raises(EtymonError, match=reason) as error:
        assemble(RunFile, {"family": "bert"}, written(text), overrides)
    assert "\n" not in str(error.value)


def test_resuming_may_say_the_same_again_but_nothing_else() -> None:
    begun = RunFile(
        family="bert",
        batch=8,
        phases=(
            PhaseFile(share=0.5, length=16, batch=8, objective="masked"),
            PhaseFile(share=0.5, length=32, batch=8, objective="masked"),
        ),
    )
    assert find_difference(RunFile(family="bert"), begun) is None
    assert (
        find_difference(
            RunFile(family="bert", batch=8, phases=(PhaseFile(share=0.5, length=16), PhaseFile(share=0.5))),
            begun,
        )
        is None
    )
    assert find_difference(RunFile(family="bert", phases=(PhaseFile(share=0.5), PhaseFile(share=0.5, length=64))), begun) == (
        "length of phase 2", 64, 32,
    )  # fmt: skip
    assert find_difference(RunFile(family="bert", phases=(PhaseFile(share=1.0),)), begun) == ("phases", 1, 2)
    assert find_difference(RunFile(family="bert", batch=9), begun) == ("batch", 9, 8)


# ------------------------------------------------------------ what a run leaves


def test_the_resolved_file_is_complete_and_repeats_the_run(
    straight: Callable[[str], Pretrained], tmp_path: Path
) -> None:
    done = straight("bert")
    tree = yaml.safe_load((done.folder / "run.yaml").read_text(encoding="utf-8"))
    assert set(tree) == {field.name for field in fields(RunFile)}
    assert set(tree["training"]) == {field.name for field in fields(TrainingSettings)}
    assert set(tree["training"]["optimiser"]) == {field.name for field in fields(OptimiserChoice)}
    assert set(tree["training"]["schedule"]) == {field.name for field in fields(ScheduleChoice)}
    assert (tree["budget"], tree["batch"], tree["length"]) == ("12steps", 8, 32)
    assert tree["objective"] == "masked-next-sentence" and tree["text"] == "texts given by the program"
    begun = load_yaml(done.folder / "run.yaml", RunFile)
    begun.write(tmp_path / "again.yaml")
    assert load_yaml(tmp_path / "again.yaml", RunFile) == begun
    told = dict.fromkeys(("size", "steps", "batch", "slices", "length", "learning_rate", "validation", "validate_every", "save_every"))  # fmt: skip
    again = pretrain("bert", tmp_path / "run", config=done.folder / "run.yaml", **told)
    assert metrics(again.folder) == metrics(done.folder)
    # With another setting the old run's figures are not what the new one comes to.
    other = pretrain("bert", tmp_path / "other", config=done.folder / "run.yaml", **{**told, "steps": 3})
    assert other.steps == 3


def test_an_edited_file_is_worked_out_anew(straight: Callable[[str], Pretrained], tmp_path: Path) -> None:
    old = (straight("gpt2").folder / "run.yaml").read_text(encoding="utf-8")
    begun, after = "budget: 12steps", "budget: 3steps"
    assert begun in old and assemble(RunFile, {}, _file(tmp_path, old)).training is not None
    edited = _file(tmp_path, old.replace(begun, after))
    assert assemble(RunFile, {}, edited).training is None
    told = dict.fromkeys(("size", "steps", "batch", "slices", "length", "learning_rate", "validation", "validate_every", "save_every"))  # fmt: skip
    assert pretrain("gpt2", tmp_path / "new", config=edited, **told).steps == 3
    # What was edited in the section itself counts; a run in its own folder goes on as it began.
    own = _file(tmp_path, old.replace("  log_layers_every: 50", "  log_layers_every: 7"))
    settings = assemble(RunFile, {}, own).training
    assert settings is not None and settings.log_layers_every == 7
    (tmp_path / "new" / "run.yaml").write_text(old.replace(begun, after), encoding="utf-8")
    with pytest.raises(
        EtymonError, match=r"run\.yaml was edited since, and a run goes on as it began: undo that"
    ):
        resume("gpt2", tmp_path / "new")
    for name in ("steps", "log_layers_every", "validate_every", "save_every", "keep"):
        with pytest.raises(EtymonError, match=f"training.{name} is 0, expected at least 1"):
            assemble(RunFile, {}, own, [f"training.{name}=0"])


def _file(folder: Path, text: str) -> Path:
    (folder / "given.yaml").write_text(text, encoding="utf-8")
    return folder / "given.yaml"


def test_what_was_left_open_is_filled_in(tmp_path: Path) -> None:
    phases = "phases=[{share: 0.5, length: 16}, {share: 0.5, objective: masked}]"
    run = pretrain("bert", tmp_path / "run", steps=2, batch=None, length=None, set=[phases])
    begun = load_yaml(run.folder / "run.yaml", RunFile)
    assert begun.phases == (
        PhaseFile(share=0.5, length=16, batch=128, objective="masked-next-sentence"), PhaseFile(share=0.5, length=64, batch=32, objective="masked"),
    )  # fmt: skip
    assert resume("bert", run.folder, set=[phases]).steps == 2
    with pytest.raises(EtymonError, match="began with length of phase 1 16, not 17: it goes on as it began"):
        resume("bert", run.folder, set=[phases.replace("16", "17")])


def test_parameters_may_be_frozen_and_the_gradient_left_as_it_is(
    straight: Callable[[str], Pretrained], tmp_path: Path
) -> None:
    frozen = pretrain(
        "gpt2", tmp_path / "run", from_=straight("gpt2").folder, size=None, clip=0.0, steps=2,
        set=["frozen=[body.embeddings.*, '*.layers.0.*']"],
    )  # fmt: skip
    begun = load_yaml(frozen.folder / "run.yaml", RunFile)
    assert begun.training is not None and begun.training.clip is None
    assert begun.training.optimiser.frozen == ("body.embeddings.*", "*.layers.0.*")
    before = dict(straight("gpt2").model.named_parameters())
    same = {name for name, value in frozen.model.named_parameters() if value.equal(before[name])}
    assert same == {name for name in before if name.startswith("body.embeddings.") or ".layers.0." in name}
    with pytest.raises(EtymonError, match="no parameter matches the frozen pattern"):
        pretrain("gpt2", tmp_path / "other", set=["frozen=[body.embedings.*]"])


# ------------------------------------------------------------ what the page says


def documented(heading: str) -> dict[str, tuple[str, str]]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n{heading}\n")[1].split("\n#")[0]
    return {
        key: (default.strip().strip("`"), meaning)
        for key, default, meaning in re.findall(r"^\| `(\w+)` \|(.*?)\| (.*) \|$", section, re.MULTILINE)
    }


@pytest.mark.parametrize(
    "heading, cls",
    [
        ("### `training`", TrainingSettings),
        ("### `training.optimiser`", OptimiserChoice),
        ("### `training.schedule`", ScheduleChoice),
    ],
)
def test_every_key_is_documented_with_its_default(heading: str, cls: Any) -> None:
    told = documented(heading)
    assert list(told) == [field.name for field in fields(cls)], "the same keys in the same order"
    for field in fields(cls):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        default = plain(getattr(default, "default", default))  # pydantic wraps what it is given
        if isinstance(default, OptimiserChoice | ScheduleChoice) or default in (
            None,
            MISSING,
            PydanticUndefined,
        ):
            expected = ""
        else:
            expected = str(default).lower() if isinstance(default, bool) else str(default)
        assert told[field.name][0] == expected, field.name
        assert len(told[field.name][1]) > 10


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "text.txt").write_text("\n".join(tiny.texts()), encoding="utf-8")
    (tmp_path / "bert.yaml").write_text(example.replace("corpus/", f"{tmp_path}/corpus/"), encoding="utf-8")
    told = dict.fromkeys(("data", "steps", "batch", "slices", "length", "learning_rate"))
    run = pretrain(
        "bert", tmp_path / "run", config=tmp_path / "bert.yaml", budget="10steps", documents="line",
        set=["phases=" + str(yaml.safe_load(example)["phases"]).replace("64}", "8}").replace("32}", "4}")], **told,
    )  # fmt: skip
    taken = [record for record in metrics(run.folder) if "learning_rate" in record]
    begun = load_yaml(run.folder / "run.yaml", RunFile)
    assert [(phase.share, phase.length, phase.batch) for phase in begun.phases] == [
        (0.9, 32, 8),
        (0.1, 64, 4),
    ]
    sizes = [
        now["tokens"] - before["tokens"] for before, now in zip([{"tokens": 0}, *taken], taken, strict=False)
    ]
    assert max(sizes[:9]) <= 8 * 32 and 4 * 32 < sizes[9] <= 4 * 64


@pytest.mark.parametrize(
    "digest", ["1234567890123e45", "1234567890123456", "12e3456789012345", "abcdef0123456789"]
)
def test_a_digest_that_looks_like_a_number_is_read_back_as_text(
    digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.runs.run_file._digest", lambda tree: digest)
    file = assemble(RunFile, {"family": "gpt2", "learning_rate": 1e-5})
    file.write(tmp_path / "run.yaml")
    again = load_yaml(tmp_path / "run.yaml", RunFile)
    assert again.settled == digest and again.learning_rate == 1e-5
