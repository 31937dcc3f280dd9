"""How images are named: URIs for people and refs to read them again, valid UTF-8 whatever a disk or table holds."""

import os
import posixpath
import re
from urllib.parse import quote, unquote_to_bytes

from sightline.data.location import BUCKET_SCHEMES, without_secrets
from sightline.data.shard import printable
from sightline.data.storage import Folder
from sightline.detection.item import Item, id_of

_NOT_PLAIN = re.compile("[%\0\udc80-\udcff]")
_QUERY = re.compile(r"\?[\w.-]+=.*$", re.DOTALL)
_PARSED_BY_ARROW = ("s3", "gs", "abfs", "abfss", "hdfs")
_IN_URIS = "%:/?#@!$&'()*+,;="
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def make_item(key: str, *, version: str, ref: str, uri: str | None = None) -> Item:
    """An item of this key, which is its URI where no other is given."""
    if key.isascii() and uri is None and "\0" not in key:  # Nearly all, and there may be millions.
        return Item(id_of(key), key, version, ref)
    key = _decodable(key)
    return Item(id_of(key), shown(key if uri is None else uri), version, ref)


def shown(text: str) -> str:
    """A name as it may stand in any table: bytes that are not UTF-8, and NUL, become escapes."""
    return printable(text).replace("\0", "\\x00")


def to_ref(name: str) -> str:
    r"""A name in valid UTF-8, from which `from_ref` makes the same name.

    >>> to_ref("50%.jpg"), to_ref("caf\udce9.jpg")
    ('50%25.jpg', 'caf%E9.jpg')
    """
    if name.isascii() and "%" not in name and "\0" not in name:
        return name
    return _NOT_PLAIN.sub(lambda found: f"%{ord(found[0]) & 0xFF:02X}", _decodable(name))


def from_ref(ref: str) -> str:
    """The name that `to_ref` wrote."""
    return unquote_to_bytes(ref).decode("utf-8", "surrogateescape") if "%" in ref else ref


def version_of(size: int | None, mtime_ns: int | None) -> str:
    """What changes when a file does; some buckets do not tell the time."""
    return "" if size is None else f"{size}" if mtime_ns is None else f"{size}-{mtime_ns}"


def scheme_of(location: str) -> str | None:
    """The scheme of a URL in lower case; None for a path."""
    found = _URL.match(location)
    return found[1].lower() if found else None


def split_query(url: str) -> tuple[str, str]:
    """A URL and its `?name=value…`; a question mark that begins no such thing belongs to the name."""
    found = _QUERY.search(url)
    return (url[: found.start()], found[0]) if found else (url, "")


def public_url(url: str) -> str:
    """A URL as it may be written down; in a bucket's, unlike others', a question mark may be part of a name."""
    base = split_query(url)[0].rstrip("/")
    scheme = scheme_of(url)
    if scheme not in BUCKET_SCHEMES:
        return without_secrets(base)
    start, _, rest = base.partition("://")
    user, at, behind = rest.rpartition("@")
    if not at or (":" not in user and ("/" in user or scheme in ("abfs", "abfss"))):
        return base  # An @ in a name, or the container of Azure's URLs.
    return f"{start}://{behind}"


def local_path(path: str) -> str:
    """An absolute path without `.` and `..`; one text for one place, so that ids do not depend on where we stand."""
    path = posixpath.join(os.getcwd(), posixpath.expanduser(path.removeprefix("file://")))  # noqa: PTH109
    if ".." in path.split("/"):  # Before it there may be a link, which the system follows first.
        parent, name = posixpath.split(path)
        path = posixpath.join(os.path.realpath(parent), name)
    return "/" + posixpath.normpath(path).lstrip("/")


def open_folder(location: str) -> tuple[Folder, str]:
    """A folder, and how it is named in URIs."""
    if scheme_of(location) in (None, "file"):
        path = local_path(location)
        return Folder.open(path), path
    return Folder.open(_as_uri(location)), public_url(location)


def _as_uri(url: str) -> str:
    """A URL as Arrow parses it: with spaces and other letters as %XX, as which they may be given too."""
    base, query = split_query(url)
    return quote(base, safe=_IN_URIS) + query if scheme_of(url) in _PARSED_BY_ARROW else url


def _decodable(name: str) -> str:
    """The same name; surrogates that stand for no byte, which only a program can make, become ones that do."""
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    return name
