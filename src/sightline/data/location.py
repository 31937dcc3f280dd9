"""Names of places: which lead out of a folder, which are buckets, and how they are written down."""

import posixpath
import re
from typing import Any

from pyarrow import fs as pafs

from sightline.errors import SourceError, StorageError

BUCKET_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "az", "hdfs", "memory", "r2", "oci", "webhdfs")
_DRIVE = re.compile(r"[A-Za-z]:/")


def leads_out(name: str) -> bool:
    """Whether a name is none, absolute, or climbs above where it starts, in the manner of any system."""
    slashed = posixpath.normpath(name.replace("\\", "/"))
    climbs = slashed.startswith(("/", "../")) or slashed in (".", "..")
    return not name or "\0" in name or climbs or _DRIVE.match(slashed) is not None


def without_secrets(location: str) -> str:
    """A location as it may be written down: without user, password or query."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    rest = rest.partition("?")[0]
    user, at, behind = rest.rpartition("@")
    if at and (":" in user or "/" not in user):  # A password may hold slashes; a path with an @ has no colon before it.
        rest = behind
    return f"{scheme}://{rest}"


def open_bucket(url: str) -> tuple[Any, str]:
    """The filesystem of a URL, Arrow's own or fsspec's, and the path in it.

    Raises:
        SourceError: Neither can open it at the moment.
        StorageError: Neither can open it: no bucket has this name, or a package is missing.
    """
    try:
        return pafs.FileSystem.from_uri(url)  # type: ignore[no-any-return]
    except Exception as error:
        arrow_error = error
    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(url)
    except Exception as error:
        reasons = f"{arrow_error}; {error}".replace(url, without_secrets(url))
        may_pass = any(isinstance(e, OSError) and "not found" not in str(e) for e in (arrow_error, error))
        kind = SourceError if may_pass else StorageError
        raise kind(f"cannot open {without_secrets(url)!r}: {reasons}") from None
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path
