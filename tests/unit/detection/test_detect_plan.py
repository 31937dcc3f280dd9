"""Every image is in exactly one chunk, however many runs plan, and whatever comes later."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fakes import MODEL, Images, item, names
from hypothesis import given
from hypothesis import strategies as st

from sightline.detection.item import Item
from sightline.detection.plan import Planner, read_chunks
from sightline.detection.rows import Rows, rejected_rows
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.parquet import ParquetTarget
from sightline.errors import ImageError


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


def plan(target: ParquetTarget, source: Images, **options: bool) -> Planner:
    planner = Planner(target, source, **options)
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


def commit_all(target: ParquetTarget, *, rejected: frozenset[str] = frozenset()) -> None:
    number = 0
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
            error = ImageError("truncated image")
            rows = pa.concat_tables([table, rejected_rows(bad, chunk.name, MODEL, error)])
            target.commit(chunk.name, rows, this_run())
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
    chunks = list(plan(target, names(30), retry_rejected=True).again())
    assert [one.image_id for chunk in chunks for one in chunk.items] == ["00003", "00020"]
