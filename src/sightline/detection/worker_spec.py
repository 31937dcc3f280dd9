"""All that makes a worker, in a form that travels: no path of the driver's is opened elsewhere."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sightline.detection.item import Source
from sightline.detection.rows import ModelName
from sightline.detection.worker import Worker
from sightline.engines.form_cache import private_directory
from sightline.engines.opening import open_predictor
from sightline.engines.settings import InferenceSettings
from sightline.models.bundle import Bundle, open_bundle
from sightline.models.predictor import Predictor


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is made of.

    Attributes:
        bundle: The files of the model, by relative name.
        compiled: The files of its compiled forms, likewise.
    """

    bundle: Mapping[str, bytes]
    compiled: Mapping[str, bytes]
    settings: InferenceSettings
    source: Source
    model: ModelName

    def make_worker(self) -> Worker:
        """A worker in this process, from the files that came along; every byte of the model is checked."""
        with tempfile.TemporaryDirectory(prefix="sightline-model-") as name:
            path = Path(name)
            _unpack(self.bundle, path / "bundle")
            bundle = open_bundle(path / "bundle")
            cache = private_directory(path / "compiled")
            _unpack(self.compiled, cache / bundle.hash)
            predictor = self.open(bundle, cache)
        return self.worker_of(predictor)

    def open(self, bundle: Bundle, cache: Path) -> Predictor:
        """The model, as all workers of the job load it."""
        return open_predictor(bundle, self.settings, min_score=self.settings.threshold, cache=cache)

    def worker_of(self, predictor: Predictor) -> Worker:
        """A worker around a model that is loaded already."""
        return Worker(predictor, self.source, self.settings, self.model)


def pack(directory: Path) -> dict[str, bytes]:
    """The files below a directory."""
    if not directory.is_dir():
        return {}
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(directory).parts)
    }


def _unpack(files: Mapping[str, bytes], directory: Path) -> None:
    for name, content in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
