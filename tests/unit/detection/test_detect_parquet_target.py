"""A directory of Parquet files as a target; what all targets must do is in `targets/`."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes import MODEL, item

from programs import need_namespaces
from sightline.detection.chunk_hash import hash_ids
from sightline.detection.rows import rejected_rows
from sightline.detection.schema import IMAGES
from sightline.detection.targets import file_lock, lease, row_file
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.parquet import ParquetTarget, scan_images
from sightline.detection.targets.target import Owner, StoredChunk
from sightline.errors import ConfigError, DamagedError, ExistsError, ImageError, StorageError
from sightline.process_identity import this_host

ME, ELSEWHERE = Owner("me", this_host(), os.getpid()), Owner("other", "another-machine", 1)
DEAD = Owner("dead", this_host(), 2**22 - 1)


@pytest.fixture
def target(tmp_path: Path) -> ParquetTarget:
    return opened(tmp_path / "it's here")


def opened(place: Path) -> ParquetTarget:
    found = ParquetTarget(place)
    found.open({"id": "one", "model": "boards"})
    return found


def rows(chunk: str, *ids: str, reason: str = "truncated image") -> pa.Table:
    return rejected_rows(tuple(item(name) for name in ids), chunk, MODEL, ImageError(reason))


def reasons(target: ParquetTarget) -> dict[str, str]:
    found = [row for batch in target.rows(["image_id", "reason"]) for row in batch.to_pylist()]
    assert len(found) == len({row["image_id"] for row in found})
    return {row["image_id"]: row["reason"] for row in found}


def silence(target: ParquetTarget, owner: Owner, seconds: float = 100) -> None:
    """As if nothing had been heard of a run for so long."""
    os.utime(target.directory / "leases" / f"run-{owner.token}", (time.time() - seconds,) * 2)


def test_the_first_commit_wins(target: ParquetTarget) -> None:
    assert target.commit("c", rows("c", "a", reason="first"), ME)
    assert not target.commit("c", rows("c", "a", reason="second"), ELSEWHERE)
    assert target.commit("c", rows("c", "a", reason="first"), ME), "an answer that was lost is asked for again"
    assert reasons(target) == {"a": "first"}
    assert target.committed() == {"c"}
    assert list(target.stored()) == [StoredChunk("c", hash_ids(["a"]), 1, 1)]


def test_leases(target: ParquetTarget) -> None:
    assert target.claim(["a", "b"], ME, lease_s=30) == {"a": 1, "b": 1}
    assert target.claim(["a"], ME, lease_s=30) == {"a": 1}, "one's own lease is no new attempt"
    assert target.claim(["a"], ELSEWHERE, lease_s=30) == {}
    target.release(["a"], ELSEWHERE)  # It is not theirs to give back.
    assert target.claim(["a"], ELSEWHERE, lease_s=30) == {}
    target.release(["a"], ME)
    assert target.claim(["a"], ELSEWHERE, lease_s=30) == {"a": 1}
    target.commit("b", rows("b", "x"), ME)
    assert target.claim(["b"], ME, lease_s=30) == {}
    assert target.claim(["b.again"], ME, lease_s=30) == {"b.again": 1}


def test_a_lease_ends_with_time_and_is_kept_by_signs_of_life(target: ParquetTarget) -> None:
    target.claim(["a"], ELSEWHERE, lease_s=30)
    silence(target, ELSEWHERE)
    target.renew(["a", "gone"], ELSEWHERE, lease_s=30)
    assert target.claim(["a"], ME, lease_s=30) == {}
    silence(target, ELSEWHERE)
    assert target.claim(["a"], ME, lease_s=30) == {"a": 2}


def test_only_the_clock_of_the_disk_counts(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the machine that asks is an hour fast, and the one that renews, an hour slow."""
    now = time.time()
    target.claim(["a"], ELSEWHERE, lease_s=30)
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert target.claim(["a"], ME, lease_s=30) == {}
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    target.renew(["a"], ELSEWHERE, lease_s=30)
    monkeypatch.undo()
    assert target.claim(["a"], ME, lease_s=30) == {}


def test_a_lease_that_was_lost_can_be_neither_renewed_nor_given_back(target: ParquetTarget) -> None:
    """A run that was paused resumes while its successor works, which then falls silent itself."""
    paused, successor, third = (Owner(name, f"host of {name}", 1) for name in ("paused", "successor", "third"))
    target.claim(["a"], paused, lease_s=30)
    silence(target, paused)
    assert target.claim(["a"], successor, lease_s=30) == {"a": 2}
    target.renew(["a"], paused, lease_s=30)
    target.release(["a"], paused)
    assert target.claim(["a"], third, lease_s=30) == {}, "the successor's lease is not given back"
    silence(target, successor)
    target.renew(["a"], paused, lease_s=30)
    assert target.claim(["a"], third, lease_s=30) == {"a": 2}, "nor kept alive; what was given back does not count"


def test_earlier_deaths_are_remembered(target: ParquetTarget) -> None:
    target.claim(["a"], DEAD, lease_s=3600)
    assert target.claim(["a"], ME, lease_s=3600) == {"a": 2}
    target.release(["a"], ME)
    assert target.claim(["a"], ELSEWHERE, lease_s=3600) == {"a": 2}
    target.commit("a", rows("a", "1"), ELSEWHERE)
    assert sorted(place.name for place in (target.directory / "leases").iterdir()) == [
        "run-dead",
        "run-me",
        "run-other",
    ]


def test_of_many_that_see_a_lease_expire_one_gets_it(tmp_path: Path) -> None:
    runs = [(opened(tmp_path / "t"), Owner(f"run{number}", "elsewhere", number)) for number in range(6)]
    barrier = threading.Barrier(len(runs))
    with ThreadPoolExecutor(len(runs)) as threads:
        for number in range(60):
            chunk = f"chunk{number}"
            runs[0][0].claim([chunk], DEAD, lease_s=3600)

            def claim(run: tuple[ParquetTarget, Owner], chunk: str = chunk) -> dict[str, int]:
                barrier.wait()
                return run[0].claim([chunk], run[1], lease_s=3600)

            assert sorted(map(len, threads.map(claim, runs))) == [0] * (len(runs) - 1) + [1]


def test_of_two_that_see_a_lease_expire_the_slower_gets_nothing(
    target: ParquetTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is held up between what it saw and what it does about it; meanwhile the other has got the chunk."""
    has_seen, may_go_on = threading.Event(), threading.Event()

    def is_dead(host: str, pid: int) -> bool:
        if pid == DEAD.pid and threading.current_thread() is not threading.main_thread():
            has_seen.set()
            assert may_go_on.wait(60)
        return pid == DEAD.pid

    target.claim(["a"], DEAD, lease_s=3600)
    monkeypatch.setattr(lease, "is_dead", is_dead)
    with ThreadPoolExecutor(1) as thread:
        slower = thread.submit(opened(target.directory).claim, ["a"], ELSEWHERE, lease_s=3600)
        assert has_seen.wait(60)
        assert target.claim(["a"], ME, lease_s=3600) == {"a": 2}
        may_go_on.set()
        assert slower.result(60) == {}


def test_a_dead_owner_holds_nothing(target: ParquetTarget) -> None:
    target.claim(["a"], DEAD, lease_s=3600)
    assert target.claim(["a"], ME, lease_s=3600) == {"a": 2}


def test_a_process_of_a_container_with_the_same_name_is_not_dead(target: ParquetTarget) -> None:
    """It has a PID namespace of its own, in which its id means another process than here."""
    elsewhere = Owner("container", f"{'0' * 12}-{this_host().rsplit('-', 1)[1]}", DEAD.pid)
    ParquetTarget(target.directory).claim(["a"], elsewhere, lease_s=3600)
    theirs = target.directory / ".partial" / f"{elsewhere.host}-{elsewhere.pid}-00"
    theirs.write_bytes(b"half")
    assert target.claim(["a"], ME, lease_s=3600) == {}
    target.close()
    assert theirs.exists()
    assert (target.directory / "leases" / "run-container").exists()


IN_A_CONTAINER = """
import sys
from pathlib import Path
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.parquet import ParquetTarget
target, me = ParquetTarget(Path(sys.argv[1])), this_run()
target.claim(["a"], me, lease_s=3600)
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_container_of_the_same_name_keeps_its_lease(target: ParquetTarget) -> None:
    """A real process in a PID namespace of its own, where its id is one that no process has here."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    shell = 'echo "$0" > /proc/sys/kernel/ns_last_pid && "$@" && true'  # The next process there gets the next id.
    container = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", shell, str(ended.pid - 1)]
    need_namespaces(*container, "true")
    command = [*container, sys.executable, "-c", IN_A_CONTAINER, str(target.directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert target.claim(["a"], this_run(), lease_s=3600) == {}
        process.communicate("\n", timeout=60)


def test_a_torn_lease_is_nobodys(target: ParquetTarget) -> None:
    (target.directory / "leases" / "a.1").write_bytes(b"{")
    assert target.claim(["a"], ME, lease_s=3600) == {"a": 2}


def test_closing_tidies_up_and_minds_nothing_strange(target: ParquetTarget) -> None:
    long_gone = Owner("long-gone", "elsewhere", 1)
    for owner in (ME, DEAD, ELSEWHERE, long_gone):
        target.claim([f"chunk of {owner.token}"], owner, lease_s=30)
    silence(target, long_gone, 30 * 24 * 3600)
    strange = [".nfs0000000000000001", ".DS_Store", "a-b", "x-1-y"]
    for name in strange:
        (target.directory / ".partial" / name).write_bytes(b"")
    (target.directory / "leases" / "run-strange").write_bytes(b"")
    other = ParquetTarget(target.directory)
    other.claim(["b"], ME, lease_s=30)
    other.close()
    left = sorted(place.name for place in (target.directory / "leases").glob("run-*"))
    assert left == ["run-other", "run-strange"]
    assert sorted(place.name for place in (target.directory / ".partial").iterdir()) == sorted(strange)


def test_the_first_plan_stays(target: ParquetTarget) -> None:
    assert target.generation(0) is None
    assert target.publish(0, b"first")
    assert not target.publish(0, b"second")
    assert target.publish(0, b"first"), "an answer that was lost is asked for again"
    assert target.generation(0) == b"first"


def test_rewriting_leaves_the_neighbours(target: ParquetTarget) -> None:
    target.commit("c", rows("c", "a", "b"), ME)
    assert target.rewrite("c", rows("c", "b", reason="now"), ME, revision=1)
    assert reasons(target) == {"a": "truncated image", "b": "now"}
    assert list(target.stored()) == [StoredChunk("c", hash_ids(["a", "b"]), 2, 2)]
    revision, found = target.read_chunk("c", ["reason", "image_id"])
    assert revision == 2
    assert found.column_names == ["reason", "image_id"]
    assert sorted(place.name for place in (target.directory / "images").iterdir()) == ["c.parquet"]


def test_a_rewrite_of_rows_that_changed_meanwhile_is_refused(target: ParquetTarget) -> None:
    """Two runs read the same rows; the one that was paused comes second."""
    target.commit("c", rows("c", "a", "b"), ME)
    revision, _ = target.read_chunk("c", ["image_id"])
    assert target.rewrite("c", rows("c", "a", reason="new"), ELSEWHERE, revision=revision)
    assert not target.rewrite("c", rows("c", "a", "b", reason="stale"), ME, revision=revision)
    assert reasons(target) == {"a": "new", "b": "truncated image"}
    assert not target.rewrite("nothing", rows("nothing", "z"), ME, revision=1)


def test_rewrites_race(tmp_path: Path) -> None:
    targets = [opened(tmp_path / "t") for _ in range(4)]
    targets[0].commit("c", rows("c", "a"), ME)

    def rewrite(target: ParquetTarget) -> int:
        done = 0
        while done < 5:
            revision, found = target.read_chunk("c", ["reason"])
            count = int(found.column("reason")[0].as_py().partition(" ")[0].replace("truncated", "0"))
            done += target.rewrite("c", rows("c", "a", reason=f"{count + 1} times"), ME, revision=revision)
        return done

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(rewrite, targets)) == [5] * 4
    assert reasons(targets[0]) == {"a": "20 times"}
    assert next(targets[0].stored()).revision == 21


def test_a_rewrite_ends_its_lease(target: ParquetTarget) -> None:
    target.commit("c", rows("c", "a"), ME)
    target.claim(["c.again"], DEAD, lease_s=30)
    assert target.claim(["c.again"], ME, lease_s=30) == {"c.again": 2}
    assert target.rewrite("c", rows("c", "a", reason="now"), ME, revision=1)
    target.release(["c.again"], ME)
    assert target.claim(["c.again"], ELSEWHERE, lease_s=30) == {"c.again": 1}


def test_a_rewrite_after_a_pause_leaves_the_lease_of_a_successor(target: ParquetTarget) -> None:
    third = Owner("third", "another-machine", 1)
    target.commit("c", rows("c", "1"), ELSEWHERE)
    target.claim(["c.again"], ELSEWHERE, lease_s=30)
    silence(target, ELSEWHERE)
    assert target.claim(["c.again"], ME, lease_s=30) == {"c.again": 2}
    assert target.rewrite("c", rows("c", "1", reason="by who was paused"), ELSEWHERE, revision=1)
    assert target.claim(["c.again"], third, lease_s=30) == {}
    assert target.rewrite("c", rows("c", "1", reason="by the successor"), ME, revision=2)
    assert target.claim(["c.again"], third, lease_s=30) == {"c.again": 1}


@pytest.mark.parametrize("lock", ["refused", "useless"])
def test_a_disk_without_locks_is_not_rewritten(
    lock: str, target: ParquetTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        if lock == "refused":
            raise OSError(errno.ENOLCK, "No locks available")

    target.commit("c", rows("c", "a"), ME)
    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    with pytest.raises(
        StorageError, match=r"it's here\" has no locks that work.*mount it with locks, or use a new target"
    ):
        target.rewrite("c", rows("c", "a", reason="now"), ME, revision=1)
    assert reasons(target) == {"a": "truncated image"}
    assert not list((target.directory / "locks").iterdir())


def first_format(chunk: str, *ids: str) -> bytes:
    """As files were before they had checksums and a description."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows(chunk, *ids).cast(IMAGES), sink, compression="zstd", write_statistics=True)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def test_rows_of_the_first_format(target: ParquetTarget) -> None:
    (target.directory / "images" / "old.parquet").write_bytes(first_format("old", "a", "b"))
    target.commit("new", rows("new", "c"), ME)
    assert list(target.stored()) == [
        StoredChunk("new", hash_ids(["c"]), 1, 1),
        StoredChunk("old", hash_ids(["a", "b"]), 1, 2),
    ]
    count = f"select count(*), count(distinct chunk) from {scan_images(target.directory)}"
    assert duckdb.sql(count).fetchall() == [(3, 2)]
    assert target.summary().images == 3
    assert target.rewrite("old", rows("old", "a", reason="now"), ME, revision=1)
    assert not target.rewrite("old", rows("old", "a", reason="stale"), ME, revision=1)
    assert reasons(target) == {"a": "now", "b": "truncated image", "c": "truncated image"}
    assert duckdb.sql(count).fetchall() == [(3, 2)]


def test_others_open_the_files(target: ParquetTarget) -> None:
    target.commit("c", rows("c", "a", "b"), ME)
    file = target.directory / "images" / "c.parquet"
    assert list(pandas.read_parquet(file)["image_id"]) == ["a", "b"]
    assert pq.read_table(file).num_rows == 2


def test_a_changed_byte_is_noticed(target: ParquetTarget) -> None:
    """Whatever byte it is: rows come back as they were, or not at all."""
    target.commit("c", rows("c", "a", "b"), ME)
    file = target.directory / "images" / "c.parquet"
    names = [name for name in IMAGES.names if name != "boxes"]
    content, (_, expected) = file.read_bytes(), target.read_chunk("c", names)
    messages = []
    for place in range(4, len(content), 3):
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            assert target.read_chunk("c", names)[1].equals(expected)
        except DamagedError as error:
            messages.append(str(error))
    assert len(messages) > (len(content) - 4) / 3 / 2
    assert {message.partition("is not as it was written (")[0] for message in messages} == {f"{str(file)!r} "}
    assert {message.rpartition("): ")[2] for message in messages} == {"remove it, and run the same command again"}


def test_rows_of_other_columns_are_refused(target: ParquetTarget) -> None:
    pq.write_table(pa.table({"image_id": ["a"]}), target.directory / "images" / "c.parquet")
    with pytest.raises(DamagedError, match="its columns are image_id"):
        list(target.rows(["image_id"]))


def test_rows_of_a_newer_format_are_refused(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "ROW_FORMAT", 3)
    target.commit("c", rows("c", "a"), ME)
    monkeypatch.undo()
    with pytest.raises(DamagedError, match=r"c\.parquet\" has rows of format 3, this Sightline reads 1 to 2: install"):
        list(target.rows(["image_id"]))


@pytest.mark.parametrize("operation", ["claim", "renew", "commit", "publish", "generation", "rows", "committed"])
def test_a_directory_that_is_gone_is_a_sentence(operation: str, target: ParquetTarget) -> None:
    """At once: the renewal of leases lives on it."""
    target.claim(["a"], ME, lease_s=30)
    shutil.rmtree(target.directory)
    arguments: dict[str, Any] = {
        "claim": lambda: target.claim(["b"], ME, lease_s=30),
        "renew": lambda: target.renew(["a"], ME, lease_s=30),
        "commit": lambda: target.commit("a", rows("a", "1"), ME),
        "publish": lambda: target.publish(0, b""),
        "generation": lambda: target.generation(0),
        "rows": lambda: list(target.rows(["image_id"])),
        "committed": target.committed,
    }
    with pytest.raises(StorageError, match=r"cannot .* in .*No such file.*run the same command again"):
        arguments[operation]()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_renewal_outlasts_a_disk_that_fails_for_a_while(
    number: int, target: ParquetTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.claim(["a"], ME, lease_s=30)
    real, failures = os.utime, [OSError(number, os.strerror(number))] * 2

    def utime(*given: Any, **more: Any) -> None:
        if failures:
            raise failures.pop()
        real(*given, **more)

    monkeypatch.setattr(os, "utime", utime)
    target.renew(["a"], ME, lease_s=30)
    assert not failures
    failures += [OSError(number, os.strerror(number))] * 1000
    with pytest.raises(StorageError, match="cannot renew leases"):
        target.renew(["a"], ME, lease_s=30)


def test_new_directories_lie_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each directory that gets a new name in it is synced, up to the first that was there before."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    opened(tmp_path / "a" / "b")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(synced)


def test_readers_see_whole_chunks_only(target: ParquetTarget) -> None:
    """What is half-written lies elsewhere, and is removed when its writer is dead."""
    target.commit("c", rows("c", "a"), ME)
    left = target.directory / ".partial" / f"{DEAD.host}-{DEAD.pid}-00"
    left.write_bytes(b"half")
    files = str(target.directory / "images" / "*.parquet").replace("'", "''")
    assert duckdb.sql(f"select count(*) from read_parquet('{files}')").fetchall() == [(1,)]
    target.close()
    assert not left.exists()


def test_summary(target: ParquetTarget) -> None:
    assert target.summary().images == 0
    target.commit("c", rows("c", "a", "b"), ME)
    found = target.summary()
    assert (found.images, found.rejected, found.detections, found.classes) == (2, 2, 0, ())
    assert found.reasons == {"truncated image": 2}


def test_a_summary_of_what_cannot_be_read_is_a_sentence(target: ParquetTarget) -> None:
    target.commit("c", rows("c", "a", "b"), ME)
    (target.directory / "images" / "c.parquet").write_bytes(b"torn")
    with pytest.raises(StorageError, match="cannot count the rows in"):
        target.summary()


def test_another_job_is_refused(target: ParquetTarget) -> None:
    with pytest.raises(ExistsError, match="its model is 'boards', not 'masks'"):
        ParquetTarget(target.directory).open({"id": "two", "model": "masks"})


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("two years of work")
    with pytest.raises(ExistsError, match="holds no detections"):
        ParquetTarget(tmp_path).open({"id": "one"})


def test_a_path_with_a_backslash_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """DuckDB takes a backslash in a pattern for a separator, so these rows could never be queried."""
    with pytest.raises(ConfigError, match="contains a backslash, and DuckDB cannot list"):
        ParquetTarget(tmp_path / "back\\slash").open({"id": "one"})
    assert not list(tmp_path.iterdir())
