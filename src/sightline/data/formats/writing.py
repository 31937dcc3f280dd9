"""What exporters share: a directory that is filled, and unique file names in it."""

import posixpath
from pathlib import Path
from typing import Protocol

from sightline.data.decode import read_header
from sightline.errors import DamagedError, ExistsError, StorageError
from sightline.structures import Sample

_SUFFIX = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "BMP": ".bmp", "GIF": ".gif", "TIFF": ".tif"}


class Writer(Protocol):
    """Turns samples back into files of one format."""

    def add(self, sample: Sample) -> None:
        """Write one image with its annotations."""
        ...

    def close(self) -> None:
        """Write what can only be written at the end."""
        ...


class ExportDirectory:
    """A new directory; names given out in it never meet, whatever the file system thinks of case."""

    def __init__(self, path: Path) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ExistsError(f"{str(path)!r} exists and is not empty: export into a new directory")
        self.path = path
        self._taken: set[str] = set()

    def unique_name(self, sample: Sample) -> str:
        """The image's base name, made safe; with its id added when another image has that name already."""
        base, suffix = posixpath.splitext(posixpath.basename(sample.file_name))
        safe = "".join(c if c.isprintable() and c not in '\\/:*?"<>|#%' else "_" for c in base).strip(" .")
        safe = safe.encode()[:150].decode("utf-8", "ignore") or sample.image_id
        if suffix.lower() not in _SUFFIX.values() and suffix.lower() not in (".jpeg", ".tiff"):
            suffix = _SUFFIX[read_header(sample.image, max_pixels=1 << 62).format]
        while safe.casefold() in self._taken:
            safe = f"{safe}-{sample.image_id}"
        self._taken.add(safe.casefold())
        return safe + suffix

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file that must not be there yet."""
        path = self.path / name
        if ".." in path.parts or not path.is_relative_to(self.path):
            raise DamagedError(f"the dataset would have {name!r} written outside of {str(self.path)!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "xb") as file:
                file.write(data)
        except OSError as error:
            raise StorageError(f"cannot write {str(path)!r}: {error}") from error
