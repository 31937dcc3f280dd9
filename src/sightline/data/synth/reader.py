"""Synthetic images as a source for ingest, so that they are made by all cores and stored like any others."""

from collections.abc import Iterator
from typing import Literal

from sightline.data.decode import encode_jpeg
from sightline.data.record import Entry, Loaded, RawBox, Task
from sightline.data.storage import Folder
from sightline.data.synth import boards, shapes
from sightline.data.synth.rendered import Rendered
from sightline.errors import ConfigError

Kind = Literal["boards", "shapes", "shape-classes"]
_SMALLEST = {"boards": 160, "shapes": 32, "shape-classes": 32}
_USUAL = {"boards": 640, "shapes": 64, "shape-classes": 64}
_BYTES_PER_PIXEL = 0.1


class SynthReader:
    """Renders image number i of a seed when a worker asks for it."""

    def __init__(self, kind: Kind, *, images: int, seed: int, size: int | None = None) -> None:
        if kind not in _USUAL:
            raise ConfigError(f"synth {kind!r} is not one of {', '.join(_USUAL)}")
        self.size = size or _USUAL[kind]
        if images < 1 or self.size < _SMALLEST[kind]:
            raise ConfigError(
                f"synth {kind}: --images must be at least 1 and --size at least {_SMALLEST[kind]}, "
                f"not {images} and {self.size}"
            )
        self._kind, self._images, self._seed = kind, images, seed
        self.classes = boards.CLASSES if kind == "boards" else shapes.CLASSES
        self.task: Task = "classification" if kind == "shape-classes" else "detection"

    @property
    def folders(self) -> tuple[Folder, ...]:
        """None: images are made, not read."""
        return ()

    def entries(self) -> Iterator[Entry]:
        """One entry an image, named so that sorting keeps the order."""
        size = int(self.size * self.size * _BYTES_PER_PIXEL)
        for index in range(self._images):
            yield Entry(f"{self._kind}-{self._seed}-{index:06d}.jpg", size, payload=index)

    def load(self, entry: Entry) -> Loaded:
        """Render and encode one image."""
        rendered = self._render(entry.payload)
        boxes = [
            RawBox(x0, y0, x1, y1, label)
            for (x0, y0, x1, y1), label in zip(rendered.boxes.tolist(), rendered.labels.tolist(), strict=True)
        ]
        return Loaded(encode_jpeg(rendered.image), boxes, rendered.label, (self.size, self.size))

    def _render(self, index: int) -> Rendered:
        match self._kind:
            case "boards":
                return boards.render_board(seed=self._seed, index=index, size=self.size)
            case "shapes":
                return shapes.render_shapes(seed=self._seed, index=index, size=self.size)
            case _:
                return shapes.render_shape(seed=self._seed, index=index, size=self.size)
