"""An image of a source as it travels: where it is, never what it shows."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sightline.errors import SightlineError


@dataclass(frozen=True, slots=True)
class Item:
    """One image.

    Attributes:
        image_id: What tells it from all others of its source; the same in every run.
        uri: Where people find it, without credentials.
        version: Changes when the image does (size and time of a file); empty where the source cannot tell.
        ref: How its source reads it again.
    """

    image_id: str
    uri: str
    version: str
    ref: str


class Source(Protocol):
    """Images to look at. Workers get a pickled copy, and read by themselves."""

    @property
    def name(self) -> str:
        """What it is, the same in every run and without credentials: part of the job's identity."""
        ...

    def items(self) -> Iterator[Item]:
        """All images, streamed: names do not have to fit in memory. Only the driver asks.

        What looks like an image and cannot be read (a link out of the folder, say) is an item all the same; reading it
        says why.

        Raises:
            SourceError: The source cannot be listed, also after it was tried again where that repeats nothing.
        """
        ...

    def read(self, item: Item) -> bytes:
        """The encoded bytes of an image; several threads ask at once.

        Nothing is tried again here: whoever asks does that.

        Raises:
            ImageError: The image, or the entry that names it, is to blame; it becomes a rejected row.
            SourceError: The source is out of reach at the moment, which says nothing of the image.
        """
        ...

    def is_visible(self) -> bool:
        """Whether this process can read the source: a worker on another machine may not see the driver's disk."""
        ...


@dataclass(frozen=True)
class ImageList:
    """Some images of a source, to be read one by one."""

    source: Source
    items: tuple[Item, ...]

    def read(self, item: Item) -> bytes | SightlineError:
        """The encoded bytes of an image, or why it cannot be read."""
        try:
            return self.source.read(item)
        except SightlineError as error:
            return error


def id_of(key: str) -> str:
    """The id of an image with this normalised URI or key of a table.

    >>> id_of("/photos/a.jpg")
    '46dd5d5b92eb57143f7758e85de62008'
    """
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
