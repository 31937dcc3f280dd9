"""Real data, where it lies beside the checkout; skipped where it does not."""

from pathlib import Path

import pytest

import sightline

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
    assert info.rejected == {}
    stored = sightline.open_dataset(name, workspace=tmp_path)
    boxes = {Path(sample.file_name).stem: sample.annotation.boxes for sample in stored}
    for format in ("voc", "coco", "yolo"):
        sightline.export_dataset(name, tmp_path / format, format=format, workspace=tmp_path)  # type: ignore[arg-type]
        again = sightline.ingest(tmp_path / format, format, workspace=tmp_path, verify="header")
        assert (again.num_boxes, again.rejected) == (info.num_boxes, {})
        for sample in sightline.open_dataset(format, workspace=tmp_path):
            assert abs(sample.annotation.boxes - boxes[Path(sample.file_name).stem]).max(initial=0) < 0.01
