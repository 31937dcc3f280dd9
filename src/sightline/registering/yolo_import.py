"""A YOLO in ONNX from elsewhere made into a model: looked through, made to take 8-bit images, tried once."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from sightline.engines.onnx_runtime import open_session, run_session
from sightline.errors import ConfigError, FormatError, MissingExtraError
from sightline.models.yolo_file import onnx_library, parse_onnx, read_onnx_bytes
from sightline.models.yolo_graph import check_output, input_of, take_bytes
from sightline.models.yolo_metadata import YoloMetadata, read_metadata
from sightline.models.yolo_onnx import YoloOnnx, make_yolo_onnx

_USUAL_SIZE = 640


def make_yolo(
    file: Path, *, classes: tuple[str, ...] | None = None, size: int | None = None
) -> tuple[YoloOnnx, YoloMetadata]:
    """The model in a file, and what the file says of it, with the classes that it has now.

    Args:
        classes: Names in the order of its outputs; None takes those that the file brings.
        size: Side of the square that images are fitted into; None takes the file's.
    """
    shown = str(file)
    model = parse_onnx(read_onnx_bytes(file), shown)
    said = read_metadata(model)
    _refuse_other_tasks(said, shown)
    names = classes or said.classes
    if not names:
        raise ConfigError(f"{shown!r} does not say what its classes are called: give --names")
    given = input_of(model, shown)
    if given.takes_bytes:
        raise FormatError(f"{shown!r} takes 8-bit images; expected float from 0 to 1, as Ultralytics exports it")
    if given.side is not None and given.side % said.stride:
        raise FormatError(f"{shown!r} takes {given.side} pixels, which is no multiple of its stride {said.stride}")
    check_output(model, shown, num_classes=len(names))
    take_bytes(model, given)
    onnx_library().checker.check_model(model)
    chosen = size or given.side or said.size or _USUAL_SIZE
    made = make_yolo_onnx(model.SerializeToString(), input_of(model, shown), size=chosen, stride=said.stride)
    _try(made, said.stride, shown, num_classes=len(names))
    return made, replace(said, classes=names)


def _refuse_other_tasks(said: YoloMetadata, shown: str) -> None:
    if said.task != "detect":
        raise FormatError(f"{shown!r} is a model for the task {said.task!r}; only detectors (detect) can be imported")
    if said.end_to_end:
        raise FormatError(f"{shown!r} suppresses boxes by itself: export it with end2end=False and without nms")


def _try(model: YoloOnnx, stride: int, shown: str, *, num_classes: int) -> None:
    """Run the file on blank images, of another size than it was exported with if it takes any."""
    given = model.given
    batch, height, width = given.batch or 2, given.side or 2 * stride, given.side or 3 * stride
    try:
        session = open_session(model.content, threads=1)
        (output, *_) = run_session(session, np.zeros((batch, 3, height, width), np.uint8))
    except MissingExtraError:
        raise
    except Exception as error:  # ONNX Runtime has a dozen of its own, without a common base.
        reason = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{shown!r} does not run on {batch} images of {width} x {height} pixels, which its input admits: {reason}"
        ) from None
    shape, scores = tuple(output.shape), output[:, 4:]
    if len(shape) != 3 or shape[:2] != (batch, 4 + num_classes):
        raise FormatError(
            f"{shown!r} gives {' x '.join(map(str, shape))} for {batch} images; expected {batch} x {4 + num_classes} x "
            f"places (a box and {num_classes} classes). If the number of classes is another, give the right --names"
        )
    if not np.isfinite(output).all() or scores.min() < 0 or scores.max() > 1:
        raise FormatError(f"{shown!r} gives scores that are not between 0 and 1: export it with its sigmoid")
