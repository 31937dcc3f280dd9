"""The one path from an image to detections: letterbox, network, boxes in pixels of the original.

It is the same for every engine, which only runs the network, and for all that detects: `predict`, evaluation,
detection jobs, pictures and serving.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.data.decode import MAX_PIXELS, decode_pil
from sightline.data.disk import read_file
from sightline.data.magic import EncodedImage
from sightline.errors import ConfigError, ImageError
from sightline.models.bundle import Bundle
from sightline.models.info import ModelInfo, Preprocessing
from sightline.models.letterbox import boxes_to_original
from sightline.models.preprocessor import PreparedImage, Preprocessor, make_preprocessor
from sightline.structures import Classification, Detections, Pixels

if TYPE_CHECKING:
    from sightline.models.detector import Detector

ImageLike = str | Path | bytes | bytearray | memoryview | NDArray[np.uint8] | Image.Image
"""A path, the encoded bytes of a file, H x W x 3 uint8 RGB, or a PIL image."""

DEFAULT_THRESHOLD = 0.3
"""Lowest score to report where validation has chosen none."""


class Runner(Protocol):
    """What runs the network: an engine, or the model itself."""

    def detect(self, canvases: NDArray[np.uint8]) -> list[Detections]:
        """The detections on each canvas, B x H x W x 3, in its pixels."""
        ...


@dataclass(frozen=True)
class Predictor:
    """A loaded model.

    Attributes:
        runner: Runs the network.
        preprocessor: Makes canvases of images.
        classes: Names of the model's classes, in order.
        task: What the model gives: detections, or one class per image.
        engine: Name of what runs it.
        batch: Images per call of the network.
        bundle: Where the model is from; None for one in training.
    """

    runner: Runner = field(repr=False)
    preprocessor: Preprocessor
    classes: tuple[str, ...]
    task: Literal["detection", "classification"] = "detection"
    engine: str = "torch"
    batch: int = 8
    bundle: Bundle | None = None

    def predict(
        self, images: ImageLike | Sequence[ImageLike], *, threshold: float | None = None
    ) -> list[Detections] | list[Classification]:
        """The detections in each image, or its class, in the order given.

        Args:
            images: One or a list of paths, encoded bytes, H x W x 3 uint8 RGB arrays or PIL images; all are turned
                upright as their EXIF says. From a path or encoded bytes the result is that of `detect`; from the pixels
                of a large JPEG scores differ a little, for those are not decoded at reduced scale (docs/models.md).
            threshold: Lowest score of a detection; default: the one that validation chose, else 0.3. A classifier
                always gives its best class.

        Raises:
            ImageError: An image cannot be used; the message says which.
        """
        given: Sequence[Any] = images if isinstance(images, list | tuple) else [images]
        lowest = self.resolve_threshold(threshold)
        results: list[Any] = []
        for start in range(0, len(given), self.batch):
            indices = range(start, min(start + self.batch, len(given)))
            prepared = [self._prepare(given, index) for index in indices]
            results += self.classify(prepared) if self.task == "classification" else self.detect(prepared, lowest)
        return results

    def close(self) -> None:
        """Give back what the engine has changed in this process."""
        close = getattr(self.runner, "close", None)
        if close:
            close()

    def resolve_threshold(self, threshold: float | None) -> float:
        """The threshold that is meant: see `resolve_threshold`."""
        return resolve_threshold(self.bundle.info if self.bundle else None, threshold)

    def prepare_encoded(self, data: EncodedImage) -> PreparedImage:
        """An encoded image as the network takes it; see `Preprocessor.prepare_encoded`."""
        return self.preprocessor.prepare_encoded(data)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """An upright RGB image as the network takes it."""
        return self.preprocessor.prepare(pixels)

    def detect(self, images: Sequence[PreparedImage], threshold: float) -> list[Detections]:
        """The detections in each image; the class of a whole image is a box around it.

        Images with canvases of the same size go through the network at once.
        """
        if self.task == "classification":
            return [one.to_detections(self.classes) for one in self.classify(images)]
        return [
            self._in_original(detections, image).at_least(threshold)
            for detections, image in zip(self._run([image.canvas for image in images]), images, strict=True)
        ]

    def classify(self, images: Sequence[PreparedImage]) -> list[Classification]:
        """The class of each image, with the probability of every class."""
        results = self._run([image.canvas for image in images])
        return [self._to_class(result, image) for result, image in zip(results, images, strict=True)]

    def _run(self, canvases: Sequence[Pixels]) -> list[Detections]:
        results: list[Detections | None] = [None] * len(canvases)
        for shape in dict.fromkeys(canvas.shape for canvas in canvases):
            indices = [index for index, canvas in enumerate(canvases) if canvas.shape == shape]
            batch = np.stack([canvases[index] for index in indices])
            for index, detections in zip(indices, self.runner.detect(batch), strict=True):
                results[index] = detections
        return [detections for detections in results if detections is not None]

    def _in_original(self, detections: Detections, image: PreparedImage) -> Detections:
        letterbox = self.preprocessor.letterbox
        boxes = boxes_to_original(
            detections.boxes.astype(np.float32, copy=False), letterbox, width=image.width, height=image.height
        )
        return Detections(boxes, detections.scores, detections.labels, classes=self.classes)

    def _to_class(self, detections: Detections, image: PreparedImage) -> Classification:
        scores = np.zeros(len(self.classes), np.float32)
        scores[detections.labels] = detections.scores
        best = int(scores.argmax())
        return Classification(best, self.classes[best], float(scores[best]), scores, (image.width, image.height))

    def _prepare(self, images: Sequence[Any], index: int) -> PreparedImage:
        image = images[index]
        label = f"image {index} of {len(images)}" + (f", {str(image)[:200]!r}" if _is_path(image) else "")
        try:
            return self._prepare_any(image)
        except ImageError as error:
            raise ImageError(
                error.reason, f"{label}: {error.detail}" if error.detail else label, stage=error.stage
            ) from None
        except OSError as error:
            raise ImageError("file not readable", f"{label}: {error}", stage="read") from None

    def _prepare_any(self, image: Any) -> PreparedImage:
        if _is_path(image):
            return self.prepare_encoded(read_file(os.fspath(image)))
        if isinstance(image, bytes | bytearray | memoryview):
            return self.prepare_encoded(bytes(image))
        if isinstance(image, Image.Image):
            return self.prepare(decode_pil(image, max_pixels=self.preprocessor.max_pixels))
        if isinstance(image, np.ndarray):
            if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size:
                return self.prepare(image)
            raise ImageError("not an image", f"an array of {image.dtype} {image.shape}; expected uint8 (H, W, 3), RGB")
        raise ImageError("not an image", f"a {type(image).__name__}; expected a path, bytes, an array or a PIL image")


def predictor_of(
    model: "Detector",
    classes: Sequence[str],
    *,
    preprocessing: Preprocessing | None = None,
    bundle: Bundle | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Predictor:
    """A predictor whose network is run by the modules of a model as they are.

    Args:
        preprocessing: What the model's bundle says; None for a model that has none yet.
    """
    preprocessor = make_preprocessor(model.inference, preprocessing, max_pixels=max_pixels)
    return Predictor(model.eval(), preprocessor, tuple(classes), model.task, bundle=bundle)


def resolve_threshold(info: ModelInfo | None, threshold: float | None) -> float:
    """The threshold that is meant: the one given, else the one that validation chose, else 0.3."""
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigError(f"threshold is {threshold}; expected 0 to 1")
    chosen = threshold if threshold is not None or info is None else info.score_threshold
    return DEFAULT_THRESHOLD if chosen is None else chosen


def threshold_note(info: ModelInfo, threshold: float | None) -> str:
    """The threshold that is meant, and why it is that one, for people.

    Args:
        threshold: The one given, if any; see `resolve_threshold`.
    """
    if threshold is not None:
        return f"threshold {threshold:.3f} (as given)"
    if info.score_threshold is not None:
        return f"threshold {info.score_threshold:.3f} (the best F1 on validation)"
    return f"threshold {DEFAULT_THRESHOLD:.3f} (the default: the model has none of its own)"


def _is_path(image: Any) -> bool:
    return isinstance(image, str | os.PathLike)
