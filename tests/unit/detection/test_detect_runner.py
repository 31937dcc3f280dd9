"""A run, with workers that are made by hand: who dies over what, who waits for whom."""

import threading
from collections import Counter
from pathlib import Path

import pytest
from fakes import MODEL, FakePool, Images, names

from sightline.detection.plan import Planner
from sightline.detection.runner import Counts, Progress, Runner, Stopped, Watcher
from sightline.detection.targets.parquet import ParquetTarget
from sightline.detection.targets.target import Owner
from sightline.process_identity import this_host


def opened(place: Path) -> ParquetTarget:
    target = ParquetTarget(place)
    target.open({"id": "one"})
    return target


def run(
    place: Path, source: Images, pool: FakePool, watcher: Watcher | None = None, *, apart: FakePool | None = None
) -> Counts:
    target, counts = opened(place), Counts()
    planner = Planner(target, source)
    make_apart = (lambda: apart) if apart else None
    given = {"lease_s": 5.0, "watcher": watcher or Watcher(), "apart": make_apart}
    Runner(target, planner, pool, MODEL, counts, **given).run()  # type: ignore[arg-type]
    return counts


def statuses(place: Path) -> dict[str, str]:
    rows = [row for batch in opened(place).rows(["image_id", "status"]) for row in batch.to_pylist()]
    assert len(rows) == len({row["image_id"] for row in rows})
    return {row["image_id"]: row["status"] for row in rows}


def test_every_image_once_then_nothing(tmp_path: Path) -> None:
    pool = FakePool()
    assert run(tmp_path, names(500), pool).images == 500
    assert pool.seen == Counter(names(500).content.keys())
    assert run(tmp_path, names(500), FakePool()).images == 0
    assert run(tmp_path, names(520), pool).images == 20
    assert statuses(tmp_path) == dict.fromkeys(names(520).content, "ok")


@pytest.mark.parametrize("poison", [{"00000"}, {"00077"}, {"00003", "00004", "00299"}])
def test_images_that_kill_workers(tmp_path: Path, poison: set[str]) -> None:
    """They are rejected after three attempts, and all others have their rows."""
    pool = FakePool(poison)
    counts = run(tmp_path, names(300), pool)
    assert {name for name, status in statuses(tmp_path).items() if status == "rejected"} == poison
    assert counts.rejected == len(poison)
    assert all(pool.seen[name] == 3 for name in poison)
    assert max(pool.seen.values()) == 3


def test_a_chunk_that_a_run_died_over_is_tried_apart(tmp_path: Path) -> None:
    target = opened(tmp_path)
    for _ in Planner(target, names(40)).generations():
        pass

    target.claim(["000000-00001"], Owner("dead", this_host(), 2**22 - 1), lease_s=3600)
    pool, apart = FakePool(), FakePool({"00010"})
    run(tmp_path, names(40), pool, apart=apart)
    assert {name for name, status in statuses(tmp_path).items() if status == "rejected"} == {"00010"}
    assert set(apart.seen) == {f"{number:05}" for number in range(8, 16)}
    assert not set(apart.seen) & set(pool.seen)
    assert apart.seen["00010"] == 2  # The third attempt is the one that the run died in.


def test_two_runs_at_once_share_the_work(tmp_path: Path) -> None:
    pools = [FakePool(), FakePool()]
    threads = [threading.Thread(target=run, args=(tmp_path, names(900), pool)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses(tmp_path) == dict.fromkeys(names(900).content, "ok")
    assert pools[0].seen + pools[1].seen == Counter(names(900).content.keys())


def test_stopping_gives_leases_back(tmp_path: Path) -> None:
    told: list[Progress] = []
    watcher = Watcher(on_progress=told.append, should_stop=lambda: bool(told) and told[-1].new > 50)
    with pytest.raises(Stopped):
        run(tmp_path, names(500), FakePool(), watcher)
    held = {place.name.rpartition(".")[0] for place in (tmp_path / "leases").glob("*.1")}
    assert held
    other = Owner("other", "elsewhere", 1)
    assert opened(tmp_path).claim(sorted(held), other, lease_s=3600) == dict.fromkeys(held, 1)
    opened(tmp_path).release(held, other)
    assert 0 < len(statuses(tmp_path)) < 500
    left = 500 - len(statuses(tmp_path))
    assert run(tmp_path, names(500), FakePool()).images == left


def test_changed_images_replace_their_rows(tmp_path: Path) -> None:
    source = names(50)
    run(tmp_path, source, FakePool())
    source.versions["00030"] = "newer"
    pool = FakePool()
    assert run(tmp_path, source, pool).images == 1
    assert set(pool.seen) == {"00030"}
    versions = {
        row["image_id"]: row["version"]
        for batch in opened(tmp_path).rows(["image_id", "version"])
        for row in batch.to_pylist()
    }
    assert len(versions) == 50
    assert versions["00030"] == "newer"
    assert run(tmp_path, source, FakePool()).images == 0


def test_a_source_that_cannot_be_listed(tmp_path: Path) -> None:
    class Broken(Images):
        def items(self):  # type: ignore[no-untyped-def]
            yield from list(super().items())[:3]
            raise PermissionError("not yours")

    with pytest.raises(PermissionError, match="not yours"):
        run(tmp_path, Broken(dict(names(10).content)), FakePool())


def test_progress_counts_what_was_done_before(tmp_path: Path) -> None:
    run(tmp_path, names(100), FakePool())
    told: list[Progress] = []
    run(tmp_path, names(130), FakePool(), Watcher(on_progress=told.append))
    assert (told[-1].done, told[-1].new, told[-1].total, told[-1].listed) == (130, 30, 130, True)
