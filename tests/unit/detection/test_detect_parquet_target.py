"""A directory of Parquet files as a target; what all targets must do is in `targets/`."""

import os
import time
from pathlib import Path

import duckdb
import pytest
from fakes import MODEL, item

from sightline.detection.rows import rejected_rows
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.parquet import ParquetTarget
from sightline.detection.targets.target import Owner
from sightline.errors import ConfigError, ExistsError, ImageError

ELSEWHERE = Owner("other", "another-machine", 1)
DEAD = Owner("dead", os.uname().nodename, 2**22 - 1)


@pytest.fixture
def target(tmp_path: Path) -> ParquetTarget:
    found = ParquetTarget(tmp_path / "it's here")
    found.open({"id": "one", "model": "boards"})
    return found


def rows(chunk: str, *ids: str, reason: str = "truncated image") -> object:
    return rejected_rows(tuple(item(name) for name in ids), chunk, MODEL, ImageError(reason))


def test_the_first_commit_wins(target: ParquetTarget) -> None:
    assert target.commit("c", rows("c", "a", reason="first"))
    assert not target.commit("c", rows("c", "a", reason="second"))
    assert [batch.to_pylist() for batch in target.rows(["reason"])] == [[{"reason": "first"}]]
    assert target.committed() == {"c"}


def test_leases(target: ParquetTarget) -> None:
    me = this_run()
    assert target.claim(["a", "b"], me, lease_s=30) == {"a": 1, "b": 1}
    assert target.claim(["a"], ELSEWHERE, lease_s=30) == {}
    target.release(["a"], ELSEWHERE)  # It is not theirs to give back.
    assert target.claim(["a"], ELSEWHERE, lease_s=30) == {}
    target.release(["a"], me)
    assert target.claim(["a"], ELSEWHERE, lease_s=30) == {"a": 1}
    target.commit("b", rows("b", "x"))
    assert target.claim(["b"], me, lease_s=30) == {}
    assert target.claim(["b.again"], me, lease_s=30) == {"b.again": 1}


def test_a_lease_ends_with_time_and_is_kept_by_signs_of_life(target: ParquetTarget) -> None:
    target.claim(["a"], ELSEWHERE, lease_s=30)
    lease = target.directory / "leases" / "a"
    os.utime(lease, (time.time() - 100,) * 2)
    target.renew(["a", "gone"], ELSEWHERE, lease_s=30)
    assert target.claim(["a"], this_run(), lease_s=30) == {}
    os.utime(lease, (time.time() - 100,) * 2)
    assert target.claim(["a"], this_run(), lease_s=30) == {"a": 2}


def test_a_dead_owner_holds_nothing(target: ParquetTarget) -> None:
    target.claim(["a"], DEAD, lease_s=3600)
    assert target.claim(["a"], this_run(), lease_s=3600) == {"a": 2}


def test_a_torn_lease_is_nobodys(target: ParquetTarget) -> None:
    (target.directory / "leases" / "a").write_bytes(b"{")
    assert target.claim(["a"], this_run(), lease_s=3600) == {"a": 2}


def test_the_first_plan_stays(target: ParquetTarget) -> None:
    assert target.generation(0) is None
    assert target.publish(0, b"first")
    assert not target.publish(0, b"second")
    assert target.generation(0) == b"first"


def test_rewriting_leaves_the_neighbours(target: ParquetTarget) -> None:
    target.commit("c", rows("c", "a", "b"))
    target.rewrite("c", rows("c", "b", reason="now"))
    found = [row for batch in target.rows(["image_id", "reason"]) for row in batch.to_pylist()]
    assert sorted((row["image_id"], row["reason"]) for row in found) == [("a", "truncated image"), ("b", "now")]


def test_readers_see_whole_chunks_only(target: ParquetTarget) -> None:
    """What is half-written lies elsewhere, and is removed when its writer is dead."""
    target.commit("c", rows("c", "a"))
    left = target.directory / ".partial" / f"{DEAD.host}-{DEAD.pid}-00"
    left.write_bytes(b"half")
    files = str(target.directory / "images" / "*.parquet").replace("'", "''")
    assert duckdb.sql(f"select count(*) from read_parquet('{files}')").fetchall() == [(1,)]
    target.close()
    assert not left.exists()


def test_summary(target: ParquetTarget) -> None:
    assert target.summary().images == 0
    target.commit("c", rows("c", "a", "b"))
    found = target.summary()
    assert (found.images, found.rejected, found.detections, found.classes) == (2, 2, 0, ())
    assert found.reasons == {"truncated image": 2}


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
