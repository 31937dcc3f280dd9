"""Small datasets for the tests of reports, ingested from sources that are written here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.api import ingest, open_dataset
from sightline.config import Config, IngestConfig
from sightline.data.dataset import Dataset

Boxes = list[tuple[int, float, float, float, float]]


class CocoSource:
    """A COCO source on disk: images of one size with boxes (category, x, y, width, height)."""

    def __init__(self, root: Path, classes: list[str]) -> None:
        self.root, self.classes = root, classes
        self.splits: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.count = 0

    def add(
        self, split: str, name: str, boxes: Boxes, *, seed: int | None = None, size: tuple[int, int] = (200, 100)
    ) -> None:
        """The same seed gives the same bytes."""
        self.count += 1
        path = self.root / split / name
        path.parent.mkdir(parents=True, exist_ok=True)
        colors = np.random.default_rng(self.count if seed is None else seed).integers(
            0, 255, (5, 10, 3), dtype=np.uint8
        )
        Image.fromarray(colors).resize(size, Image.Resampling.NEAREST).save(path, format="PNG")
        self._note(split, name, boxes, size)

    def add_bytes(self, split: str, name: str, data: bytes) -> None:
        self.count += 1
        (self.root / split).mkdir(parents=True, exist_ok=True)
        (self.root / split / name).write_bytes(data)
        self._note(split, name, [], (200, 100))

    def ingest(self, to: Path, **settings: Any) -> Dataset:
        directory = self.root / "annotations"
        directory.mkdir()
        categories = [{"id": number + 1, "name": name} for number, name in enumerate(self.classes)]
        for split, content in self.splits.items():
            (directory / f"instances_{split}.json").write_text(json.dumps({**content, "categories": categories}))
        config = Config(ingest=IngestConfig(format="coco", workers=1, **settings))
        ingest(self.root, to=str(to), config=config)
        return open_dataset(to)

    def _note(self, split: str, name: str, boxes: Boxes, size: tuple[int, int]) -> None:
        content = self.splits.setdefault(split, {"images": [], "annotations": []})
        content["images"].append({"id": self.count, "file_name": name, "width": size[0], "height": size[1]})
        for category, *box in boxes:
            number = 1000 * self.count + len(content["annotations"])
            known = {"id": number, "image_id": self.count, "category_id": category + 1, "iscrowd": 0}
            content["annotations"].append({**known, "bbox": box, "area": box[2] * box[3]})


@pytest.fixture
def coco_source(tmp_path: Path) -> Callable[..., CocoSource]:
    return lambda *classes: CocoSource(tmp_path / "source", list(classes))


@pytest.fixture
def class_folder(tmp_path: Path) -> Dataset:
    """Classification: 12 cats and 3 dogs in train, 2 cats and a fish in val."""
    counts = {("train", "cat"): 12, ("train", "dog"): 3, ("val", "cat"): 2, ("val", "fish"): 1}
    seed = 0
    for (split, name), count in counts.items():
        directory = tmp_path / "source" / split / name
        directory.mkdir(parents=True)
        for number in range(count):
            seed += 1
            pixels = np.random.default_rng(seed).integers(0, 255, (40, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(directory / f"{number}.png")
    ingest(
        tmp_path / "source", to=str(tmp_path / "folder"), config=Config(ingest=IngestConfig(format="folder", workers=1))
    )
    return open_dataset(tmp_path / "folder")
