"""What a worker makes of images, good and bad."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import MODEL, Images, item, jpeg

from sightline.data.decode import decode_reduced
from sightline.detection.worker import Worker
from sightline.engines.opening import open_predictor
from sightline.errors import BrokenModelError, SourceError, WorkerError
from sightline.models.bundle import Bundle
from sightline.models.predictor import Predictor
from support.inference import TORCH, settings_of


@pytest.fixture(scope="module")
def predictor(bundle: Bundle) -> Predictor:
    return open_predictor(bundle, TORCH)


def rows(worker: Worker) -> list[dict[str, Any]]:
    try:
        return worker.process("chunk", tuple(worker.source.items())).to_pylist()  # type: ignore[no-any-return]
    finally:
        worker.close()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("threads", "streams"), [(1, 1), (4, 1), (3, 3)])
def test_every_image_has_its_row_in_order(predictor: Predictor, batch: int, threads: int, streams: int) -> None:
    """Of several sizes; a bad one among them costs its neighbours nothing."""
    content: dict[str, bytes | str] = {str(n): jpeg(40 + 20 * (n % 3), 60, seed=n) for n in range(9)}
    content |= {"4": "file not found", "6": jpeg()[:-300], "7": b""}
    # Only OpenVINO has several streams; what runs them here is torch all the same.
    concurrent = {"engine": "openvino", "concurrent": True} if streams > 1 else {}
    settings = replace(TORCH, batch=batch, threads=threads, **concurrent)
    assert settings.streams == streams
    found = rows(Worker(predictor, Images(content), settings, MODEL))
    assert [row["image_id"] for row in found] == list(content)
    reasons = {row["image_id"]: (row["stage"], row["reason"]) for row in found if row["status"] == "rejected"}
    assert reasons == {
        "4": ("read", "file not found"),
        "6": ("decode", "truncated image"),
        "7": ("decode", "empty file"),
    }
    for row in found:
        if row["status"] == "ok":
            assert (row["width"], row["height"]) == (40 + 20 * (int(row["image_id"]) % 3), 60)
            assert row["num_detections"] == len(row["boxes"]) > 0
            assert all(box["xmax"] <= row["width"] and box["score"] >= 0.1 for box in row["boxes"])


def test_the_same_as_the_predictor(bundle: Bundle) -> None:
    """A worker finds what `load_model(...).predict` finds, however images are batched."""
    model = open_predictor(bundle, TORCH)
    content: dict[str, bytes | str] = {str(n): jpeg(64 << n, 48 << n, seed=n) for n in range(5)}
    found = rows(Worker(model, Images(content), replace(TORCH, batch=2), MODEL))
    expected = model.predict([data for data in content.values() if isinstance(data, bytes)], threshold=0.1)
    for row, one in zip(found, expected, strict=True):
        assert [box["label"] for box in row["boxes"]] == one.names  # type: ignore[union-attr]
        scores = [box["score"] for box in row["boxes"]]
        assert scores == pytest.approx(one.scores.tolist(), abs=1e-5)  # type: ignore[union-attr]


class Failing:
    """A network that does not like some images."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def detect(self, images: Any) -> Any:
        if (images[:, :8, :8, 0].mean((1, 2)) > 250).any():
            raise RuntimeError("out of memory, say")
        return self._runner.detect(images)


def test_an_image_that_the_model_fails_over(predictor: Predictor) -> None:
    white = np.full((60, 80, 3), 255, np.uint8)
    from sightline.data.decode import encode_jpeg

    content: dict[str, bytes | str] = {"a": jpeg(), "b": encode_jpeg(white), "c": jpeg(seed=3)}
    failing = replace(predictor, runner=Failing(predictor.runner))
    found = rows(Worker(failing, Images(content), replace(TORCH, batch=3), MODEL))
    assert [(row["status"], row["reason"]) for row in found] == [
        ("ok", None),
        ("rejected", "model failed"),
        ("ok", None),
    ]
    assert found[1]["detail"] == "RuntimeError: out of memory, say"


@dataclass
class Flaky(Images):
    """Reading some images fails so many times."""

    failures: dict[str, int] = field(default_factory=dict)
    error: Exception = field(default_factory=lambda: SourceError("the disk is away"))

    def read(self, item: Any) -> bytes:
        if self.failures.get(item.ref, 0):
            self.failures[item.ref] -= 1
            raise self.error
        return super().read(item)


@pytest.mark.parametrize("error", [SourceError("the disk is away"), MemoryError()])
def test_a_failure_that_is_no_fault_of_the_image_is_tried_again(
    predictor: Predictor, impatient: None, error: Exception
) -> None:
    source = Flaky({str(n): jpeg(seed=n) for n in range(4)}, failures={"1": 2, "3": 1}, error=error)
    found = rows(Worker(predictor, source, TORCH, MODEL))
    assert [row["status"] for row in found] == ["ok"] * 4
    assert source.failures == {"1": 0, "3": 0}


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (SourceError("the disk is away"), SourceError, "the disk is away"),
        (MemoryError(), WorkerError, "not enough memory on this machine .* '/photos/2'.*decode.max_pixels"),
    ],
)
def test_a_failure_that_persists_gives_no_rows(
    predictor: Predictor, impatient: None, error: Exception, raised: type[Exception], message: str
) -> None:
    source = Flaky({str(n): jpeg(seed=n) for n in range(4)}, failures={"2": 10_000}, error=error)
    with pytest.raises(raised, match=message):
        rows(Worker(predictor, source, TORCH, MODEL))


def test_closing_ends_the_attempts(predictor: Predictor) -> None:
    """Whoever stops a run does not wait for a disk that is away."""
    worker = Worker(predictor, Flaky({}, failures={"a": 10_000}), TORCH, MODEL)
    worker.closed = True
    with pytest.raises(SourceError):
        worker._prepare(item("a"))


class Broken:
    """A network that fails over everything, as after an error of CUDA."""

    def detect(self, images: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")


class Short:
    """A network that has no memory for what is not blank, or for anything."""

    def __init__(self, runner: Any, *, blank: bool = False) -> None:
        self._runner, self._blank = runner, blank

    def detect(self, images: Any) -> Any:
        if self._blank or images.mean() > 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._runner.detect(images)


class Hiccup:
    """A network that fails once."""

    def __init__(self, runner: Any) -> None:
        self._runner, self._failures = runner, 1

    def detect(self, images: Any) -> Any:
        if self._failures:
            self._failures -= 1
            raise RuntimeError("a hiccup")
        return self._runner.detect(images)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda runner: Broken(), "fails over any image in this process: RuntimeError: CUDA error"),
        (Short, "not enough memory for the model"),
        (lambda runner: Short(runner, blank=True), "not enough memory for the model"),
    ],
)
def test_a_machine_that_fails_is_no_fault_of_the_image(predictor: Predictor, network: Any, message: str) -> None:
    failing = replace(predictor, runner=network(predictor.runner))
    with pytest.raises(WorkerError, match=message) as raised:
        rows(Worker(failing, Images({"a": jpeg(), "b": jpeg(seed=1)}), replace(TORCH, batch=2), MODEL))
    assert isinstance(raised.value, BrokenModelError) == ("any image" in message), "only that is tried apart"


def test_a_network_that_fails_once_is_asked_again(predictor: Predictor) -> None:
    failing = replace(predictor, runner=Hiccup(predictor.runner))
    (row,) = rows(Worker(failing, Images({"a": jpeg()}), TORCH, MODEL))
    assert row["status"] == "ok"


def test_tiles(predictor: Predictor) -> None:
    """Boxes lie in the image, not in its first tile."""
    settings = replace(TORCH, tile=64, overlap=0.25, batch=4)
    (row,) = rows(Worker(predictor, Images({"wide": jpeg(200, 100)}), settings, MODEL))
    assert (row["width"], row["height"]) == (200, 100)
    assert max(box["xmax"] for box in row["boxes"]) > 128
    assert max(box["ymax"] for box in row["boxes"]) > 64


def test_a_classifier_gives_one_row(classifier: Bundle) -> None:
    model = open_predictor(classifier, settings_of(classifier))
    (row,) = rows(Worker(model, Images({"a": jpeg(80, 60)}), replace(TORCH, threshold=0.99), MODEL))
    (box,) = row["boxes"]
    assert box["label"] in ("cat", "dog")
    assert (box["xmin"], box["ymin"], box["xmax"], box["ymax"]) == (0, 0, 80, 60)


@pytest.mark.parametrize(
    ("width", "height", "decoded"),
    [(64, 64, (64, 64)), (127, 127, (127, 127)), (128, 96, (64, 48)), (640, 480, (80, 60)), (520, 390, (65, 49))],
)
def test_large_jpegs_are_decoded_smaller(width: int, height: int, decoded: tuple[int, int]) -> None:
    """Never smaller than what is wanted, 64 pixels on the longer side here."""
    pixels, size = decode_reduced(jpeg(width // 4 * 4, height // 4 * 4), lambda w, h: (64, round(64 * h / w)))
    assert size == (width // 4 * 4, height // 4 * 4)
    assert pixels.shape[1] >= min(64, size[0])
    if width >= 128:
        assert pixels.shape[1] < size[0]
