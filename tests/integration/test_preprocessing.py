"""The same model finds the same in the same encoded image, whichever verb is asked."""

import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from agreement import agreement
from overfitted import dataset_of, learn
from PIL import Image

import sightline
from sightline.config import load_config
from sightline.data.decode import decode
from sightline.data.formats.deeppcb_results import DeepPcbOutput
from sightline.engines.opening import open_predictor
from sightline.models.bundle import open_bundle
from sightline.models.factory import CLASSIFIERS
from sightline.structures import Detections
from support.inference import settings_of

THRESHOLD = 0.05
ORIENTATION = 0x0112
Rows = list[tuple[str, float, float, float, float, float]]

FAMILIES = [
    "nano",
    "resnet18",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("yolov8n", "ssdlite", "fasterrcnn-mobilenet-320")),
]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_photos(folder: Path, images: Sequence[Image.Image], size: int) -> list[Path]:
    """Images of many forms: wide, tall, several times as large as the model's input, with an EXIF rotation, PNG."""
    folder.mkdir()
    # Parts that are as large for the model as the images that it has learned.
    third = round(size * 0.625)
    parts = {"wide": (0, 20, size, 20 + third), "tall": (30, 0, 30 + third, size), "narrow": (0, 0, size, 40)}
    files = []

    def save(image: Image.Image, name: str, **options: Any) -> None:
        files.append(folder / name)
        image.save(files[-1], **options)

    for number, whole in enumerate(image.convert("RGB").resize((size, size)) for image in images):
        for name, corners in parts.items():
            part = whole.crop(corners)
            large = part.resize((part.width * 7, part.height * 7), Image.Resampling.BICUBIC)
            rotated = Image.Exif()
            rotated[ORIENTATION] = 6
            save(part, f"{number}-{name}-png.png")
            save(part, f"{number}-{name}.jpg", quality=95)
            save(large, f"{number}-{name}-large.jpg", quality=95)
            # Shown upright, it is what the large one is.
            save(large.transpose(Image.Transpose.ROTATE_90), f"{number}-{name}-rotated.jpg", quality=95, exif=rotated)
    return sorted(files)


def write_dataset(folder: Path, files: Sequence[Path], classes: Sequence[str], *, truth: Sequence[str] | None) -> Path:
    """The images as a dataset, COCO or class folders, that have been given the names in `truth`."""
    if truth is not None:
        for name in classes:
            (folder / name).mkdir(parents=True)
        for file, name in zip(files, truth, strict=True):
            (folder / name / file.name).write_bytes(file.read_bytes())
        return folder
    folder.mkdir()
    images, boxes = [], []
    for number, file in enumerate(files, 1):
        (folder / file.name).write_bytes(file.read_bytes())
        with Image.open(io.BytesIO(file.read_bytes())) as image:
            width, height = image.size[::-1] if image.getexif().get(ORIENTATION) == 6 else image.size
        images.append({"id": number, "file_name": file.name, "width": width, "height": height})
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 9, 9], "area": 81})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
    content = {"images": images, "annotations": boxes, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


def to_found(rows: Rows, classes: Sequence[str]) -> Detections:
    values = np.array([row[1:] for row in rows], np.float32).reshape(-1, 5)
    labels = [classes.index(row[0]) for row in rows]
    return Detections(values[:, 1:], values[:, 0], np.array(labels, np.int32))


def predicted(bundle: Path, files: Sequence[Path], **given: Any) -> list[Rows]:
    found = sightline.load_model(bundle, workspace=bundle.parent, **given).predict(files, threshold=THRESHOLD)
    return [list(one.rows()) for one in found]


def detected(bundle: Path, files: Sequence[Path], place: Path) -> list[Rows]:
    sightline.detect(str(bundle), files[0].parent, place / "found", threshold=THRESHOLD, workspace=place)
    rows = pq.read_table(place / "found" / "images").to_pylist()
    sides = ("label", "score", "xmin", "ymin", "xmax", "ymax")
    by_name = {Path(row["uri"]).name: [tuple(box[side] for side in sides) for box in row["boxes"]] for row in rows}
    return [by_name[file.name] for file in files]


def served(bundle: Path, files: Sequence[Path]) -> list[Rows]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns of its own type hints when it is imported.
        import pandas

        from sightline.tracking.pyfunc_model import PyfuncModel
    model = PyfuncModel()
    model.load_context(SimpleNamespace(artifacts={"bundle": str(bundle)}))
    table = model.predict(
        None, pandas.DataFrame({"image": [file.read_bytes() for file in files]}), params={"threshold": THRESHOLD}
    )
    return [list(table[table["image"] == number].iloc[:, 1:].itertuples(False, None)) for number in range(len(files))]


def evaluated(bundle: Path, dataset: Path, files: Sequence[Path], place: Path) -> list[Rows]:
    """What `evaluate` finds, as it writes it for DeepPCB's own evaluation: edges in whole pixels."""
    config = load_config(flags={"ingest": {"default_split": "test=1", "workers": 1}})
    sightline.ingest(dataset, "photos", workspace=place, config=config)
    output = DeepPcbOutput(place / "boxes")
    sightline.evaluate(str(bundle), "photos", deeppcb=output, workspace=place, config=config, batch=5)
    found = []
    for file in files:
        lines = [line.split(",") for line in (place / "boxes" / f"{file.stem}.txt").read_text().splitlines()]
        rows = [(name, float(score), *map(float, box)) for *box, score, name in lines]
        found.append([row for row in rows if row[1] >= THRESHOLD])
    return found


def test_pixels_differ_from_large_jpegs_only_by_reduced_decoding(overfitted: Path, tmp_path: Path) -> None:
    """Else to the last bit; then by no more than docs/models.md says."""
    bundle = overfitted / "runs" / learn("nano", overfitted) / "model"
    known = sightline.open_dataset("boards", workspace=overfitted)
    images = [Image.open(io.BytesIO(known[number].image)) for number in range(12)]
    opened = open_bundle(bundle)
    model, whole = (open_predictor(opened, settings_of(opened, reduced_decode=reduced)) for reduced in (None, False))
    found, differences = 0, list[float]()
    for file in write_photos(tmp_path / "photos", images, 160):
        (encoded,), (array,) = (model.predict(form, threshold=0.15) for form in (file, decode(file.read_bytes())))
        (full,) = whole.predict(file, threshold=0.15)
        assert list(array.rows()) == list(full.rows())
        if "large" not in file.stem and "rotated" not in file.stem:
            assert list(array.rows()) == list(encoded.rows())
            continue
        for name, score, *box in encoded.rows():
            partners = [other for other in array.rows() if other[0] == name and overlap(box, other[2:]) >= 0.5]
            if score >= 0.3:
                found += 1
                differences += [min(abs(other[1] - score) for other in partners)] if partners else [1.0]
    assert found >= 20
    assert np.quantile(differences, 0.9) <= 0.17


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    sides = [min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_verb_finds_the_same(
    family: str, overfitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))  # Where the pyfunc keeps what it compiles.
    bundle = overfitted / "runs" / learn(family, overfitted) / "model"
    known = sightline.open_dataset(dataset_of(family), workspace=overfitted)
    images = [Image.open(io.BytesIO(known[number].image)) for number in range(4)]
    model = sightline.load_model(bundle, engine="torch", workspace=overfitted)
    classes, is_classifier = model.classes, family in CLASSIFIERS
    files = write_photos(tmp_path / "photos", images, model.bundle.info.size)

    expected = predicted(bundle, files, engine="torch", threads=1)
    answers = {"predict": predicted(bundle, files), "detect": detected(bundle, files, tmp_path / "ws")}
    answers["pyfunc"] = served(bundle, files)
    truth = [rows[0][0] for rows in expected] if is_classifier else None
    dataset = write_dataset(tmp_path / "source", files, classes, truth=truth)
    if is_classifier:
        config = load_config(flags={"ingest": {"default_split": "test=1", "workers": 1}})
        sightline.ingest(dataset, "photos", workspace=tmp_path / "ws", config=config)
        assert sightline.evaluate(str(bundle), "photos", workspace=tmp_path / "ws").accuracy == 1
    else:
        answers["evaluate"] = evaluated(bundle, dataset, files, tmp_path / "ws")

    theirs = [to_found(rows, classes) for rows in expected]
    assert sum(len(found.scores) for found in theirs) >= len(files)
    for name, answer in answers.items():
        ours = [to_found(rows, classes) for rows in answer]
        agreed = agreement(ours, theirs, threshold=THRESHOLD, limit=300)
        assert agreed.share >= 0.99, (name, agreed)
