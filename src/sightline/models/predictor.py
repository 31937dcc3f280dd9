"""A loaded model: images of any kind in, columns of detections out.

Reading, fitting and bringing boxes back are here, the same for every engine; an engine only runs the network.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sightline.data.decode import decode_pil
from sightline.data.disk import read_file
from sightline.data.magic import EncodedImage
from sightline.errors import ConfigError, ImageError
from sightline.models.bundle import Bundle
from sightline.models.detector import Found, Pixels
from sightline.models.info import ModelInfo
from sightline.models.letterbox import boxes_to_original
from sightline.models.preprocessor import Fitted, Preprocessor
from sightline.structures import Boxes

ImageLike = str | Path | bytes | bytearray | memoryview | NDArray[np.uint8] | Image.Image
"""A path, the encoded bytes of a file, H x W x 3 uint8 RGB, or a PIL image."""

DEFAULT_THRESHOLD = 0.3
"""Lowest score to report where validation has chosen none."""
Row = tuple[str, float, float, float, float, float]
"""Name, score, and the box as xyxy."""


class Runner(Protocol):
    """What runs the network: an engine, or the model itself."""

    def detect(self, images: Tensor) -> list[Found]:
        """What is in each image, B x 3 x H x W uint8."""
        ...


@dataclass(frozen=True, slots=True)
class Detections:
    """What was found in one image, columns of equal length, surest first.

    Attributes:
        boxes: N x 4 float32, xyxy in pixels of the upright original image.
        scores: N float32, 0 to 1.
        labels: N int32, indices into the model's classes.
        names: N names of classes.
    """

    boxes: Boxes
    scores: NDArray[np.float32]
    labels: NDArray[np.int32]
    names: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self) -> Iterator[Row]:
        """The same, one row a detection."""
        for name, score, box in zip(self.names, self.scores.tolist(), self.boxes.tolist(), strict=True):
            yield (name, score, *box)


@dataclass(frozen=True, slots=True)
class Classification:
    """What one image is.

    Attributes:
        label: Index into the model's classes.
        score: Its probability; `scores` has that of every class.
        size: Width and height of the image.
    """

    label: int
    name: str
    score: float
    scores: NDArray[np.float32]
    size: tuple[int, int]

    def rows(self) -> Iterator[Row]:
        """One row, with the whole image as its box."""
        yield (self.name, self.score, 0.0, 0.0, float(self.size[0]), float(self.size[1]))


@dataclass(frozen=True)
class Predictor:
    """A model that can be asked.

    Attributes:
        bundle: What it is, and its hash.
        preprocessor: Makes canvases of images.
        engine: Name of what runs it.
        runner: That itself.
        batch: Images that go through the network at once.
    """

    bundle: Bundle
    preprocessor: Preprocessor
    runner: Runner = field(repr=False)
    engine: str = "torch"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch: int = 8

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of what it knows, in order."""
        return self.bundle.info.classes

    def predict(
        self, images: ImageLike | Sequence[ImageLike], *, threshold: float | None = None
    ) -> list[Detections] | list[Classification]:
        """What is in each image, in the order given.

        Args:
            images: One or a list of paths, encoded bytes, H x W x 3 uint8 RGB arrays or PIL images; all are turned
                upright as their EXIF says. From a path or encoded bytes it is what `detect` finds; from the pixels of
                a large JPEG scores differ a little, for those are not decoded at reduced scale (docs/models.md).
            threshold: Lowest score of a detection; default: the one that validation chose, else 0.3. A classifier
                always gives its best class.

        Raises:
            ImageError: An image cannot be used; the message says which.
        """
        given: Sequence[Any] = images if isinstance(images, list | tuple) else [images]
        lowest = lowest_score(self.bundle.info, threshold)
        results: list[Any] = []
        for start in range(0, len(given), self.batch):
            places = range(start, min(start + self.batch, len(given)))
            results += self.find([self._fit(given, place) for place in places], lowest)
        return results

    def fit_encoded(self, data: EncodedImage) -> Fitted:
        """An encoded image as the network takes it; see `Preprocessor.fit_encoded`."""
        return self.preprocessor.fit_encoded(data)

    def fit(self, pixels: Pixels) -> Fitted:
        """An upright RGB image as the network takes it."""
        return self.preprocessor.fit(pixels)

    def find(self, images: Sequence[Fitted], threshold: float) -> list[Detections] | list[Classification]:
        """What is in each image; those with canvases of the same size go through the network at once."""
        found = detect_canvases(self.runner, [image.canvas for image in images], device=self.device)
        return [self._result(one, image, threshold) for one, image in zip(found, images, strict=True)]  # type: ignore[return-value]

    def _result(self, found: Found, image: Fitted, threshold: float) -> Detections | Classification:
        width, height = image.width, image.height
        scores, labels = found.scores.float().cpu().numpy(), found.labels.int().cpu().numpy()
        if self.bundle.info.task == "classification":
            by_class = np.zeros(len(self.classes), np.float32)
            by_class[labels] = scores
            best = int(by_class.argmax())
            return Classification(best, self.classes[best], float(by_class[best]), by_class, (width, height))
        letterbox = self.preprocessor.letterbox
        boxes = boxes_to_original(found.boxes.float().cpu().numpy(), letterbox, width=width, height=height)
        kept = scores >= threshold
        names = [self.classes[label] for label in labels[kept].tolist()]
        return Detections(boxes[kept], scores[kept], labels[kept].astype(np.int32), names)

    def _fit(self, images: Sequence[Any], place: int) -> Fitted:
        image = images[place]
        shown = f"image {place} of {len(images)}" + (f", {str(image)[:200]!r}" if _is_path(image) else "")
        try:
            return self._fit_any(image)
        except ImageError as error:
            raise ImageError(
                error.reason, f"{shown}: {error.detail}" if error.detail else shown, stage=error.stage
            ) from None
        except OSError as error:
            raise ImageError("file not readable", f"{shown}: {error}", stage="read") from None

    def _fit_any(self, image: Any) -> Fitted:
        if _is_path(image):
            return self.fit_encoded(read_file(os.fspath(image)))
        if isinstance(image, bytes | bytearray | memoryview):
            return self.fit_encoded(bytes(image))
        if isinstance(image, Image.Image):
            return self.fit(decode_pil(image, max_pixels=self.preprocessor.max_pixels))
        if isinstance(image, np.ndarray):
            if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size:
                return self.fit(image)
            raise ImageError("not an image", f"an array of {image.dtype} {image.shape}; expected uint8 (H, W, 3), RGB")
        raise ImageError("not an image", f"a {type(image).__name__}; expected a path, bytes, an array or a PIL image")


def detect_canvases(runner: Runner, canvases: Sequence[Pixels], *, device: torch.device) -> list[Found]:
    """What is in each canvas, in their order; those of the same size go through the network at once."""
    found: list[Found | None] = [None] * len(canvases)
    for shape in dict.fromkeys(canvas.shape for canvas in canvases):
        places = [place for place, canvas in enumerate(canvases) if canvas.shape == shape]
        images = torch.from_numpy(np.stack([canvases[place] for place in places]))
        with torch.inference_mode():  # Channels last, as the decoder gave them.
            results = runner.detect(images.to(device, non_blocking=True).permute(0, 3, 1, 2))
        for place, one in zip(places, results, strict=True):
            found[place] = one
    return [one for one in found if one is not None]


def as_detections(found: Detections | Classification) -> Detections:
    """What was found; the class of a whole image is a box around it."""
    if isinstance(found, Detections):
        return found
    box, score, label = [0, 0, *found.size], found.score, found.label
    return Detections(
        np.array([box], np.float32), np.array([score], np.float32), np.array([label], np.int32), [found.name]
    )


def lowest_score(info: ModelInfo, threshold: float | None) -> float:
    """The threshold that is meant: the one given, else the one that validation chose, else 0.3."""
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigError(f"threshold is {threshold}; expected 0 to 1")
    chosen = threshold if threshold is not None else info.score_threshold
    return DEFAULT_THRESHOLD if chosen is None else chosen


def threshold_note(info: ModelInfo, threshold: float | None) -> str:
    """The threshold that is meant, and why it is that one, for people.

    Args:
        threshold: The one given, if any; see `lowest_score`.
    """
    if threshold is not None:
        return f"threshold {threshold:.3f} (as given)"
    if info.score_threshold is not None:
        return f"threshold {info.score_threshold:.3f} (the best F1 on validation)"
    return f"threshold {DEFAULT_THRESHOLD:.3f} (the default: the model has none of its own)"


def _is_path(image: Any) -> bool:
    return isinstance(image, str | os.PathLike)
