"""A run, with workers that are made by hand: who dies over what, who waits for whom."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import MODEL, FakePool, Images, names

from sightline.detection.feed import Feed, Leases
from sightline.detection.item import Item
from sightline.detection.plan import Chunk, Generation, Planner, Retry
from sightline.detection.pool import Died, Done, Task
from sightline.detection.rows import rejected_rows
from sightline.detection.runner import LOST, Counts, Progress, Runner, Stopped, Watcher
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.parquet import ParquetTarget
from sightline.detection.targets.target import Owner
from sightline.errors import ImageError, StorageError, WorkerError
from sightline.process_identity import this_host


def opened(place: Path) -> ParquetTarget:
    target = ParquetTarget(place)
    target.open({"id": "one"})
    return target


def run(
    place: Path,
    source: Images,
    pool: FakePool,
    watcher: Watcher | None = None,
    *,
    apart: FakePool | None = None,
    retry: Retry = "unread",
) -> Counts:
    target, counts = opened(place), Counts()
    planner = Planner(target, source, retry=retry)
    make_apart = (lambda: apart) if apart else None
    given = {"lease_s": 5.0, "watcher": watcher or Watcher(), "apart": make_apart}
    with closing(target):
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
    assert not list((tmp_path / "leases").iterdir())
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


class Interrupted(FakePool):
    """Lets something happen before it hands its first rows over."""

    def __init__(self, happens: Callable[[Task], None]) -> None:
        super().__init__()
        self._happens: Callable[[Task], None] | None = happens

    def wait(self, timeout_s: float) -> list[Done | Died]:
        outcomes = super().wait(timeout_s)
        if outcomes and self._happens:
            happens, self._happens = self._happens, None
            happens(outcomes[0].task)
        return outcomes


def reject(place: Path, task: Task, *, stage: str, ids: Sequence[str] = ()) -> None:
    """Another run commits a chunk, or looks at some images of it again, and rejects them."""
    target, error = opened(place), ImageError("file not found", stage=stage)
    items = tuple(one for one in task.items if not ids or one.image_id in ids)
    rows = rejected_rows(items, task.chunk.name, MODEL, error)
    if not target.commit(task.chunk.name, rows, this_run()):
        revision, _ = target.read_chunk(task.chunk.name, ["image_id"])
        assert target.rewrite(task.chunk.name, rows, this_run(), revision=revision)


def test_what_another_run_could_not_read_gives_way_to_results(tmp_path: Path) -> None:
    pool = Interrupted(lambda task: reject(tmp_path, task, stage="read"))
    assert run(tmp_path, names(30), pool).images == 30
    assert statuses(tmp_path) == dict.fromkeys(names(30).content, "ok")


def test_what_another_run_committed_first_is_its_own(tmp_path: Path) -> None:
    """The summary of this run does not claim it."""
    committed: list[int] = []
    watcher = Watcher(on_commit=lambda chunk, rows: committed.append(rows.num_rows))
    pool = Interrupted(lambda task: reject(tmp_path, task, stage="decode"))
    counts = run(tmp_path, names(30), pool, watcher)
    assert Counter(statuses(tmp_path).values()) == {"ok": 22, "rejected": 8}
    assert (counts.images, counts.rejected, sum(committed)) == (22, 0, 22)


def test_a_result_stays_when_its_image_cannot_be_read_any_more(tmp_path: Path) -> None:
    """It changed, and was gone when its turn came; the next run tries again."""

    class Gone(FakePool):
        def wait(self, timeout_s: float) -> list[Done | Died]:
            error = ImageError("file not found", stage="read")
            done = [one.task for one in super().wait(timeout_s)]
            return [Done(task, rejected_rows(task.items, task.chunk.name, MODEL, error)) for task in done]

    source = names(20)
    run(tmp_path, source, FakePool())
    source.versions["00003"] = "newer"
    run(tmp_path, source, Gone())
    assert statuses(tmp_path) == dict.fromkeys(source.content, "ok")
    assert run(tmp_path, source, FakePool()).images == 1


def test_runs_that_fail_over_the_same_image_leave_no_leases(tmp_path: Path) -> None:
    source = names(20)
    run(tmp_path, source, FakePool({"00001"}))
    for _ in range(3):
        run(tmp_path, source, FakePool({"00001"}), retry="rejected")
    assert not list((tmp_path / "leases").iterdir())


def test_a_stop_is_a_stop_though_the_target_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StorageError("the target is away")

    monkeypatch.setattr(ParquetTarget, "release", away)
    with pytest.raises(Stopped):
        run(tmp_path, names(10), FakePool(), Watcher(should_stop=lambda: True))


def test_an_attempt_that_is_late_replaces_nothing(tmp_path: Path) -> None:
    """Two images changed; another run sees to one of them while this one is paused."""
    source = names(20)
    run(tmp_path, source, FakePool())
    source.versions |= {"00002": "newer", "00003": "newer"}
    pool = Interrupted(lambda task: reject(tmp_path, task, stage="decode", ids=["00003"]))
    assert run(tmp_path, source, pool).images == 1
    assert {name for name, status in statuses(tmp_path).items() if status == "rejected"} == {"00003"}


def test_what_another_run_has_tried_again_is_not_tried_a_second_time(tmp_path: Path) -> None:
    source = names(20)
    run(tmp_path, source, FakePool())
    target = opened(tmp_path)
    everything = Task(Chunk("000000-00000", tuple(source.items())[:8]), tuple(source.items())[:8])
    reject(tmp_path, everything, stage="decode", ids=["00001", "00004"])
    planner = Planner(target, source, retry="rejected")
    for _ in planner.generations():
        pass
    reject(tmp_path, everything, stage="decode", ids=["00001"])
    (chunk,) = planner.again()
    assert planner.left_to_do(chunk).items == ()


def test_a_retry_that_ends_alike_writes_nothing(tmp_path: Path) -> None:
    source = names(20)
    run(tmp_path, source, FakePool({"00001"}))
    (file,) = (tmp_path / "images").glob("000000-00000*")
    before = file.stat()
    pool = FakePool({"00001"})
    counts = run(tmp_path, source, pool, retry="rejected")
    assert (counts.images, counts.rejected, set(pool.seen)) == (1, 1, {"00001"})
    assert file.stat() == before


def test_a_generation_that_comes_with_the_end_of_the_listing(tmp_path: Path) -> None:
    """Between two questions of the feed."""
    target = opened(tmp_path)
    planner = Planner(target, names(8))
    (generation,) = planner.generations()

    class Listing:
        ended = False
        num_images = 8

        def get(self, number: int) -> Generation | None:
            if not self.ended:
                self.ended = True
                return None
            return generation if number == 0 else None

    with Leases(target, this_run(), 5.0) as leases:
        chunks = list(Feed(target, planner, Listing(), leases).chunks())  # type: ignore[arg-type]
    assert [leased.chunk.name for leased in chunks if leased] == ["000000-00000"]


def test_workers_that_are_lost_with_their_nodes_cost_no_attempts(tmp_path: Path) -> None:
    """Every chunk is given back as it was, and no image is rejected or tried apart."""

    class Losing(FakePool):
        def wait(self, timeout_s: float) -> list[Done | Died]:
            task = self._tasks[0] if self._tasks else None
            if task and self.seen[task.items[0].image_id] <= LOST:
                return [Died(self._tasks.popleft(), "its node was lost", blames_node=True)]
            assert task is None or task.attempt == 1
            return super().wait(timeout_s)

    pool = Losing()
    assert run(tmp_path, names(100), pool).images == 100
    assert set(pool.seen.values()) == {LOST + 1}
    assert set(statuses(tmp_path).values()) == {"ok"}


def test_an_image_that_takes_all_memory_of_a_node_is_found_out(tmp_path: Path) -> None:
    """Others are done meanwhile, so the pool sees progress and does not give up."""

    class Exhausting(FakePool):
        def wait(self, timeout_s: float) -> list[Done | Died]:
            outcomes = super().wait(timeout_s)
            return [replace(one, blames_node=True) if isinstance(one, Died) else one for one in outcomes]

    images = names(100)
    (poison,) = sorted(images.content)[42:43]
    run(tmp_path, images, Exhausting([poison]))
    assert [name for name, status in statuses(tmp_path).items() if status != "ok"] == [poison]


def test_a_renewal_that_fails_is_not_the_last(tmp_path: Path) -> None:
    """A target that is away for a moment does not cost the leases."""

    class Away(ParquetTarget):
        renewals = 0

        def renew(self, chunks: Collection[str], owner: Owner, *, lease_s: float) -> None:
            self.renewals += 1
            if self.renewals == 1:
                raise StorageError("away for a moment")
            super().renew(chunks, owner, lease_s=lease_s)
            later.set()

    target, later = Away(tmp_path), threading.Event()
    target.open({"id": "one"})
    with Leases(target, this_run(), 0.15) as leases:
        assert leases.take(Chunk("000000-00000", ()))
        assert later.wait(20), "no lease is renewed any more"


def test_a_stop_does_not_wait_for_the_listing(tmp_path: Path) -> None:
    class Endless(Images):
        def items(self) -> Iterator[Item]:
            yield from super().items()
            while True:
                yield from super().items()

    with pytest.raises(Stopped):
        run(tmp_path, Endless(dict(names(10).content)), FakePool(), Watcher(should_stop=lambda: True))
    assert "sightline-listing" not in {thread.name for thread in threading.enumerate()}


def test_what_no_worker_could_finish_counts_as_an_attempt(tmp_path: Path) -> None:
    class Stalled(FakePool):
        def wait(self, timeout_s: float) -> list[Done | Died]:
            if self.seen:
                raise WorkerError("no image was finished")
            return []

    with pytest.raises(WorkerError):
        run(tmp_path, names(8), Stalled())
    assert opened(tmp_path).claim(["000000-00000"], this_run(), lease_s=0.0) == {"000000-00000": 2}
