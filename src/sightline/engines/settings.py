"""How a model is applied to images: one value from the settings to the identity of a job, its workers and the engine.

A new option is a field here, a setting of `detect`, and the code that reads it.
"""

from dataclasses import MISSING, dataclass, fields
from typing import Any

from sightline.config import DecodeConfig, DetectConfig
from sightline.data.parallel import num_cores
from sightline.engines.factory import resolve_engine
from sightline.errors import ConfigError
from sightline.models.bundle import Bundle
from sightline.models.factory import YOLO_ONNX
from sightline.models.predictor import resolve_threshold

_DEFAULT_BATCH = {"cpu": 1, "cuda": 16}
_MAX_DECODERS = _MAX_STREAMS = 8
_SPEED_ONLY = frozenset({"device", "threads", "concurrent", "batch", "max_pixels"})


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of inference without anything left open.

    Attributes:
        engine: As resolved, never "auto".
        threshold: Lowest score to keep.
        size: Side that images are fitted into.
        rectangular: Whether images are not padded to squares, where the model allows it.
        reduced_decode: Whether large JPEGs are decoded at reduced scale.
        tile: Side of the tiles that larger images are cut into; None cuts none.
        overlap: Share of a tile that it has in common with the next; None without tiles.
        precision: "auto", or the one that was asked for.
        device: "cpu" or "cuda".
        threads: Of the engine.
        concurrent: Whether several threads call the engine at once.
        batch: Images or tiles per call of the network.
        max_pixels: Images with more pixels are refused.
    """

    engine: str
    threshold: float
    size: int
    rectangular: bool
    reduced_decode: bool
    tile: int | None
    overlap: float | None
    precision: str = "auto"
    device: str = "cpu"
    threads: int = 1
    concurrent: bool = False
    batch: int = 1
    max_pixels: int = DecodeConfig().max_pixels

    @property
    def decoders(self) -> int:
        """Threads that read and decode."""
        return min(self.threads, _MAX_DECODERS)

    @property
    def streams(self) -> int:
        """Batches that go through the network side by side, each on threads of its own.

        With one thread each, two images take less time than one after the other on two.
        """
        return min(self.threads, _MAX_STREAMS) if self.concurrent and self.engine == "openvino" else 1

    def identity(self) -> dict[str, Any]:
        """What decides on the detections, and so on the identity of a job.

        A field with a default counts only if it has another value: jobs from before the option existed stay the same.
        """
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _SPEED_ONLY
            and (field.default is MISSING or getattr(self, field.name) != field.default)
        }


def resolve_inference(
    bundle: Bundle, config: DetectConfig, *, device: str, max_pixels: int, concurrent: bool = False
) -> InferenceSettings:
    """The settings that a model is run with: what was left open comes from its bundle and the machine.

    Args:
        concurrent: Whether several threads will call the engine at once.

    Raises:
        ConfigError: The model cannot be run so.
    """
    info = bundle.info
    if info.model == YOLO_ONNX:
        device = "cpu"
    if config.tile and info.task == "classification":
        raise ConfigError("--tile is for detectors: a classifier says what the whole image is")
    said = info.preprocessing.overridden(rectangular=config.rectangular, reduced_decode=config.reduced_decode)
    return InferenceSettings(
        engine=resolve_engine(bundle, config.engine, device)[0],
        threshold=resolve_threshold(info, config.threshold),
        size=config.size or info.size,
        rectangular=not said.square,
        reduced_decode=said.reduced_decode,
        tile=config.tile,
        overlap=config.overlap if config.tile else None,
        precision=config.precision,
        device=device,
        threads=config.threads or num_cores(),
        concurrent=concurrent,
        batch=config.batch or _DEFAULT_BATCH.get(device, 1),
        max_pixels=max_pixels,
    )
