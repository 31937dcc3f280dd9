"""Sources whose images do things to the process that reads them; workers import this by its name."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sightline.detection.item import Item
from sightline.errors import ConfigError


@dataclass(frozen=True)
class Hostile:
    """Image "good" is the bytes given; what reading another does is its name."""

    good: bytes
    name: str = "hostile"

    def items(self) -> Iterator[Item]:
        return iter(())

    def read(self, item: Item) -> bytes:
        if item.ref == "abort":
            os.write(2, b"malloc(): corrupted top size\n")
            os.abort()
        if item.ref == "hang":
            time.sleep(3600)
        if item.ref == "break":
            import broken_model

            broken_model.break_model()
        if item.ref == "refuse":
            raise ConfigError("the source refuses")
        return self.good

    def is_visible(self) -> bool:
        return True


def item(ref: str) -> Item:
    return Item(ref, f"/photos/{ref}", "", ref)
