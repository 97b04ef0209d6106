"""What may go wrong around a run: two at once, damage, a full or read-only disk; and what a run shows of itself."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from safetensors import SafetensorError

import etymon
from etymon import cli
from etymon.errors import EtymonError
from etymon.runs.folder import require_agreement
from etymon.runs.result import Pretrained
from etymon.training import state as runs
from etymon.training.distributed import World
from etymon.training.progress import Progress
from etymon.training.state import RunFolder
from tests import tiny
from tests.verbs.pretraining.test_resume import same_weights
from tests.verbs.small_runs import crash, metrics, pretrain, resume


def test_two_processes_never_share_a_folder(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    def another() -> None:
        for attempt in (lambda: resume("gpt2", tmp_path / "run"), lambda: resume("gpt2", tmp_path / "run")):
            with pytest.raises(
                EtymonError, match=r"another process is training in .*run: wait for it"
            ) as error:
                attempt()
            assert "\n" not in str(error.value)

    at_step(6, another)
    result = pretrain("gpt2", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight("gpt2").folder), "and the first one is not disturbed"


def test_a_killed_process_does_not_leave_a_lock(tmp_path: Path, at_step: Callable[..., None]) -> None:
    at_step(6, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run")
    code = (
        "import sys, time; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(timeout=0); "
        "print('held', flush=True); time.sleep(60)"
    )
    lock = tmp_path / "run" / ".lock"
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(EtymonError, match="another process is training"):
            resume("gpt2", tmp_path / "run")
        holder.kill()
    assert resume("gpt2", tmp_path / "run").steps == 12
    with FileLock(lock, timeout=0):
        pass


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    damage: str, straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    at_step(11, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("t5", tmp_path / "run")
    assert RunFolder(tmp_path / "run").checkpoints() == [5, 10]
    file = RunFolder(tmp_path / "run").checkpoint(10) / "optimiser.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    capsys.readouterr()
    result = etymon.pretrain("t5", size="test", out=tmp_path / "run", resume=True, progress="plain")
    told = [line for line in capsys.readouterr().err.splitlines() if "passing over" in line]
    assert len(told) == 1
    assert "step-00000010 is broken: optimiser.safetensors is not what was saved" in told[0]
    assert metrics(result.folder) == metrics(straight("t5").folder)
    assert same_weights(result.folder, straight("t5").folder)


def test_a_run_does_not_go_on_with_a_damaged_text(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    at_step(6, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run")
    file = tmp_path / "run" / "store" / "train" / "tokens.bin"
    whole = file.read_bytes()
    file.write_bytes(
        bytes([*whole[:40], whole[40] ^ 1, *whole[41:]])
    )  # another token, which nobody would notice
    with pytest.raises(
        EtymonError, match=r"cannot go on: .*tokens\.bin is damaged \(wrong checksum\)"
    ) as error:
        resume("gpt2", tmp_path / "run")
    assert "another --out" in str(error.value) and "\n" not in str(error.value)
    file.write_bytes(whole)
    assert same_weights(resume("gpt2", tmp_path / "run").folder, straight("gpt2").folder)


def test_leftovers_of_a_killed_process_are_removed(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    at_step(6, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run")
    left = [
        tmp_path / "run" / name for name in (".model.1-ab.partial", "checkpoints/.step-00000010.1-ab.partial")
    ]
    for folder in left:
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "weights").write_bytes(b"half")
    (tmp_path / "run" / ".metrics.jsonl.1-ab.partial").write_text("half", encoding="utf-8")
    result = resume("gpt2", tmp_path / "run")
    assert list(result.folder.rglob("*.partial")) == []
    assert same_weights(result.folder, straight("gpt2").folder)


# ------------------------------------------------------------ disks


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), SafetensorError("I/O error: No space left on device")],
)
def test_a_checkpoint_that_cannot_be_written(
    failure: Exception, straight: Callable[[str], Pretrained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        if (tmp_path / "run" / "checkpoints" / "step-00000005").exists():
            raise failure
        real(*_)

    real = runs.save_file
    with monkeypatch.context() as patch:
        patch.setattr(runs, "save_file", full)
        with pytest.raises(
            EtymonError, match=r"cannot write .*step-00000010.*No space left.*--resume"
        ) as error:
            pretrain("gpt2", tmp_path / "run")
    assert "\n" not in str(error.value)
    assert RunFolder(tmp_path / "run").checkpoints() == [5] and not list(tmp_path.rglob("*.partial"))
    result = resume("gpt2", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight("gpt2").folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room, where mounting is allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=8m", "etymon-test", str(place)]
    try:
        subprocess.run(mounting, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def test_a_full_and_a_read_only_disk(
    small_disk: Path, straight: Callable[[str], Pretrained], at_step: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fill() -> None:
        with open(small_disk / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    at_step(6, fill)
    with pytest.raises(EtymonError, match=r"cannot write .*No space left on device") as error:
        pretrain("gpt2", small_disk / "run")
    assert "\n" not in str(error.value)
    assert RunFolder(small_disk / "run").checkpoints() == [5]
    with pytest.raises(SystemExit) as leaving:  # still full: again one line
        cli.main(["pretrain", "gpt2", "--out", str(small_disk / "run"), "--resume", "--progress", "plain"])
    told = capsys.readouterr().err.splitlines()
    assert leaving.value.code == 2 and told[-1].startswith("etymon: error: cannot write")
    assert not any("Traceback" in line for line in told)
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for attempt in (lambda: resume("gpt2", small_disk / "run"), lambda: pretrain("gpt2", small_disk / "new")):
        with pytest.raises(EtymonError, match=r"cannot write to .*disk") as error:
            attempt()
        assert "\n" not in str(error.value)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    result = resume("gpt2", small_disk / "run")
    assert metrics(result.folder) == metrics(straight("gpt2").folder)
    assert same_weights(result.folder, straight("gpt2").folder)


# ------------------------------------------------------------ workers


def test_workers_may_come_and_go(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    """With two processes that prepare samples, then with none: not a bit changes."""
    at_step(7, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("bert", tmp_path / "run", workers=2)
    result = resume("bert", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight("bert").folder)
    assert same_weights(result.folder, straight("bert").folder)


# ------------------------------------------------------------ what it shows


def test_tensorboard_events(
    straight: Callable[[str], Pretrained], tmp_path: Path, at_step: Callable[..., None]
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    at_step(8, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run", tensorboard=True)
    result = resume("gpt2", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight("gpt2").folder), "only watched, not changed"
    events = EventAccumulator(str(result.folder / "tensorboard")).Reload()
    shown = events.Scalars("bits_per_byte")
    taken = [record for record in metrics(result.folder) if "learning_rate" in record]
    assert [event.step for event in shown] == list(range(1, 13)), "steps that were taken twice are there once"
    assert [event.value for event in shown] == pytest.approx([record["bits_per_byte"] for record in taken])
    assert {"validation_bits_per_byte", "learning_rate", "gradient_norm", "tokens_per_second"} <= set(
        events.Tags()["scalars"]
    )


@pytest.mark.parametrize("family, unit", [("gpt2", "bits_per_byte"), ("bert", "bits_per_target")])
def test_the_display_gets_what_it_shows(
    family: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watching(Progress):
        seen: list[tuple[int, dict[str, Any]]] = []

        def update(self, step: int, values: Any) -> None:
            self.seen.append((step, dict(values)))

    watching = Watching()
    monkeypatch.setattr("etymon.training.progress.make_progress", lambda kind: watching)
    pretrain(family, tmp_path / "run", steps=3)
    assert [step for step, _ in watching.seen] == [1, 2, 3]
    for _, values in watching.seen:
        beside = {"bits_per_character"} if unit == "bits_per_byte" else set()
        assert set(values) == {unit, "tokens_per_second", "mfu", "memory", "validation", *beside}
        assert all(value > 0 for value in values.values())
        assert values["mfu"] < 1.5 and values["memory"] > 10**7


# ------------------------------------------------------------ dry run


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.runs.text_data.BEGINNING_BYTES", 2000)
    monkeypatch.setattr("etymon.runs.text_data.WHOLE_BYTES", 2000)
    text = tmp_path / "text"
    text.mkdir()
    for number, content in enumerate(tiny.texts(80)):
        (text / f"{number}.txt").write_text(content, encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    command = (
        f"pretrain bert --data {text} --size test --budget 5epochs --batch 8 --dry-run --out {tmp_path}/run"
    )
    phases = "phases=[{share: 0.9, length: 16}, {share: 0.1, objective: masked}]"
    with pytest.raises(SystemExit) as leaving:
        cli.main([*command.split(), "--set", phases])
    assert leaving.value.code == 0
    told = {line[:14].strip(): line[15:] for line in capsys.readouterr().out.splitlines()}
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written"
    assert told["model"].startswith("BERT test, ") and "parameters" in told["model"]
    assert told["steps"].startswith("about ") and "(5epochs)" in told["steps"]
    assert told["phase 1"] == "90% of the steps, masked-next-sentence, 8 a step of up to 16 tokens"
    assert told["phase 2"] == "10% of the steps, masked, 8 a step of up to 64 tokens"
    assert re.search(r"\d [MG]B after a step", told["memory"]), "a process of Python takes megabytes"
    assert "B after a step" in told["memory"] and "ms a step" in told["time"]
    assert told["folder"] == f"{tmp_path}/run" and list(told)[-1] == "everything wor"

    # The estimate by the beginning of the text is near the truth.
    run = pretrain(
        "bert", tmp_path / "run", data=[text], steps=None, budget="1epoch", slices=1, validate_every=999,
        save_every=999,
    )  # fmt: skip
    plan = pretrain(
        "bert", tmp_path / "dry", data=[text], steps=None, budget="1epoch", slices=1, dry_run=True,
    ).plan  # fmt: skip
    guessed = int(plan["steps"].split()[1].replace(",", ""))
    assert guessed == pytest.approx(run.steps, rel=0.25)
    prepared = pretrain("bert", tmp_path / "dry", data=str(run.folder / "store"), steps=7, dry_run=True)
    assert prepared.plan["steps"].startswith("7 (7steps)") and prepared.steps == 0
    # A phase with a text of its own reads that one, not the store.
    bare = tmp_path / "empty.txt"
    bare.write_text("", encoding="utf-8")
    with pytest.raises(EtymonError, match="empty"):
        pretrain(
            "bert", tmp_path / "dry", data=str(run.folder / "store"), steps=7, dry_run=True,
            set=[f"phases=[{{share: 0.5}}, {{share: 0.5, data: [{bare}]}}]"],
        )  # fmt: skip
    assert not (tmp_path / "dry").exists()


def test_a_dry_run_refuses_what_the_run_would(straight: Callable[[str], Pretrained], tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match="holds a run already"):
        pretrain("gpt2", straight("gpt2").folder, dry_run=True)
    with pytest.raises(EtymonError, match="no such file or folder: nowhere"):
        pretrain("gpt2", tmp_path / "run", data=["nowhere"], dry_run=True)
    with pytest.raises(EtymonError, match="phase 2 gets no step of 3"):
        pretrain(
            "gpt2", tmp_path / "run", steps=3, dry_run=True, set=["phases=[{share: 0.95}, {share: 0.05}]"]
        )
    assert list(tmp_path.iterdir()) == []


def test_processes_that_do_not_see_the_same_folder_are_refused(tmp_path: Path) -> None:
    class Other(World):
        """Two processes, of which one finds a run."""

        def add(self, values: dict[str, float]) -> dict[str, float]:
            return {"resuming": 1.0}

    with pytest.raises(EtymonError, match="others find none: give an --out that all of them see"):
        require_agreement(tmp_path, True, Other(size=2))
    require_agreement(tmp_path, True, World())
