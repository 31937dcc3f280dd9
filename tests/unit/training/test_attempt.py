"""Only the newest attempt at a run writes to its directory."""

import errno
import os
from pathlib import Path

import pytest
import torch

from sightline.errors import DamagedError, StaleAttemptError, Stopped, StorageError
from sightline.training import attempt, identity
from sightline.training.attempt import AttemptFence
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint({"weight": torch.full((2,), float(step))}, None, {}, {"step": step})


def test_attempts_are_numbered_over_all_drivers(tmp_path: Path) -> None:
    assert [AttemptFence(tmp_path).advance() for _ in range(3)] == [1, 2, 3]
    with AttemptFence(tmp_path).held(3):
        pass
    for stale in (0, 2, 4):
        with pytest.raises(StaleAttemptError, match=f"attempt {stale} .* was replaced by attempt 3"):
            AttemptFence(tmp_path).held(stale).__enter__()


@pytest.mark.parametrize("content", [b"", bytes(13), b"           7\n"])
def test_what_a_crash_may_leave_of_the_number(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "attempt").write_bytes(content)
    assert AttemptFence(tmp_path).advance() == (8 if content.strip(b"\0") else 1)


def test_a_process_that_holds_the_number_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a disk; whoever comes next says so, and can be stopped."""
    monkeypatch.setattr(attempt, "_LOCK_TIMEOUT_S", 0.2)
    fence = AttemptFence(tmp_path)
    with fence.held(fence.advance()):
        with pytest.raises(StorageError, match=r"another process has held .*attempt"):
            AttemptFence(tmp_path).advance()
        with pytest.raises(StorageError, match="another process has held"), AttemptFence(tmp_path).held(1):
            pass
        monkeypatch.setattr(attempt, "_LOCK_TIMEOUT_S", 60.0)
        with pytest.raises(Stopped):
            AttemptFence(tmp_path).advance(lambda: True)
    assert fence.advance() == 2


def test_a_disk_that_fails_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fence, read, failures = AttemptFence(tmp_path), os.pread, [errno.ESTALE, errno.EIO]

    def unreliable(*arguments: int) -> bytes:
        if failures:
            raise OSError(failures.pop(), "not now")
        return read(*arguments)

    monkeypatch.setattr(os, "pread", unreliable)
    assert fence.advance() == 1
    failures.append(errno.EIO)
    with fence.held(1):
        assert not failures
    failures.append(errno.EACCES)
    with pytest.raises(StorageError, match=r"cannot access .*attempt"):
        fence.advance()


def test_a_run_that_starts_anew_keeps_out_workers_of_before(tmp_path: Path) -> None:
    fence = AttemptFence(tmp_path)
    orphan = CheckpointDirectory(tmp_path / "checkpoints", fence=fence, attempt=fence.advance())
    orphan.save(checkpoint(1))
    identity._clear(tmp_path)
    assert [place.name for place in tmp_path.iterdir()] == ["attempt"]
    successor = CheckpointDirectory(tmp_path / "checkpoints", fence=fence, attempt=fence.advance())
    with pytest.raises(StaleAttemptError):
        orphan.save(checkpoint(999))
    assert successor.load_latest() is None


def test_a_number_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "attempt").write_text("??")
    with pytest.raises(DamagedError, match="remove it"):
        AttemptFence(tmp_path).advance()


def test_a_worker_that_outlived_its_driver_saves_nothing(tmp_path: Path) -> None:
    """Its driver died, the run went on with another, and only then does it come to save."""
    fence = AttemptFence(tmp_path)
    orphan = CheckpointDirectory(tmp_path / "checkpoints", fence=fence, attempt=fence.advance())
    orphan.save(checkpoint(1))
    successor = CheckpointDirectory(tmp_path / "checkpoints", fence=fence, attempt=fence.advance())
    unfinished = tmp_path / "checkpoints" / ".step-00000003.99.tmp"
    unfinished.mkdir()  # What the successor is writing at this moment.
    with pytest.raises(StaleAttemptError):
        orphan.save(checkpoint(2))
    assert unfinished.is_dir()
    latest = successor.load_latest()
    assert latest is not None
    assert latest.progress == {"step": 1}
    successor.save(checkpoint(3))
    assert orphan.load_latest() is not None, "reading is no harm"


def test_an_attempt_that_begins_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.training import checkpoint as module

    fence = AttemptFence(tmp_path)
    store = CheckpointDirectory(tmp_path / "checkpoints", fence=fence, attempt=fence.advance())
    store.save(checkpoint(1))
    write = module._write_files

    def slowly(directory: Path, content: Checkpoint) -> None:
        write(directory, content)
        fence.advance()

    monkeypatch.setattr(module, "_write_files", slowly)
    with pytest.raises(StaleAttemptError):
        store.save(checkpoint(2))
    assert [place.name for place in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
