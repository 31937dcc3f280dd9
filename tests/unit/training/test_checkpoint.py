"""Checkpoints are complete or absent, whatever happens to the disk."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from failing_disk import ALWAYS, FailingDisk
from sightline.data.manifest import write_manifest
from sightline.errors import DamagedError, FormatError, StorageError, TrainingError
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory, load_checkpoint


def checkpoint(step: int, value: float = 1.0) -> Checkpoint:
    weights = {"layer.weight": torch.full((3, 4), value * step), "count": torch.tensor(step)}
    return Checkpoint(weights, {"layer.weight": torch.zeros(3, 4)}, {"state": {0: torch.ones(2)}}, {"step": step})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    assert directory.load_latest() is None
    directory.save(checkpoint(1))
    directory.save(checkpoint(2))
    found = directory.load_latest()
    assert found is not None
    assert found.progress == {"step": 2}
    assert found.ema is not None
    assert torch.equal(found.weights["layer.weight"], torch.full((3, 4), 2.0))
    assert torch.equal(found.optimizer["state"][0], torch.ones(2))


def test_a_checkpoint_of_a_later_version_is_refused_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = CheckpointDirectory(tmp_path)
    directory.save(checkpoint(1))
    with monkeypatch.context() as later:
        later.setattr("sightline.training.checkpoint._FORMAT", 2)
        directory.save(checkpoint(2))
    for read in (directory.load_latest, directory.latest_progress):
        with pytest.raises(FormatError, match=r"format version 2, and this Sightline reads 1: install the version"):
            read()


def test_the_directory_of_the_first_one_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = [], os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    CheckpointDirectory(tmp_path / "run" / "checkpoints").save(checkpoint(1))
    assert {tmp_path, tmp_path / "run", tmp_path / "run" / "checkpoints"} <= set(synced)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path, keep=2)
    for step in range(1, 6):
        directory.save(checkpoint(step))
    assert sorted(place.name for place in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


FILES = ["weights.safetensors", "ema.safetensors", "optimizer.pt", "progress.json", "manifest.json"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_torn_file_falls_back_to_the_one_before(tmp_path: Path, file: str, share: float) -> None:
    directory = CheckpointDirectory(tmp_path)
    directory.save(checkpoint(1))
    torn = directory.save(checkpoint(2)) / file
    torn.write_bytes(torn.read_bytes()[: int(torn.stat().st_size * share)])
    found = directory.load_latest()
    assert found is not None
    assert found.progress == {"step": 1}


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_byte_or_a_missing_file_is_noticed(tmp_path: Path, file: str) -> None:
    place = CheckpointDirectory(tmp_path).save(checkpoint(1))
    data = bytearray((place / file).read_bytes())
    data[len(data) // 2] ^= 1
    (place / file).write_bytes(data)
    with pytest.raises(DamagedError):
        load_checkpoint(place)
    (place / file).unlink()
    with pytest.raises(DamagedError):
        load_checkpoint(place)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, bad: float) -> None:
    with pytest.raises(TrainingError, match=r"not finite: layer\.weight"):
        CheckpointDirectory(tmp_path).save(checkpoint(1, bad))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    directory.save(checkpoint(1))
    large = Checkpoint({"weight": torch.ones(1 << 20)}, None, {}, {"step": 2})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot save a checkpoint"):
            directory.save(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = directory.load_latest()
    assert found is not None
    assert found.progress == {"step": 1}
    assert [place.name for place in tmp_path.iterdir()] == ["step-00000001"]


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    directory = CheckpointDirectory(tmp_path / "run")
    place = directory.save(checkpoint(1))
    torch.save(Evil(), place / "optimizer.pt")
    (place / "manifest.json").unlink()
    write_manifest(place)
    with pytest.raises(DamagedError, match=r"optimizer\.pt"):
        load_checkpoint(place)
    assert not (tmp_path / "ran").exists()


def test_what_a_killed_save_left_is_removed(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    place = directory.save(checkpoint(1))
    shutil.copytree(place, tmp_path / ".step-00000002.99.tmp")
    directory.save(checkpoint(3))
    assert sorted(found.name for found in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


KILLED = """
import os, sys
from pathlib import Path
import torch
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory

def checkpoint(step, value):
    return Checkpoint({"weight": torch.full((3,), value)}, None, {"state": {}}, {"step": step, "value": value})

def saved_until_killed(path, step, after):
    # A child saves, and is gone before its file operation number `after`; returns whether the save had returned.
    child = os.fork()
    if child == 0:
        left = [after]
        def count(event, arguments):
            if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
        directory = CheckpointDirectory(path)
        directory.load_latest()
        sys.addaudithook(count)
        directory.save(checkpoint(step, 2.0))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

for step in (7, 8):
    for after in range(1000):
        path = Path(sys.argv[1]) / f"{step}-{after}"
        for number in (6, 7):
            CheckpointDirectory(path).save(checkpoint(number, 1.0))
        returned = saved_until_killed(path, step, after)
        found = CheckpointDirectory(path).load_latest().progress
        assert found["step"] >= 7, (step, after, found)
        assert found["value"] == 2.0 or not returned, (step, after, found)
        if returned:
            break
    print(after)
"""


def test_a_kill_before_any_file_operation_of_a_save_loses_nothing(tmp_path: Path) -> None:
    """Step 7 is saved a second time, as at the end of an epoch; step 8 is new."""
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert all(int(kills) > 8 for kills in done.stdout.split())


def test_after_all_were_torn_new_ones_are_kept(tmp_path: Path) -> None:
    for step in (100, 101):
        (CheckpointDirectory(tmp_path).save(checkpoint(step)) / "manifest.json").write_bytes(b"")
    directory = CheckpointDirectory(tmp_path)
    assert directory.load_latest() is None
    directory.save(checkpoint(1))
    found = CheckpointDirectory(tmp_path).load_latest()
    assert found is not None
    assert found.progress == {"step": 1}


def test_a_torn_one_does_not_take_the_place_of_a_whole_one(tmp_path: Path) -> None:
    for step in (4, 5):
        place = CheckpointDirectory(tmp_path).save(checkpoint(step))
    (place / "progress.json").write_bytes(b"")
    directory = CheckpointDirectory(tmp_path)
    assert directory.load_latest() is not None
    (directory.save(checkpoint(5)) / "progress.json").write_bytes(b"")
    found = CheckpointDirectory(tmp_path).load_latest()
    assert found is not None
    assert found.progress == {"step": 4}


READS = [(Path, "read_bytes"), (Path, "stat"), (Path, "read_text"), (os, "listdir")]


@pytest.mark.parametrize(("owner", "function"), READS)
@pytest.mark.usefixtures("impatient")
def test_a_disk_that_cannot_be_read_for_a_while_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str
) -> None:
    directory = CheckpointDirectory(tmp_path)
    for step in (1, 2):
        directory.save(checkpoint(step))
    disk = FailingDisk(monkeypatch, owner, function, str(tmp_path))
    disk.failures = 2
    found = directory.load_latest()
    assert disk.failed == 2
    assert found is not None
    assert found.progress == {"step": 2}
    disk.failures = 2
    assert directory.latest_progress() == {"step": 2}


@pytest.mark.parametrize(("owner", "function"), READS)
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.usefixtures("impatient")
def test_a_disk_that_cannot_be_read_is_no_reason_to_pass_over_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, number: int
) -> None:
    directory = CheckpointDirectory(tmp_path)
    for step in (1, 2):
        directory.save(checkpoint(step))
    with monkeypatch.context() as patch:
        disk = FailingDisk(patch, owner, function, str(tmp_path))
        disk.failures, disk.number = ALWAYS, number
        with pytest.raises(StorageError, match=rf"cannot read '{tmp_path}.*{os.strerror(number)}.*same command"):
            directory.load_latest()
        assert disk.failed == 1 or number != errno.EACCES, "what is forbidden is not tried again"
    found = directory.load_latest()
    assert found is not None
    assert found.progress == {"step": 2}


def test_a_checkpoint_that_is_removed_while_it_is_read_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the run that trains has saved a newer one."""
    place = CheckpointDirectory(tmp_path).save(checkpoint(1))
    monkeypatch.setattr("sightline.training.checkpoint.verify_manifest", shutil.rmtree)
    with pytest.raises(DamagedError, match=r"cannot be read: .*No such file"):
        load_checkpoint(place)


WRITES = [
    (os, "fsync", ""),
    (os, "listdir", ""),
    (Path, "mkdir", ".step-00000003"),
    (Path, "write_bytes", "optimizer.pt"),
    (Path, "rename", ".step-00000003"),
]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write[1])
@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.usefixtures("impatient")
def test_a_save_on_a_disk_that_fails_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: tuple[Any, str, str], failures: int
) -> None:
    directory = CheckpointDirectory(tmp_path)
    for step in (1, 2):
        directory.save(checkpoint(step))
    with monkeypatch.context() as patch:
        disk = FailingDisk(patch, *write)
        disk.failures = failures
        assert directory.save(checkpoint(3)) == tmp_path / "step-00000003"
        assert disk.failed == failures
    assert sorted(place.name for place in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert load_checkpoint(tmp_path / "step-00000003").progress == {"step": 3}


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write[1])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS])
@pytest.mark.usefixtures("impatient")
def test_a_save_on_a_disk_that_fails_for_good_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: tuple[Any, str, str], number: int
) -> None:
    directory = CheckpointDirectory(tmp_path)
    for step in (1, 2):
        directory.save(checkpoint(step))
    with monkeypatch.context() as patch:
        disk = FailingDisk(patch, *write)
        disk.failures, disk.number = ALWAYS, number
        with pytest.raises(StorageError, match=os.strerror(number)):
            directory.save(checkpoint(3))
        assert (disk.failed > 1) == (number == errno.EIO), "a full or forbidden disk does not pass"
    assert sorted(place.name for place in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


@pytest.mark.usefixtures("impatient")
def test_a_directory_that_cannot_be_listed_after_a_save_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes it for empty first, and lists it again, finds nothing among the newest ones and removes all."""
    directory = CheckpointDirectory(tmp_path)
    directory.save(checkpoint(1))
    failures = [OSError(errno.EIO, "Input/output error")]
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if failures and str(path) == str(tmp_path) and (tmp_path / "step-00000002").exists():
            raise failures.pop()
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "listdir", lambda path: [entry.name for entry in scandir(path)])
    directory.save(checkpoint(2))
    assert not failures
    assert sorted(place.name for place in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
