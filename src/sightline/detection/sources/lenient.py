"""A source whose images may be removed with the folders that they lie in."""

from collections.abc import Iterator

from sightline.detection.item import Item, Source
from sightline.errors import ImageError, SourceError


class Lenient:
    """A source that blames an image that is missing even if all of its folder are (`source.missing = "reject"`)."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """That of the source: it is the same job."""
        return self._source.name

    def items(self) -> Iterator[Item]:
        """As the source does."""
        return self._source.items()

    def read(self, item: Item) -> bytes:
        """As the source does, but for images whose place is gone, which are rejected."""
        try:
            return self._source.read(item)
        except SourceError as error:
            if isinstance(error.__cause__, ImageError):
                raise error.__cause__ from None
            raise

    def is_visible(self) -> bool:
        """As the source does."""
        return self._source.is_visible()
