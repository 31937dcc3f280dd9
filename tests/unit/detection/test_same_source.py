"""Whether another machine sees the driver's images, or files of the same names."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fakes import Images, item

from sightline.detection.item import Item
from sightline.detection.same_source import take_samples, why_not_seen
from sightline.errors import SourceError

DRIVER = Images({"a": b"one", "b": "truncated image", "c": b"three"})
ITEMS = tuple(DRIVER.items())


@dataclass
class Elsewhere:
    """What another machine has under the same name."""

    content: dict[str, bytes]
    there: bool = True
    name: str = "photos"

    def items(self) -> Iterator[Item]:
        return iter(())

    def read(self, item: Item) -> bytes:
        if item.ref not in self.content:
            raise SourceError(f"{item.uri} is out of reach")
        return self.content[item.ref]

    def is_visible(self) -> bool:
        return self.there


def test_an_image_that_the_driver_cannot_use_tells_nothing() -> None:
    assert [sample.item for sample in take_samples(DRIVER, ITEMS)] == [item("a"), item("c")]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (Elsewhere({"a": b"one", "c": b"three"}), ""),
        (Elsewhere({"a": b"one", "b": b"anything", "c": b"three"}), ""),
        (Elsewhere({"a": b"one", "c": b"other"}), "/photos/c has other bytes there"),
        (Elsewhere({"a": b"one"}), "it cannot be read there: /photos/c is out of reach"),
        (Elsewhere({"a": b"one", "c": b"three"}, there=False), "photos is not there"),
    ],
)
def test_what_another_machine_sees(source: Elsewhere, why: str) -> None:
    assert why_not_seen(source, take_samples(DRIVER, ITEMS)) == why


def test_a_source_that_comes_back_while_it_is_read() -> None:
    class Flaky(Images):
        failures = 1

        def read(self, item: Item) -> bytes:
            if self.failures:
                self.failures -= 1
                raise SourceError("not now")
            return super().read(item)

    assert take_samples(Flaky(DRIVER.content), ITEMS) == take_samples(DRIVER, ITEMS)
    assert why_not_seen(Flaky(DRIVER.content), take_samples(DRIVER, ITEMS)) == ""
