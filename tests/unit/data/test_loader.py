import functools
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.config import AugmentConfig, LoaderConfig
from sightline.data.augment import augment
from sightline.data.decode import decode, encode_jpeg
from sightline.data.loader import Batch, Loader, LoadOptions
from sightline.errors import ImageError
from sightline.structures import Annotation, Sample

EVERYTHING = AugmentConfig(
    hflip=0.5, vflip=0.5, rotate90=0.5, crop=0.5, scale=0.3, translate=0.2, brightness=0.3, saturation=0.3, mosaic=0.4
)
FLIP = AugmentConfig(hflip=1)


def make_sample(number: int) -> Sample:
    rng = np.random.default_rng(number)
    height, width = 16 + number % 5, 20 + number % 7
    data = encode_jpeg(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    boxes = np.array([[1, 2, 9, 12], [5, 5, width, height]], np.float32)[: number % 3]
    labels = np.full(len(boxes), number, np.int32)
    return Sample(
        f"id{number}", f"{number}.jpg", data, width, height, "train", Annotation(boxes, labels, labels % 2 == 1)
    )


SOURCE = [make_sample(number) for number in range(23)]
BROKEN = [*SOURCE[:13], Sample("bad", "folder/bad.jpg", b"no image", 4, 4, "train", SOURCE[0].annotation), *SOURCE[13:]]


def flip(image: np.ndarray, annotation: Annotation) -> tuple[np.ndarray, Annotation]:
    return image[::-1], annotation


def columns_of(annotation: Annotation) -> list[bytes]:
    return [column.tobytes() for column in (annotation.boxes, annotation.labels, annotation.ignore)]


def described(batches: list[Batch]) -> list[tuple]:
    """Every image of the batches, in order, to the bit."""
    return [
        (batch.epoch, position, image_id, image.shape, image.tobytes(), *columns_of(annotation))
        for batch in batches
        for position, image_id, image, annotation in zip(
            batch.positions.tolist(), batch.image_ids, batch.images, batch.annotations, strict=True
        )
    ]


def load(
    source=SOURCE, *, epoch: int = 1, world_size: int = 1, start: int = 0, augment=EVERYTHING, batch: int = 5, **config
) -> list:
    """All images of an epoch as `world_size` ranks load them, rank after rank in each step."""
    loader = Loader(source, LoadOptions(batch, LoaderConfig(**config)), seed=3, augment=augment)
    ranks = [list(loader.batches(epoch, rank=rank, world_size=world_size, start=start)) for rank in range(world_size)]
    return described([batch for step in zip(*ranks, strict=True) for batch in step])


@pytest.fixture(scope="module")
def expected() -> list[tuple]:
    return load(threads=0)


@pytest.fixture(autouse=True)
def no_thread_or_process_is_left() -> Iterator[None]:
    yield
    assert loader_threads() == []
    assert multiprocessing.active_children() == []


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sightline-loader")]


def test_an_epoch_has_every_image_once(expected: list[tuple]) -> None:
    assert sorted(image[2] for image in expected) == sorted(sample.image_id for sample in SOURCE)
    assert [image[1] for image in expected] == list(range(23))


def test_images_and_annotations_stay_together() -> None:
    for batch in Loader(SOURCE, LoadOptions(4, LoaderConfig(threads=2)), seed=1).batches(0):
        for image, annotation, image_id in zip(batch.images, batch.annotations, batch.image_ids, strict=True):
            sample = SOURCE[int(image_id[2:])]
            assert np.array_equal(image, decode(sample.image))
            assert annotation is sample.annotation


def test_epochs_differ_in_order_and_augmentation(expected: list[tuple]) -> None:
    other = load(threads=0, epoch=2)
    assert [image[2] for image in other] != [image[2] for image in expected]
    unshuffled = [
        described(list(Loader(SOURCE, LoadOptions(), seed=0, shuffle=False, augment=EVERYTHING).batches(epoch)))
        for epoch in (0, 1)
    ]
    assert [image[2] for image in unshuffled[0]] == [sample.image_id for sample in SOURCE]
    same = [a[4] == b[4] for a, b in zip(*unshuffled, strict=True)]
    assert sum(same) < 5


@settings(max_examples=25, deadline=None)
@given(
    threads=st.integers(0, 4),
    batch=st.integers(1, 30),
    world_size=st.integers(1, 6),
    prefetch=st.integers(1, 5),
    start=st.integers(0, 23),
)
def test_the_same_bits_whoever_loads(expected, threads, batch, world_size, prefetch, start) -> None:
    found = load(threads=threads, batch=batch, world_size=world_size, prefetch=prefetch, start=start)
    assert found == expected[start:]


def test_the_same_bits_from_processes(expected: list[tuple]) -> None:
    assert load(processes=2, world_size=2, batch=3, start=4) == expected[4:]


def first_pixel(data: bytes) -> np.ndarray:
    return decode(data)[:1, :1]


@pytest.mark.parametrize("config", [{"threads": 0}, {"threads": 2}, {"processes": 1}])
def test_images_are_decoded_as_asked(config: dict[str, int]) -> None:
    loader = Loader(SOURCE[:3], LoadOptions(8, LoaderConfig(**config)), shuffle=False, decode=first_pixel)
    (batch,) = loader.batches(epoch=0)
    assert [image.tolist() for image in batch.images] == [first_pixel(one.image).tolist() for one in SOURCE[:3]]


def test_transform_runs_last_in_processes_too() -> None:
    """The transform has to be importable by a worker: here, a flip that undoes the first one."""
    unflip = functools.partial(augment, config=FLIP, rng=np.random.default_rng(0))
    loader = Loader(SOURCE[:3], LoadOptions(8, LoaderConfig(processes=1)), augment=FLIP, transform=unflip)
    (batch,) = loader.batches(0)
    for image, image_id in zip(batch.images, batch.image_ids, strict=True):
        assert np.array_equal(image, decode(SOURCE[int(image_id[2:])].image))


@pytest.mark.parametrize("threads", [0, 2])
def test_transform_runs_last(threads: int) -> None:
    plain, changed = (
        next(
            Loader(
                SOURCE, LoadOptions(8, LoaderConfig(threads=threads)), augment=EVERYTHING, transform=transform
            ).batches(0)
        )
        for transform in (None, flip)
    )
    assert all(np.array_equal(a[::-1], b) for a, b in zip(plain.images, changed.images, strict=True))


@pytest.mark.parametrize("config", [{"threads": 0}, {"threads": 3}, {"processes": 1}])
def test_small_shares_are_empty_batches(config: dict[str, int]) -> None:
    loader = Loader(SOURCE[:3], LoadOptions(2, LoaderConfig(**config)))
    batches = list(loader.batches(0, rank=0, world_size=5))
    assert [(len(batch), batch.step, len(batch.positions)) for batch in batches] == [(0, 0, 0), (0, 1, 0)]


def test_an_empty_source_has_no_batches() -> None:
    assert list(Loader([], LoadOptions(8, LoaderConfig(threads=2))).batches(0)) == []


@pytest.mark.parametrize("config", [{"threads": 0}, {"threads": 1}, {"threads": 3}, {"processes": 2}])
def test_an_unreadable_image_is_named(config: dict[str, int]) -> None:
    loader = Loader(BROKEN, LoadOptions(4, LoaderConfig(**config)), shuffle=False)
    seen = []
    with pytest.raises(ImageError, match=r"not an image: folder/bad\.jpg: begins with b'no image'") as raised:
        seen.extend(len(batch) for batch in loader.batches(0))
    assert seen == [4, 4, 4]
    assert raised.value.reason == "not an image"


def test_an_unreadable_mosaic_partner_is_named() -> None:
    bad = BROKEN[13]
    with pytest.raises(ImageError, match=r"folder/bad\.jpg"):
        list(
            Loader([SOURCE[0], bad], LoadOptions(8, LoaderConfig(threads=1)), augment=AugmentConfig(mosaic=1)).batches(
                0
            )
        )


@pytest.mark.parametrize("threads", [0, 2])
def test_other_errors_are_noted_with_the_image(threads: int) -> None:
    def fail(image: np.ndarray, annotation: Annotation) -> tuple[np.ndarray, Annotation]:
        raise RuntimeError("no room")

    loader = Loader(SOURCE, LoadOptions(8, LoaderConfig(threads=threads)), shuffle=False, transform=fail)
    with pytest.raises(RuntimeError, match="no room") as raised:
        list(loader.batches(0))
    assert "'0.jpg'" in raised.value.__notes__[0]


@pytest.mark.parametrize("config", [{"threads": 3}, {"processes": 2}])
def test_stopping_early_ends_the_workers(config: dict[str, int]) -> None:
    batches = Loader(SOURCE * 20, LoadOptions(4, LoaderConfig(**config))).batches(0)
    next(batches)
    assert loader_threads() or multiprocessing.active_children()
    batches.close()


def test_max_pixels_is_passed_on() -> None:
    with pytest.raises(ImageError, match="too many pixels"):
        list(Loader(SOURCE, LoadOptions(8, LoaderConfig(threads=0), max_pixels=100)).batches(0))


class Counting:
    """A source that knows which samples were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Sample:
        self.asked.append(index)
        return SOURCE[index % len(SOURCE)]


def test_prefetch_is_bounded_and_ahead() -> None:
    source = Counting()
    batches = Loader(source, LoadOptions(5, LoaderConfig(threads=2, prefetch=3))).batches(0)
    assert source.asked == []
    next(batches)
    limit = time.monotonic() + 5
    while len(source.asked) < 20 and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(source.asked) == 20  # One batch handed over and three kept ready.
    batches.close()


def test_without_processes_torch_is_not_imported() -> None:
    code = "import sys, sightline.data.loader; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
