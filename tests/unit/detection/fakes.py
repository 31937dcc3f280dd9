"""Sources and workers made by hand, for tests of what lies between them."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sightline.data.decode import encode_jpeg
from sightline.detection.item import Item
from sightline.detection.pool import Died, Done, Task
from sightline.detection.rows import ModelName, Rows
from sightline.errors import ImageError
from sightline.structures import Detections

MODEL = ModelName("lively", "1")


def item(name: str, version: str = "") -> Item:
    return Item(name, f"/photos/{name}", version, name)


@dataclass
class Images:
    """Images by name: bytes, or the reason why there are none."""

    content: dict[str, bytes | str]
    versions: dict[str, str] = field(default_factory=dict)
    name: str = "photos"
    stage: str = "read"

    def items(self) -> Iterator[Item]:
        return (item(name, self.versions.get(name, "")) for name in self.content)

    def read(self, item: Item) -> bytes:
        found = self.content[item.ref]
        if isinstance(found, str):
            raise ImageError(found, "in a test", stage=self.stage)
        return found

    def is_visible(self) -> bool:
        return True


def names(*counts: int) -> Images:
    return Images({f"{number:05}": b"" for number in range(*counts)})


def jpeg(width: int = 80, height: int = 60, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height // 4, width // 4, 3), np.uint8)
    return encode_jpeg(pixels.repeat(4, 0).repeat(4, 1), quality=90)


class FakePool:
    """Finds one box in every image, at once; dies over some.

    Attributes:
        seen: How often each image was in a task.
    """

    size = alive = 2

    def __init__(self, poison: Iterable[str] = ()) -> None:
        self.poison, self.seen = set(poison), Counter[str]()
        self._tasks: deque[Task] = deque()

    def takes(self, *, alone: bool = False) -> bool:
        return len(self._tasks) < (1 if alone else 4)

    def submit(self, task: Task) -> None:
        self._tasks.append(task)
        self.seen.update(item.image_id for item in task.items)

    def wait(self, timeout_s: float) -> list[Done | Died]:
        if not self._tasks:
            return []
        task = self._tasks.popleft()
        if self.poison & {item.image_id for item in task.items}:
            return [Died(task, "a test")]
        rows = Rows(task.items, task.chunk.name, MODEL)
        for place in range(len(task.items)):
            box = np.array([[1, 2, 3, 4]], np.float32)
            found = Detections(box, np.array([0.5], np.float32), np.array([0], np.int32), classes=("circle",))
            rows.detected(place, found, width=10, height=10)
        return [Done(task, rows.table())]

    def close(self) -> None:
        """Nothing."""
