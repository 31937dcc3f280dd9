"""Images in an archive, read from where they lie in it: .zip, .tar, .tar.gz, .tar.bz2, .tar.xz."""

from collections.abc import Iterator
from typing import Protocol

from sightline.data.formats.layout import is_image
from sightline.detection.item import Item
from sightline.detection.sources.names import make_item, shown
from sightline.detection.sources.source_file import SourceFile
from sightline.detection.sources.tar_members import TarMembers
from sightline.detection.sources.zip_members import ZipMembers
from sightline.errors import ImageError

ZIPS = (".zip",)
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
SUFFIXES = (*ZIPS, *TARS)


class Members(Protocol):
    """What is in an archive of some kind."""

    def list(self) -> Iterator[tuple[str, str, str]]:
        """Name, version and ref of every member that is no folder; a ref that begins with ! says what is wrong."""
        ...

    def read(self, ref: str) -> bytes:
        """The bytes of a member."""
        ...

    def is_visible(self) -> bool:
        """Whether this process can read it."""
        ...


class ArchiveSource:
    """Members whose suffix is that of an image; hidden ones, such as those that macOS adds, are left out."""

    def __init__(self, location: str) -> None:
        file = SourceFile.at(location)
        self._public = file.public
        self._members: Members = ZipMembers(file) if file.public.lower().endswith(ZIPS) else TarMembers(file)

    @property
    def name(self) -> str:
        """The path or URL of the archive."""
        return shown(self._public)

    def items(self) -> Iterator[Item]:
        """In the order of the archive."""
        for name, version, ref in self._members.list():
            if is_image(name) and not _is_hidden(name):
                yield make_item(f"{self._public}!/{name.removeprefix('./')}", version=version, ref=ref)

    def read(self, item: Item) -> bytes:
        """The bytes of a member, never more than it was declared to have."""
        if item.ref.startswith("!"):
            raise ImageError(item.ref[1:], item.uri[:200], stage="path")
        return self._members.read(item.ref)

    def is_visible(self) -> bool:
        """Whether this process can read the archive."""
        return self._members.is_visible()


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))
