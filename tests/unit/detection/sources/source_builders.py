"""Small files, and what every source must do with them."""

import io
import pickle
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from PIL import Image

from sightline.config import SourceConfig
from sightline.detection.item import Item, Source
from sightline.detection.sources.factory import open_source
from sightline.errors import ImageError
from sightline.workspace import Workspace


def png(seed: int = 0) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def pngs(*names: str) -> dict[str, bytes]:
    """An image for each name, no two alike."""
    return {name: png(number) for number, name in enumerate(names)}


def write_files(root: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


class Bucket:
    def __init__(self) -> None:
        self.url = f"memory://bucket-{secrets.token_hex(4)}"
        self._storage = fsspec.filesystem("memory")

    def write(self, files: Mapping[str, bytes]) -> str:
        for name, content in files.items():
            self._storage.pipe(f"{self.url}/{name}", content)
        return self.url

    def remove(self, name: str) -> None:
        self._storage.rm(f"{self.url}/{name}")

    def clear(self) -> None:
        if self._storage.exists(self.url):
            self._storage.rm(self.url, recursive=True)


def opened(source: Any, workspace: Path | str = "/nonexistent", **settings: Any) -> Source:
    return open_source(source, SourceConfig(**settings), Workspace(Path(workspace)))[0]


def contents(source: Source) -> dict[str, bytes | ImageError]:
    """What each URI reads as, after checking what is true of every source."""
    items = list(source.items())
    assert list(source.items()) == items, "two listings differ"
    assert isinstance(source.name, str)
    source.name.encode()
    for item in items:
        for text in (item.image_id, item.uri, item.version, item.ref):
            text.encode()
            assert "\0" not in text
    assert source.is_visible()
    copy = pickle.loads(pickle.dumps(source))
    assert copy.name == source.name
    assert copy.is_visible()
    found = [read(source, item) for item in items]
    # fsspec's memory has one position for all who read a file.
    with ThreadPoolExecutor(1 if "memory://" in "".join(item.uri for item in items) else 8) as threads:
        order = items[::-2] + items[::2] + items
        for item, again in zip(order, threads.map(lambda item: read(copy, item), order), strict=True):
            assert same(found[items.index(item)], again)
    return {item.uri: data for item, data in zip(items, found, strict=True)}


def read(source: Source, item: Item) -> bytes | ImageError:
    try:
        data = source.read(item)
    except ImageError as error:
        return pickle.loads(pickle.dumps(error))
    assert type(data) is bytes
    return data


def same(one: bytes | ImageError, other: bytes | ImageError) -> bool:
    return str(one) == str(other) if isinstance(one, ImageError) else one == other


def reason(value: bytes | ImageError) -> tuple[str, str]:
    assert isinstance(value, ImageError), value
    return value.stage, value.reason
