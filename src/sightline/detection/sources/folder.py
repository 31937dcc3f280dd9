"""A folder of images, on a local disk or in a bucket, with all that lies below it."""

import posixpath
from collections.abc import Iterator

from sightline.data.formats.layout import is_image
from sightline.detection.item import Item
from sightline.detection.sources.health import Reach
from sightline.detection.sources.names import from_ref, make_item, open_folder, shown, to_ref
from sightline.detection.sources.walk import Choice, walk
from sightline.errors import ImageError


class FolderSource:
    """All files below a folder whose suffix is that of an image."""

    def __init__(self, location: str) -> None:
        self._folder, self._public = open_folder(location)
        self._reach = Reach()

    @property
    def name(self) -> str:
        """Its absolute path or URL."""
        return shown(self._public)

    def items(self) -> Iterator[Item]:
        """Every image, in an order that depends on the names only."""
        begin = posixpath.join(self._public, "")
        for name, version in walk(self._folder, self._choice()):
            yield make_item(begin + name, version=version, ref=to_ref(name))

    def read(self, item: Item) -> bytes:
        """The bytes of a file; a link that leads out of the folder is refused."""
        name = from_ref(item.ref)
        try:
            data = self._folder.read(name)
        except ImageError as error:
            self._reach.check(error, item, self._folder, name)
            raise
        self._reach.note_read(self._folder.full_path(name) if self._folder.is_local else "")
        return data

    def is_visible(self) -> bool:
        """Whether the folder is there; buckets are everywhere."""
        return not self._folder.is_local or self._folder.is_folder()

    def _choice(self) -> Choice:
        return Images()


class Images:
    """Images by their suffix, at any depth."""

    start = True

    def below(self, state: bool, name: str) -> bool:
        """Every folder."""
        return True

    def wants(self, state: bool, name: str) -> bool:
        """Files with a known suffix, in any case."""
        return is_image(name)
