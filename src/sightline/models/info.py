"""What a model is and where it comes from, as its bundle says it in JSON; strangers write such files too."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.data.geometry import FILL
from sightline.errors import DamagedError
from sightline.models.letterbox import Letterbox

FORMAT = 1
Share = Annotated[float, Field(ge=0, le=1)]
Figures = dict[str, float]
"""Finite numbers by name."""


class Part(BaseModel):
    """Values that cannot change, and none that are not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Preprocessing(Part):
    """What is done to an upright 8-bit RGB image before it goes into the network.

    Attributes:
        centred: The image lies in the middle of the canvas; else in its upper left corner.
        resize: The image is scaled onto a canvas of the colour `fill`, keeping its aspect.
        normalise: Numbers are brought to the network's range inside of it.
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

    @classmethod
    def of(cls, letterbox: Letterbox) -> "Preprocessing":
        """What a letterbox does."""
        return cls(**asdict(letterbox))


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

    format: Literal[1] = 1
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
        DamagedError: It is not one of this version.
    """
    try:
        values = json.loads(file.read_text("utf-8"))
        if isinstance(values, dict) and values.get("format") != FORMAT:
            raise DamagedError(
                f"{str(file)!r} has format {str(values.get('format'))[:20]}; this version reads format {FORMAT}: "
                "use the version of Sightline that wrote it, or train again"
            )
        return ModelInfo.model_validate(values)
    except (OSError, ValueError, RecursionError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else None
        why = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" if problem else " ".join(str(error).split())
        raise DamagedError(f"{str(file)!r} does not describe a model: {why[:200]}") from None


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
