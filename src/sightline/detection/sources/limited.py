"""The first images of a source."""

from collections.abc import Iterator
from itertools import islice

from sightline.detection.item import Item, Source


class Limited:
    """A source that ends after so many images.

    Attributes:
        limit: How many a job has at most, also when other images are the first of the source by now.
    """

    def __init__(self, source: Source, limit: int) -> None:
        self._source, self.limit = source, limit

    @property
    def name(self) -> str:
        """That of the source, and the limit."""
        return f"{self._source.name} limit {self.limit}"

    def items(self) -> Iterator[Item]:
        """The first ones."""
        return islice(self._source.items(), self.limit)

    def read(self, item: Item) -> bytes:
        """As the source does."""
        return self._source.read(item)

    def is_visible(self) -> bool:
        """As the source does."""
        return self._source.is_visible()
