"""Images that are named one by one, in lists and tables: paths and URLs of buckets."""

import posixpath
from collections.abc import Iterable
from itertools import islice
from typing import Any

from sightline.data import disk
from sightline.data.location import BUCKET_SCHEMES
from sightline.data.storage import Folder
from sightline.detection.item import Item
from sightline.detection.sources.names import (
    from_ref,
    local_path,
    make_item,
    open_folder,
    public_url,
    scheme_of,
    split_query,
    to_ref,
)
from sightline.detection.sources.walk import file_version
from sightline.errors import ImageError, StorageError

_LOOK_AT = 1000
_IN_ROOT = "./"


class PathReader:
    """Opens paths and bucket URLs; relative ones begin at a root.

    Whoever made the list may name any file of theirs, so absolute paths and `..` are followed. A ref is a URL, an
    absolute path, or `./NAME` below a root in a bucket, whose URL may hold credentials that no ref does.
    """

    def __init__(self, root: str | None) -> None:
        self._root: Folder | None = None
        self._public = ""
        if root is not None:
            self._root, self._public = open_folder(root)
        self._buckets: dict[str, Folder] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_buckets": {}}

    def item(self, text: str, key: str | None = None) -> Item:
        """The item of a path or URL; its id is that of the key, else of its URI."""
        path = self._local(text)
        if path is not None:
            uri, version, ref = path, file_version(path), path
        elif scheme_of(text):
            uri = public_url(text)
            # Credentials do not travel: reading then says so.
            version, ref = "", text if uri == text.rstrip("/") else uri + "?"
        elif self._root is None:
            uri, version, ref = text, "", text
        else:
            name = posixpath.normpath(text)
            uri, version, ref = posixpath.join(self._public, name), "", _IN_ROOT + name
        return make_item(uri if key is None else key, uri=uri, version=version, ref=to_ref(ref))

    def read(self, item: Item) -> bytes:
        """The bytes of what an item names."""
        ref = from_ref(item.ref)
        if not ref:
            raise ImageError("no path", f"{item.uri}: the cell is empty"[:300], stage="path")
        if ref.startswith("/"):
            return _read_local(ref)
        if scheme_of(ref):
            return self._read_url(ref)
        if ref.startswith(_IN_ROOT) and self._root is not None:
            return _read_bucket(self._root, ref.removeprefix(_IN_ROOT))
        raise ImageError("relative path", f"{ref!r}: say with source.root where it begins"[:300], stage="path")

    def visible_place(self, texts: Iterable[str]) -> str | None:
        """A folder that is here and holds the first of the local paths; None if no path is local.

        A process that does not see it runs on another machine.
        """
        paths = (self._local(text) for text in islice(texts, _LOOK_AT))
        path = next((path for path in paths if path is not None), None)
        while path is not None and not disk.is_directory(path):
            path = posixpath.dirname(path)
        return path

    def _local(self, text: str) -> str | None:
        scheme = scheme_of(text)
        if scheme == "file" or (scheme is None and text.startswith("/")):
            return local_path(text)
        if scheme is None and self._root is not None and self._root.is_local:
            return local_path(posixpath.join(self._public, text))
        return None

    def _read_url(self, url: str) -> bytes:
        scheme, authority, name = _parts(url)
        if scheme not in BUCKET_SCHEMES:
            detail = f"{url.rstrip('?')!r}: only paths and bucket URLs are opened"
            raise ImageError("not a path or bucket", detail[:300], stage="path")
        if split_query(url)[1] or url.endswith("?"):
            raise ImageError(
                "credentials in a listed URL",
                f"{public_url(url.rstrip('?'))!r}: give them in the environment, or in source.root"[:300],
                stage="path",
            )
        return _read_bucket(self._bucket(f"{scheme}://{authority}"), name)

    def _bucket(self, url: str) -> Folder:
        """Opened once: to find a bucket's region takes a while."""
        found = self._buckets.get(url)
        if found is None:
            try:
                found = self._buckets[url] = Folder.open(url)
            except StorageError as error:
                raise ImageError("bucket cannot be opened", str(error)[:300], stage="read") from None
        return found


def is_seen(place: str | None) -> bool:
    """Whether a `visible_place` is visible here too."""
    return place is None or disk.is_directory(place)


def split_file(location: str) -> tuple[str, str]:
    """The folder that a file lies in, and its name there."""
    base, query = split_query(location) if scheme_of(location) else (location, "")
    parent, name = posixpath.split(base)
    return (parent or ".") + query, name


def _parts(url: str) -> tuple[str, str, str]:
    scheme, _, rest = url.partition("://")
    authority, _, name = rest.partition("/")
    return scheme.lower(), authority, name


def _read_bucket(folder: Folder, name: str) -> bytes:
    try:
        return folder.read(name)
    except ValueError as error:  # A name that no bucket has: bytes that are not UTF-8, or no name at all.
        raise ImageError("file not readable", f"{name!r}: {error}"[:300], stage="read") from None


def _read_local(path: str) -> bytes:
    try:
        return disk.read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError("file not found", repr(path)[:200], stage="read") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError("file not readable", f"{path!r}: {error}"[:300], stage="read") from None
