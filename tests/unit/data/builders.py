"""Small images, small sources, and the ways in which the tests read them back."""

import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import sightline
from sightline.data.dataset import Dataset
from sightline.data.schema import DatasetInfo
from sightline.errors import SightlineError
from sightline.structures import Sample


def picture(width: int = 24, height: int = 16, seed: int = 0) -> Image.Image:
    """A smooth picture with some noise, so that neither JPEG nor PNG finds it trivial."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([x * 255 // max(width, 1), y * 255 // max(height, 1), (x + y) * 3 + seed], -1)
    return Image.fromarray(((smooth + rng.integers(0, 40, smooth.shape)) % 256).astype(np.uint8))


def encode(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def png(width: int = 24, height: int = 16, seed: int = 0) -> bytes:
    return encode(picture(width, height, seed), "PNG")


def jpeg(width: int = 24, height: int = 16, seed: int = 0, **options: Any) -> bytes:
    return encode(picture(width, height, seed), "JPEG", **options)


def write_tree(root: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def voc_xml(objects: list[tuple[Any, ...]] = (), *, filename: str = "", size: tuple[Any, Any] | None = (24, 16)) -> str:
    """Objects are (class, xmin, ymin, xmax, ymax[, difficult])."""
    parts = ["<annotation>", f"<filename>{filename}</filename>" if filename else ""]
    if size:
        parts.append(f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>")
    for name, x0, y0, x1, y1, *rest in objects:
        parts.append(
            f"<object><name>{name}</name><difficult>{rest[0] if rest else 0}</difficult><bndbox><xmin>{x0}</xmin>"
            f"<ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        )
    return "".join([*parts, "</annotation>"])


def coco_json(
    images: list[Any],
    annotations: list[Any] = (),
    categories: Mapping[int, str] | list[Any] = ({"id": 1, "name": "a"},),
) -> str:
    """Images are names or whole entries; annotations are (image number from 1, category, x, y, w, h) or whole."""
    entries = [
        item if not isinstance(item, str) else {"id": number, "file_name": item, "width": 24, "height": 16}
        for number, item in enumerate(images, 1)
    ]
    boxes = [
        item
        if not isinstance(item, tuple)
        else {"id": number, "image_id": item[0], "category_id": item[1], "bbox": list(item[2:]), "iscrowd": 0}
        for number, item in enumerate(annotations, 1)
    ]
    if categories is None:
        categories = {1: "a"}
    if isinstance(categories, Mapping):
        categories = [{"id": key, "name": name} for key, name in categories.items()]
    return json.dumps({"images": entries, "annotations": boxes, "categories": list(categories)})


class Ingest:
    """Calls `sightline.ingest` and opens what came out."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self._number = 0
        self.recognised: tuple[str, str] | None = None

    def __call__(self, source: Path | str, to: str | None = None, **settings: Any) -> Dataset:
        self._number += 1
        settings = {"workers": 1} | settings
        to = to or f"set{self._number}"
        sightline.ingest(source, to, workspace=self.workspace, recognised=self._note, **settings)
        return sightline.open_dataset(to, workspace=self.workspace)

    def _note(self, format_name: str, why: str) -> None:
        self.recognised = (format_name, why)


def samples(dataset: Dataset) -> dict[str, Sample]:
    found = {sample.file_name: sample for sample in dataset}
    assert len(found) == len(dataset)
    return found


def boxes_of(dataset: Dataset) -> dict[str, list[tuple[Any, ...]]]:
    """File name to (class, x0, y0, x1, y1, ignore) of each box."""
    return {
        sample.file_name: [
            (dataset.classes[label], *box, ignore)
            for box, label, ignore in zip(
                sample.annotation.boxes.tolist(),
                sample.annotation.labels.tolist(),
                sample.annotation.ignore.tolist(),
                strict=True,
            )
        ]
        for sample in dataset
    }


def rejects_of(dataset: Dataset) -> list[tuple[str, str, str]]:
    """(file name, reason, action) of each reject, sorted."""
    return sorted((row["file_name"], row["reason"], row["action"]) for row in dataset.rejects().to_pylist())


def details_of(dataset: Dataset) -> list[str]:
    return [row["detail"] for row in dataset.rejects().to_pylist()]


def check_invariants(dataset: Dataset) -> None:
    """What is true of every dataset, whatever it was made from."""
    info: DatasetInfo = dataset.info
    assert len(dataset) == info.num_images == sum(split.images for split in info.splits.values())
    assert info.num_boxes == sum(split.boxes for split in info.splits.values())
    assert len(set(info.classes)) == len(info.classes)
    ids = set()
    for sample in dataset:
        ids.add(sample.image_id)
        boxes = sample.annotation.boxes
        assert boxes.dtype == np.float32
        assert np.isfinite(boxes).all()
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] <= [sample.width, sample.height]).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert ((sample.annotation.labels >= 0) & (sample.annotation.labels < len(info.classes))).all()
        assert sample.split in info.splits
        if info.task == "classification":
            assert 0 <= sample.annotation.label < len(info.classes)
    assert len(ids) == len(dataset)
    counted: dict[str, dict[str, int]] = {}
    for row in dataset.rejects().to_pylist():
        reasons = counted.setdefault(row["action"], {})
        reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    assert counted == info.rejected


def run_python(code: str, *arguments: str | Path, timeout: float = 120, **environment: str) -> str:
    """Run code in a fresh interpreter; its output. The tests' builders can be imported there."""
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)} | environment,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def attempt(function: Callable[..., Any], *arguments: Any, **settings: Any) -> tuple[Any, SightlineError | None]:
    """What a function returns, or the error that a user could act on; any other is a bug and gets through."""
    try:
        return function(*arguments, **settings), None
    except SightlineError as error:
        return None, error
