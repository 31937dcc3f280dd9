"""Sources, datasets and models in a bucket, over S3's own protocol."""

from pathlib import Path

import pyarrow.fs
import pytest

import sightline
from sightline.config import LoaderConfig
from sightline.data.loader import Loader, LoadOptions
from sightline.errors import DamagedError, ExistsError, NotFoundError
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model


@pytest.fixture
def dataset(tmp_path: Path) -> sightline.Dataset:
    sightline.synth("shapes", "shapes", images=40, seed=5, workspace=tmp_path)
    return sightline.open_dataset("shapes", workspace=tmp_path)


def same_rows(one: sightline.Dataset, other: sightline.Dataset) -> None:
    assert len(one) == len(other)
    theirs = {sample.file_name.rsplit("/", 1)[-1]: sample for sample in other}
    for sample in one:
        copy = theirs[sample.file_name.rsplit("/", 1)[-1]]
        assert bytes(copy.image) == bytes(sample.image)
        assert copy.split == sample.split
        assert abs(copy.annotation.boxes - sample.annotation.boxes).max(initial=0) < 0.01


@pytest.mark.parametrize("format", ["coco", "yolo", "voc"])
def test_source_in_a_bucket(bucket: str, dataset: sightline.Dataset, tmp_path: Path, format: str) -> None:
    sightline.export_dataset(dataset.location, tmp_path / "files", format=format)  # type: ignore[arg-type]
    storage, path = pyarrow.fs.FileSystem.from_uri(f"{bucket}/source")
    pyarrow.fs.copy_files(str(tmp_path / "files"), path, pyarrow.fs.LocalFileSystem(), storage)
    info = sightline.ingest(f"{bucket}/source", "fetched", workspace=tmp_path, workers=2)
    assert info.source_format == format
    same_rows(dataset, sightline.open_dataset("fetched", workspace=tmp_path))


def test_dataset_in_a_bucket(bucket: str, dataset: sightline.Dataset, tmp_path: Path) -> None:
    sightline.export_dataset(dataset.location, tmp_path / "files", format="coco")
    target = f"{bucket}/datasets/shapes"
    info = sightline.ingest(tmp_path / "files", target)
    stored = sightline.open_dataset(target)
    assert stored.info == info
    same_rows(dataset, stored)
    with pytest.raises(ExistsError, match="--replace"):
        sightline.ingest(tmp_path / "files", target)
    assert sightline.ingest(tmp_path / "files", target, replace=True).content_hash == info.content_hash


def test_training_reads_single_images_from_a_bucket(bucket: str, dataset: sightline.Dataset, tmp_path: Path) -> None:
    sightline.export_dataset(dataset.location, tmp_path / "files", format="coco")
    sightline.ingest(tmp_path / "files", f"{bucket}/shapes")
    stored = sightline.open_dataset(f"{bucket}/shapes")
    batches = list(Loader(stored, LoadOptions(7, LoaderConfig(threads=2))).batches(epoch=0))
    assert sorted(name for batch in batches for name in batch.image_ids) == sorted(sample.image_id for sample in stored)


def test_nothing_in_the_bucket(bucket: str) -> None:
    with pytest.raises(NotFoundError, match="no dataset"):
        sightline.open_dataset(f"{bucket}/none")


def test_a_model_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    model = make_model("nano", num_classes=2, size=64)
    made = save_bundle(
        tmp_path / "made", model.state_dict(), describe(model, name="nano", classes=("a", "b")), {"README.md": b"card"}
    )
    storage, path = pyarrow.fs.FileSystem.from_uri(f"{bucket}/models/nano")
    pyarrow.fs.copy_files(str(made.path), path, pyarrow.fs.LocalFileSystem(), storage)
    for _ in range(2):
        found = sightline.load_model(f"{bucket}/models/nano", workspace=tmp_path / "work")
        assert found.bundle.path == tmp_path / "work" / "models" / made.hash
    with storage.open_output_stream(f"{path}/weights.safetensors") as stream:
        stream.write(b"something else")
    # The copy is known by the hash of the manifest, and that has not changed.
    assert sightline.load_model(f"{bucket}/models/nano", workspace=tmp_path / "work").bundle.hash == made.hash
    with pytest.raises(DamagedError, match="is not as it was written"):
        sightline.load_model(f"{bucket}/models/nano", workspace=tmp_path / "new")
    with pytest.raises(NotFoundError, match="no model at"):
        sightline.load_model(f"{bucket}/nothing", workspace=tmp_path / "work")
