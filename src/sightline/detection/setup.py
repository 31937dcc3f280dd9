"""All that makes a worker, in a form that travels: no path of the driver's is opened elsewhere."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sightline.detection.item import Source
from sightline.detection.rows import ModelName
from sightline.detection.worker import Look, Worker
from sightline.engines.form_cache import private_directory
from sightline.engines.opening import open_predictor
from sightline.models.bundle import Bundle, open_bundle
from sightline.models.predictor import Predictor

_DEFAULT_BATCH = {"cpu": 1, "cuda": 16}
_MOST_LANES = 8


@dataclass(frozen=True)
class Engine:
    """What runs the model.

    Attributes:
        name: As resolved: never "auto".
        device: "cpu" or "cuda".
        size: Side that images are fitted into, if not as trained.
        rectangular: Whether images are not padded to squares, where the model allows it.
        reduced_decode: Whether large JPEGs are decoded at reduced scale.
        bfloat16: Whether that was asked for, even where it is less exact.
    """

    name: str
    device: str
    threads: int
    size: int | None
    rectangular: bool
    reduced_decode: bool
    max_pixels: int
    bfloat16: bool = False

    @property
    def lanes(self) -> int:
        """Images that go through the network side by side: with one thread each, two take less time than in turn."""
        return min(self.threads, _MOST_LANES) if self.name == "openvino" else 1


@dataclass(frozen=True)
class Setup:
    """What a worker is made of.

    Attributes:
        bundle: The files of the model, by relative name.
        compiled: The files of its compiled forms, likewise.
        batch: Images at once; None takes what suits the device.
    """

    bundle: Mapping[str, bytes]
    compiled: Mapping[str, bytes]
    engine: Engine
    source: Source
    look: Look
    model: ModelName
    batch: int | None = None

    def make_worker(self) -> Worker:
        """A worker in this process, from the files that came along; every byte of the model is checked."""
        with tempfile.TemporaryDirectory(prefix="sightline-model-") as name:
            place = Path(name)
            _unpack(self.bundle, place / "bundle")
            bundle = open_bundle(place / "bundle")
            cache = private_directory(place / "compiled")
            _unpack(self.compiled, cache / bundle.hash)
            predictor = self.open(bundle, cache)
        return self.worker_of(predictor)

    def open(self, bundle: Bundle, cache: Path) -> Predictor:
        """The model, as all workers of the job load it."""
        engine = self.engine
        return open_predictor(
            bundle,
            engine=engine.name,
            threads=engine.threads,
            lanes=engine.lanes,
            bfloat16=engine.bfloat16,
            size=engine.size,
            device=engine.device,
            rectangular=engine.rectangular,
            reduced_decode=engine.reduced_decode,
            floor=self.look.threshold,
            cache=cache,
            max_pixels=engine.max_pixels,
        )

    def worker_of(self, predictor: Predictor) -> Worker:
        """A worker around a model that is loaded already."""
        batch = default_batch(self.batch, predictor.device.type)
        return Worker(predictor, self.source, replace(self.look, batch=batch, lanes=self.engine.lanes), self.model)


def default_batch(batch: int | None, device: str) -> int:
    """Images at once: those asked for, else what suits the device."""
    return batch or _DEFAULT_BATCH.get(device, 1)


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
