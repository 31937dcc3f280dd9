"""A trained model on disk: weights as safetensors, what it is as JSON, a manifest; no pickle."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from sightline.data.disk import sync
from sightline.errors import DamagedError, NotFoundError
from sightline.models.detector import Detector
from sightline.models.factory import make_model
from sightline.training.checkpoint import MANIFEST, Weights, refuse_not_finite, verify_manifest, write_manifest

WEIGHTS, DESCRIPTION = "weights.safetensors", "model.json"


@dataclass(frozen=True)
class ModelInfo:
    """What a model is and where it comes from.

    Attributes:
        score_threshold: The threshold with the best F1 on the validation split.
        scores: Figures on the validation split.
    """

    model: str
    classes: list[str]
    size: int
    dataset: str
    dataset_hash: str
    score_threshold: float | None
    scores: dict[str, float]
    licence: str = "Apache-2.0"


def save_model(directory: Path, weights: Weights, info: ModelInfo) -> None:
    """Write a model; the directory is complete or absent."""
    refuse_not_finite(weights)
    partial = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, partial / WEIGHTS)
    (partial / DESCRIPTION).write_text(json.dumps(asdict(info), indent=2) + "\n", "utf-8")
    write_manifest(partial)
    if _is_same(directory, partial):
        shutil.rmtree(partial)  # A run that had ended was started again: its model is never away, not even shortly.
        return
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    sync(directory.parent)


def _is_same(one: Path, other: Path) -> bool:
    try:
        verify_manifest(one)
    except DamagedError:
        return False
    return (one / MANIFEST).read_bytes() == (other / MANIFEST).read_bytes()


def load_model(directory: Path, *, size: int | None = None) -> tuple[Detector, ModelInfo]:
    """Read a model whose every file is as it was written; it takes images of another size if one is given."""
    info = read_info(directory)
    model = make_model(info.model, num_classes=len(info.classes), size=size or info.size)
    try:
        model.load_state_dict(load_file(directory / WEIGHTS))
    except RuntimeError as error:
        raise DamagedError(f"{str(directory)!r} is not a model of this version: {error}") from None
    return model.eval(), info


def read_info(directory: Path) -> ModelInfo:
    """What a model is, once every file of it was seen to be as it was written."""
    if not (directory / DESCRIPTION).is_file():
        raise NotFoundError(f"there is no model at {str(directory)!r}: `sightline train DATASET` makes one")
    verify_manifest(directory)
    values: dict[str, Any] = json.loads((directory / DESCRIPTION).read_text("utf-8"))
    try:
        return ModelInfo(**values)
    except TypeError as error:
        raise DamagedError(f"{str(directory)!r} is not a model of this version: {error}") from None
