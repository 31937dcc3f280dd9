"""What makes two runs the same job: the source, the model, and all that decides on what is found.

Workers, batches and chunks only decide on how quickly.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from sightline.engines.settings import InferenceSettings

_FORMAT = 1
_SHORT = 8


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        source: What the source calls itself.
        model: As rows name it.
        bundle: The hash of the model.
    """

    source: str
    model: str
    model_version: str
    bundle: str
    settings: InferenceSettings

    @property
    def id(self) -> str:
        """The same for the same job, whoever runs it; names of models do not count, only their bytes."""
        what = {"source": self.source, "bundle": self.bundle, **self.settings.identity(), "format": _FORMAT}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def usual_name(self) -> str:
        """What a job is called if nobody says: where from, by which model, and its id."""
        return f"{slug(self.source)}-{slug(self.model)}-{self.id[:_SHORT]}"

    def describe(self) -> dict[str, Any]:
        """As it is written down."""
        names = {"source": self.source, "model": self.model, "model_version": self.model_version}
        settings = {"precision": self.settings.precision, **self.settings.identity()}
        return {"id": self.id, **names, "bundle": self.bundle, **settings}


def slug(text: str) -> str:
    """The last part of a path or name, of letters that a directory may have."""
    last = re.split(r"[/\\]", text.rstrip("/\\"))[-1]
    return re.sub(r"[^A-Za-z0-9]+", "-", last).strip("-")[:24].lower() or "images"
