"""Real data, where it lies beside the checkout; skipped where it does not."""

from pathlib import Path

import numpy as np
import pytest

import sightline
from sightline.data.formats.deeppcb_results import DeepPcbOutput, DeepPcbResults

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("name", "splits", "num_classes"),
    [("deeppcb", {"train": 1000, "test": 500}, 6), ("coco_val128", {"val": 128}, 80)],
)
def test_counts_and_round_trips(name: str, splits: dict[str, int], num_classes: int, tmp_path: Path) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is not here")
    info = sightline.ingest(DATA / name, name, workspace=tmp_path, verify="header")
    assert {split: found.images for split, found in info.splits.items()} == splits
    assert len(info.classes) == num_classes
    assert info.rejected == ({"skipped": {"template image": 1500}} if name == "deeppcb" else {})
    stored = sightline.open_dataset(name, workspace=tmp_path)
    boxes = {Path(sample.file_name).stem: sample.annotation.boxes for sample in stored}
    for format in ("voc", "coco", "yolo"):
        sightline.export_dataset(name, tmp_path / format, format=format, workspace=tmp_path)  # type: ignore[arg-type]
        again = sightline.ingest(tmp_path / format, format, workspace=tmp_path, verify="header")
        assert (again.num_boxes, again.rejected) == (info.num_boxes, {})
        for sample in sightline.open_dataset(format, workspace=tmp_path):
            assert abs(sample.annotation.boxes - boxes[Path(sample.file_name).stem]).max(initial=0) < 0.01


def test_the_true_boxes_in_the_form_of_deeppcb_are_its_own(tmp_path: Path) -> None:
    """A model that found exactly what is there would hand in the benchmark's own annotations."""
    if not (DATA / "deeppcb").is_dir():
        pytest.skip(f"{DATA / 'deeppcb'} is not here")
    sightline.ingest(DATA / "deeppcb", "deeppcb", workspace=tmp_path, verify="header")
    test = sightline.open_dataset("deeppcb", workspace=tmp_path).select("test")
    writer = DeepPcbResults(DeepPcbOutput(tmp_path / "out", types="number"), test.classes, score_threshold=None)
    for sample in test:
        known = sample.annotation
        writer.add(sample.file_name, known.boxes, np.ones(len(known), np.float32), known.labels)
    listed = [line.split() for line in (DATA / "deeppcb" / "test.txt").read_text().splitlines() if line.strip()]
    assert len(listed) == 500
    for image, label in listed:
        lines = (tmp_path / "out" / f"{Path(image).stem}.txt").read_text().splitlines()
        assert all(line.split(",")[4] == "1.000000" for line in lines)
        written = [[word for place, word in enumerate(line.split(",")) if place != 4] for line in lines]
        assert written == [line.split() for line in (DATA / "deeppcb" / label).read_text().splitlines() if line.strip()]
