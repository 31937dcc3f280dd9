"""Images that are named one by one, in lists and tables: paths and URLs of buckets."""

import posixpath
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any

from pyarrow import fs as pafs

from sightline.data import disk
from sightline.data.location import BUCKET_SCHEMES
from sightline.data.storage import Folder, read_failure
from sightline.detection.item import Item
from sightline.detection.sources.health import Reach
from sightline.detection.sources.names import (
    from_ref,
    local_path,
    make_item,
    open_folder,
    public_url,
    scheme_of,
    split_query,
    to_ref,
    version_of,
)
from sightline.detection.sources.walk import file_version
from sightline.errors import ImageError, SourceError, StorageError
from sightline.retry import STORAGE_RETRY

_LOOK_AT = 1000
_IN_ROOT = "./"
_BATCHES = (16, 128)
"""Entries of a list whose versions are asked for at once: the first few come soon."""
_REQUESTS = 32


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
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, Folder] = {}
        self._reach = Reach()

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_public": self._public}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def item(self, text: str, key: str | None = None) -> Item:
        """The item of a path or URL; its id is that of the key, else of its URI. In a bucket it has no version."""
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

    def with_versions(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items, those in buckets with their versions; many are asked for at once.

        Raises:
            SourceError: A bucket does not answer.
        """
        requests = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="sightline-versions")
        try:
            sizes = chain(_BATCHES, repeat(_BATCHES[-1]))
            while batch := list(islice(items, next(sizes))):
                asked = deque(requests.submit(self._with_version, item) for item in batch if _lies_in_bucket(item))
                for item in batch:
                    yield self._answer(asked.popleft(), item) if _lies_in_bucket(item) else item
        finally:
            requests.shutdown(wait=False, cancel_futures=True)

    def _answer(self, asked: "Future[Item]", item: Item) -> Item:
        try:
            return asked.result()
        except SourceError:  # The others will have failed too: one at a time is tried again.
            return STORAGE_RETRY.call(
                lambda: self._with_version(item),
                what=f"asking for {item.uri}",
                passes=lambda error: isinstance(error, SourceError),
            )

    def _with_version(self, item: Item) -> Item:
        """Without one if it is not there: reading says why."""
        try:
            folder, name = self._in_bucket(from_ref(item.ref))
            path = folder.safe_path(name)
            try:
                info = folder.filesystem.get_file_info(path)
            except (OSError, ValueError) as error:
                raise read_failure(item.uri, error) from None
        except ImageError:
            return item
        if info.type != pafs.FileType.File:
            return item
        folder.note_readable(path)
        return replace(item, version=version_of(int(info.size or 0), info.mtime_ns))

    def read(self, item: Item) -> bytes:
        """The bytes of what an item names."""
        ref = from_ref(item.ref)
        if not ref:
            raise ImageError("no path", f"{item.uri}: the cell is empty"[:300], stage="path")
        if ref.startswith("/"):
            return self._read_local(item, ref)
        folder, name = self._in_bucket(ref)
        try:
            data = folder.read(name)
        except ImageError as error:
            self._reach.check(error, item, folder, name)
            raise
        self._reach.note_read()
        return data

    def _read_local(self, item: Item, path: str) -> bytes:
        try:
            data = disk.read_file(path)
        except (OSError, ValueError) as error:
            failure = read_failure(path, error)
            if isinstance(failure, ImageError) and failure.stage == "read":
                self._reach.check_file(failure, item, path)
            raise failure from None
        self._reach.note_read(path)
        return data

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

    def _in_bucket(self, ref: str) -> tuple[Folder, str]:
        """The bucket that a ref lies in, and its name there."""
        if not scheme_of(ref):
            if ref.startswith(_IN_ROOT) and self._root is not None:
                return self._root, ref.removeprefix(_IN_ROOT)
            raise ImageError("relative path", f"{ref!r}: say with source.root where it begins"[:300], stage="path")
        scheme, authority, name = _parts(ref)
        if scheme not in BUCKET_SCHEMES:
            detail = f"{ref.rstrip('?')!r}: only paths and bucket URLs are opened"
            raise ImageError("not a path or bucket", detail[:300], stage="path")
        if split_query(ref)[1] or ref.endswith("?"):
            raise ImageError(
                "credentials in a listed URL",
                f"{public_url(ref.rstrip('?'))!r}: give them in the environment, or in source.root"[:300],
                stage="path",
            )
        return self._bucket(f"{scheme}://{authority}"), name

    def _bucket(self, url: str) -> Folder:
        """Opened once: to find a bucket's region takes a while."""
        with self._lock:
            found = self._buckets.get(url)
            if found is None:
                try:
                    found = self._buckets[url] = Folder.open(url)
                except SourceError:
                    raise
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


def _lies_in_bucket(item: Item) -> bool:
    return item.ref != "" and not item.ref.startswith("/")
