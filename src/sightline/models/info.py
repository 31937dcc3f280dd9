"""What a model is and where it comes from, as its bundle says it in JSON; strangers write such files too."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.data.disk import read_patiently
from sightline.data.geometry import FILL
from sightline.errors import DamagedError
from sightline.models.letterbox import Letterbox

FORMAT = 2
"""Of descriptions that this version writes; it reads those of format 1 too."""
Share = Annotated[float, Field(ge=0, le=1)]
Figures = dict[str, float]
"""Finite numbers by name."""


class Part(BaseModel):
    """Values that cannot change, and none that are not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Preprocessing(Part):
    """What is done to an encoded image before it goes into the network, wherever the model is used.

    Attributes:
        square: Every canvas is a square of `size`; else it is as small as the image allows, where the network takes it.
        centred: The image lies in the middle of the canvas; else in its upper left corner.
        resize: The image is scaled onto a canvas of the colour `fill`, keeping its aspect.
        normalise: Numbers are brought to the network's range inside of it.
        reduced_decode: JPEGs of at least twice the size that is needed are decoded at reduced scale.
    """

    size: int = Field(ge=32, le=16384)
    multiple: int = Field(ge=1, le=1024)
    square: bool
    upscale: bool
    centred: bool = False
    fill: int = FILL
    color: Literal["RGB"] = "RGB"
    resize: Literal["bilinear"] = "bilinear"
    normalise: Literal["in the network"] = "in the network"
    reduced_decode: bool = True

    @classmethod
    def of(cls, letterbox: Letterbox) -> "Preprocessing":
        """What a letterbox does."""
        return cls(**asdict(letterbox))

    def overridden(self, *, rectangular: bool | None, reduced_decode: bool | None) -> "Preprocessing":
        """The same with what a user chose instead; None leaves it. A canvas that has to be square stays square."""
        return self.model_copy(
            update={
                "square": self.square or rectangular is False,
                "reduced_decode": self.reduced_decode if reduced_decode is None else reduced_decode,
            }
        )


class DatasetNote(Part):
    """The data that a model has learned from."""

    name: str
    content_hash: str


class RunNote(Part):
    """The run that made a model; `run_id` is MLflow's."""

    name: str
    run_id: str | None = None


class ModelInfo(Part):
    """What a model is.

    Attributes:
        format: Version of this description.
        model: The architecture, by its name in the factory; `preprocessing.size` is its other option.
        score_threshold: The one with the best F1 on the validation split; None where that is not known.
        metrics: Figures on the validation split.
        per_class: The same by class, one for each class, or none.
        licence: Of the architecture; weights are their owner's.
        versions: Libraries that made it.
    """

    format: Literal[2] = 2
    model: str
    task: Literal["detection", "classification"]
    classes: tuple[str, ...] = Field(min_length=1)
    preprocessing: Preprocessing
    score_threshold: Share | None = None
    metrics: Figures = Field(default_factory=dict)
    per_class: tuple[Figures, ...] = ()
    dataset: DatasetNote | None = None
    run: RunNote | None = None
    licence: str
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def size(self) -> int:
        """Side of the square that images are fitted into."""
        return self.preprocessing.size

    def to_json(self) -> str:
        """As it is written."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def is_like(self, other: "ModelInfo") -> bool:
        """Whether two say the same of a model, whoever has run the training that made it."""
        apart: dict[str, object] = {"run": None, "versions": {}}
        return self.model_copy(update=apart) == other.model_copy(update=apart)


def read_info(file: Path) -> ModelInfo:
    """What a description says.

    Raises:
        DamagedError: It is not one that this version reads.
        StorageError: The disk cannot be read.
    """
    try:
        values = json.loads(read_patiently(lambda: file.read_text("utf-8"), what=f"read {str(file)!r}"))
        if isinstance(values, dict):
            values = _upgraded(values, str(file))
        return ModelInfo.model_validate(values)
    except (OSError, ValueError, RecursionError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else None
        why = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem else " ".join(str(error).split())
        raise DamagedError(f"{str(file)!r} does not describe a model: {why[:200]}") from None


def _upgraded(values: dict[str, Any], shown: str) -> dict[str, Any]:
    """A description in the present format."""
    written = values.get("format")
    if written == FORMAT:
        return values
    if written != 1:
        raise DamagedError(
            f"{shown!r} has format {str(written)[:20]}; this version reads formats 1 to {FORMAT}: "
            "use a version of Sightline as new as the one that wrote it"
        )
    # Format 1 described the canvas of training. `detect` used the smallest that the network takes.
    preprocessing = values.get("preprocessing")
    if isinstance(preprocessing, dict):
        preprocessing = {**preprocessing, "square": False}
    return {**values, "format": FORMAT, "preprocessing": preprocessing}


def finite(figures: Mapping[str, float]) -> Figures:
    """The figures that are numbers."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def figures_by_class(figures: Mapping[str, float], num_classes: int) -> tuple[Figures, ...]:
    """Figures named `NAME/INDEX` as one mapping for each class; nothing if there are none.

    >>> figures_by_class({"ap50/0": 0.5, "ap50/1": 0.75}, 2)
    ({'ap50': 0.5}, {'ap50': 0.75})
    """
    rows: Sequence[Figures] = [{} for _ in range(num_classes)]
    for name, value in figures.items():
        figure, _, index = name.rpartition("/")
        rows[int(index)][figure] = value
    return tuple(rows) if figures else ()
