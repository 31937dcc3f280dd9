"""Every image is in exactly one chunk, however many runs plan, and whatever comes later."""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from fakes import MODEL, Images, item, names
from hypothesis import given
from hypothesis import strategies as st

from sightline.detection.item import Item, Source
from sightline.detection.plan import Planner, Retry, _seal, read_chunks
from sightline.detection.rows import Rows, rejected_rows
from sightline.detection.sources.limited import Limited
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.parquet import ParquetTarget
from sightline.errors import DamagedError, ImageError


@pytest.fixture
def target(tmp_path: Path) -> ParquetTarget:
    return opened(tmp_path / "target")


def opened(place: Path) -> ParquetTarget:
    target = ParquetTarget(place)
    target.open({"id": "one"})
    return target


def planned(target: ParquetTarget) -> Counter[str]:
    found: Counter[str] = Counter()
    number = 0
    while target.generation(number) is not None:
        found.update(one.image_id for chunk in read_chunks(target, number) for one in chunk.items)
        number += 1
    return found


def plan(target: ParquetTarget, source: Source, retry: Retry = "unread") -> Planner:
    planner = Planner(target, source, retry=retry)
    for _ in planner.generations():
        pass
    return planner


def test_each_image_once_and_later_ones_only(target: ParquetTarget) -> None:
    plan(target, names(700))
    plan(target, names(700))
    assert target.generation(2) is None  # 256, the rest; nothing by the second run.
    plan(target, names(500, 1000))
    assert planned(target) == Counter(names(1000).content.keys())


def test_chunks_are_small_at_first(target: ParquetTarget) -> None:
    plan(target, names(1500))
    sizes = [len(chunk.items) for number in range(2) for chunk in read_chunks(target, number)]
    assert sizes[:8] == [8] * 8
    assert set(sizes[9:20]) == {32}
    assert sum(sizes) == 1500


def test_a_limit_is_that_of_the_plan(target: ParquetTarget) -> None:
    """Also when other images are the first of the source by now, and while two runs plan."""
    plan(target, Limited(names(100, 200), 20))
    plan(target, Limited(names(200), 20))
    assert planned(target) == Counter(names(100, 120).content.keys())


def test_two_runs_with_a_limit(target: ParquetTarget) -> None:
    left = Planner(target, Limited(names(0, 900), 300)).generations()
    right = Planner(target, Limited(names(500, 1400), 300)).generations()
    next(left)
    for rest in (right, left):
        for _ in rest:
            pass
    assert sum(planned(target).values()) == 300


def test_an_image_that_is_listed_twice(target: ParquetTarget) -> None:
    class Twice(Images):
        def items(self) -> Iterator[Item]:
            yield from super().items()
            yield from super().items()

    plan(target, Twice(dict(names(20).content)))
    assert planned(target) == Counter(names(20).content.keys())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 40)), max_size=6))
def test_two_runs_at_once(tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[bool, int, int]]) -> None:
    """Two planners of overlapping sources take turns at publishing; whoever loses adopts."""
    target = opened(tmp_path_factory.mktemp("target") / "t")
    left = Planner(target, names(0, 300)).generations()
    right = Planner(target, names(200, 600)).generations()
    for is_left, *_ in turns:
        next(left if is_left else right, None)
    for rest in (left, right):
        for _ in rest:
            pass
    assert planned(target) == Counter(names(600).content.keys())


def commit_all(target: ParquetTarget, *, rejected: frozenset[str] = frozenset(), stage: str = "decode") -> None:
    number, owner = 0, this_run()
    while target.generation(number) is not None:
        for chunk in read_chunks(target, number):
            bad = tuple(one for one in chunk.items if one.image_id in rejected)
            good = tuple(one for one in chunk.items if one.image_id not in rejected)
            rows = Rows(good, chunk.name, MODEL)
            for place in range(len(good)):
                rows.rejected(place, ImageError("unused"))
            table = rows.table()
            index = table.schema.get_field_index("status")
            table = table.set_column(index, table.schema.field(index), pa.array(["ok"] * len(good)))
            error = ImageError("truncated image", stage=stage)
            target.commit(chunk.name, pa.concat_tables([table, rejected_rows(bad, chunk.name, MODEL, error)]), owner)
        number += 1


def test_a_changed_image_is_looked_at_again(target: ParquetTarget) -> None:
    source = names(30)
    plan(target, source)
    commit_all(target)
    source.versions["00007"] = "newer"
    (again,) = plan(target, source).again()
    assert again.again
    assert [one.image_id for one in again.items] == ["00007"]
    assert again.items[0].version == "newer"
    assert planned(target) == Counter(source.content.keys())


def test_one_listing_with_two_versions_of_an_image(target: ParquetTarget) -> None:
    """The first counts, or every run would find it changed."""

    class Two(Images):
        def items(self) -> Iterator[Item]:
            yield from super().items()
            yield item("00002", "another")

    source = Two(dict(names(5).content))
    plan(target, source)
    commit_all(target)
    assert list(plan(target, source).again()) == []


def test_rejected_images_are_tried_again_if_asked(target: ParquetTarget) -> None:
    plan(target, names(30))
    commit_all(target, rejected=frozenset({"00003", "00020"}))
    assert list(plan(target, names(30)).again()) == []
    chunks = list(plan(target, names(30), "rejected").again())
    assert [one.image_id for chunk in chunks for one in chunk.items] == ["00003", "00020"]


def test_images_that_could_not_be_read_are_tried_again(target: ParquetTarget) -> None:
    plan(target, names(30))
    commit_all(target, rejected=frozenset({"00003"}), stage="read")
    (again,) = plan(target, names(30)).again()
    assert [one.image_id for one in again.items] == ["00003"]
    assert list(plan(target, names(30), "none").again()) == []


@pytest.mark.parametrize("others", [names(50, 58), names(8)])
def test_rows_whose_plan_was_removed(target: ParquetTarget, others: Images) -> None:
    """Chunks of a new plan would have the names of those that are committed."""
    plan(target, names(8))
    commit_all(target)
    shutil.rmtree(target.directory / "plan")
    (target.directory / "plan").mkdir()
    with pytest.raises(DamagedError, match=r"'000000-00000'.*another place with --to"):
        plan(target, others)
    assert target.generation(0) is None


def test_a_plan_that_was_restored_from_another_time(target: ParquetTarget) -> None:
    plan(target, names(8))
    commit_all(target)
    early = target.directory.parent / "early"
    shutil.copytree(target.directory / "plan", early)
    plan(target, names(20))
    commit_all(target)
    shutil.rmtree(target.directory / "plan")
    shutil.copytree(early, target.directory / "plan")
    with pytest.raises(DamagedError, match="000001-00000"):
        plan(target, names(20))


def test_rows_of_other_images_under_the_name_of_a_chunk(target: ParquetTarget) -> None:
    planner = plan(target, names(16))
    commit_all(target)
    planner.reconcile()
    first, second = sorted((target.directory / "images").iterdir())
    shutil.copy(second, first)
    for check in (planner.reconcile, lambda: plan(target, names(16))):
        with pytest.raises(DamagedError, match="not those of the images that its plan has"):
            check()


def test_rows_that_were_removed_during_a_run(target: ParquetTarget) -> None:
    planner = plan(target, names(16))
    commit_all(target)
    (target.directory / "images" / "000000-00001.parquet").unlink()
    with pytest.raises(DamagedError, match=r"no rows for 1 chunks.*'000000-00001'"):
        planner.reconcile()


def test_chunks_that_another_run_has_planned_and_committed_since(target: ParquetTarget) -> None:
    planner = plan(target, names(16))
    plan(target, names(40))
    commit_all(target)
    planner.reconcile()


def test_a_chunk_that_is_committed_while_rows_are_read(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database gives its rows in pages, so that only some of such a chunk may be seen."""
    plan(target, names(16))
    read_rows = ParquetTarget.rows

    def rows(self: ParquetTarget, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        commit_all(target)
        for batch in read_rows(self, columns):
            yield batch.slice(0, 3)

    monkeypatch.setattr(ParquetTarget, "rows", rows)
    plan(target, names(16))


@pytest.mark.parametrize("place", [40, -200, -1])
def test_a_plan_with_a_flipped_bit(target: ParquetTarget, place: int) -> None:
    plan(target, names(40))
    file = target.directory / "plan" / "000000.arrow"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="part 0 of the plan"):
        plan(target, names(40))


def test_a_plan_of_the_first_format(target: ParquetTarget) -> None:
    """It had neither hashes nor a checksum."""
    plan(target, names(40))
    file = target.directory / "plan" / "000000.arrow"
    table = pa.ipc.open_file(pa.BufferReader(file.read_bytes()[: -len(_seal(b""))])).read_all()
    with pa.ipc.new_file(file, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata(None))
    commit_all(target)
    plan(target, names(40)).reconcile()
    plan(target, names(60))
    assert planned(target) == Counter(names(60).content.keys())


def test_a_plan_of_a_later_version(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("sightline.detection.plan._FORMAT", 3)
        plan(target, names(10))
    with pytest.raises(DamagedError, match="later version of Sightline"):
        plan(target, names(10))
