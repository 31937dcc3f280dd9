"""The verbs, on real files with a real model; engine torch, for others take a while to compile."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import jpeg

import sightline
from sightline.data.manifest import write_manifest
from sightline.detection.detect import DetectResult
from sightline.detection.item import Item
from sightline.detection.sources.folder import FolderSource
from sightline.errors import (
    ConfigError,
    ExistsError,
    FormatError,
    NotFoundError,
    SourceError,
    Stopped,
    TooManyRejectedError,
)
from sightline.models.bundle import Bundle, open_bundle

COUNT = 20


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "below").mkdir(parents=True)
    for number in range(COUNT):
        place = folder / "below" if number % 2 else folder
        (place / f"{number:02}.jpg").write_bytes(jpeg(seed=number))
    return folder


@pytest.fixture
def detect(tmp_path: Path, bundle: Bundle) -> Any:
    def run(source: Any, to: str | None = "job", model: Bundle = bundle, **settings: Any) -> DetectResult:
        given = {"engine": "torch", "threads": 1, "threshold": 0.1, "workspace": tmp_path / "ws", **settings}
        return sightline.detect(str(model.path), source, to, **given)

    return run


def rows(tmp_path: Path, sql: str = "select * from images order by uri", **given: Any) -> list[dict[str, Any]]:
    return sightline.query(sql, workspace=tmp_path / "ws", **given).to_pylist()  # type: ignore[no-any-return]


def test_once_then_only_what_is_new(tmp_path: Path, photos: Path, detect: Any) -> None:
    first = detect(photos)
    assert first.counts.images == COUNT == first.summary.images
    assert detect(photos).counts.images == 0
    (photos / "new.jpg").write_bytes(jpeg(seed=99))
    (photos / "03.txt").write_text("not an image")
    third = detect(photos)
    assert (third.counts.images, third.summary.images) == (1, COUNT + 1)
    found = rows(tmp_path)
    assert len({row["image_id"] for row in found}) == len(found) == COUNT + 1
    assert {row["job"] for row in found} == {"job"}
    boxes = rows(tmp_path, "select count(*) as n from detections")[0]["n"]
    assert boxes == sum(row["num_detections"] for row in found) == third.summary.detections > 0


def test_the_bundle_says_how_images_are_prepared(photos: Path, detect: Any, classifier: Bundle) -> None:
    """A setting overrides it; asking for what is done anyway is the same job."""
    usual = detect(photos)
    assert (usual.job.settings.rectangular, usual.job.settings.reduced_decode) == (True, True)
    assert detect(photos, rectangular=True, reduced_decode=True).job.id == usual.job.id
    assert detect(photos, to="square", rectangular=False).job.id != usual.job.id
    assert detect(photos, to="whole", reduced_decode=False).job.id != usual.job.id
    needs_squares = detect(photos, to="classes", model=classifier)
    assert needs_squares.job.settings.rectangular is False
    assert detect(photos, to="classes", model=classifier, rectangular=True).job.id == needs_squares.job.id


@pytest.mark.parametrize("kind", ["bundle", "classifier"])
def test_jobs_of_bundles_of_the_first_format_go_on(
    tmp_path: Path, photos: Path, detect: Any, kind: str, request: pytest.FixtureRequest
) -> None:
    """Their identity has what the settings of `detect` were by default, whatever the network allows."""
    old = shutil.copytree(request.getfixturevalue(kind).path, tmp_path / "old")
    values = json.loads((old / "model.json").read_text())
    values["format"], values["preprocessing"]["square"] = 1, True
    del values["preprocessing"]["reduced_decode"]
    (old / "model.json").write_text(json.dumps(values))
    (old / "manifest.json").unlink()
    write_manifest(old)
    job = detect(photos, model=open_bundle(old)).job
    assert (job.settings.rectangular, job.settings.reduced_decode) == (True, True)


@pytest.mark.parametrize("to", ["job.duckdb", "sqlite:///{tmp}/job.sqlite", "./{tmp}/elsewhere"])
def test_other_targets(tmp_path: Path, photos: Path, detect: Any, to: str) -> None:
    """The same rows, wherever they go."""
    plain = detect(photos)
    place = to.replace("./{tmp}", str(tmp_path)).replace("{tmp}", str(tmp_path))
    place = str(tmp_path / place) if place == "job.duckdb" else place
    other = detect(photos, place)
    assert other.summary == plain.summary
    assert detect(photos, place).counts.images == 0
    listed = {job.name: job for job in sightline.list_detections(workspace=tmp_path / "ws")}
    assert len(listed) == 2
    assert listed[other.name].images == COUNT
    if "sqlite" in to:
        with pytest.raises(ConfigError, match="query that database directly"):
            rows(tmp_path, job=other.name)
    else:
        assert [row["uri"] for row in rows(tmp_path, job=other.name)] == [
            row["uri"] for row in rows(tmp_path, job="job")
        ]
        sql = "select label, count(*) as n from detections group by 1 order by 1"
        assert rows(tmp_path, sql, job=other.name) == rows(tmp_path, sql, job="job")


def test_bad_images_are_rows(tmp_path: Path, photos: Path, detect: Any) -> None:
    (photos / "00.jpg").write_bytes(b"no image")
    (photos / "out.jpg").symlink_to("/etc/passwd")
    result = detect(photos)
    assert (result.summary.images, result.summary.rejected) == (COUNT + 1, 2)
    bad = {Path(row["uri"]).name: row["stage"] for row in rows(tmp_path) if row["status"] == "rejected"}
    assert bad == {"00.jpg": "decode", "out.jpg": "path"}
    with pytest.raises(TooManyRejectedError, match="2 of 21 images were rejected"):
        detect(photos, max_rejected=0.05)


def test_only_bad_images_are_too_many(photos: Path, detect: Any) -> None:
    """Unless that is allowed in so many words."""
    for photo in photos.rglob("*.jpg"):
        photo.write_bytes(b"no image")
    with pytest.raises(TooManyRejectedError, match=r"20 of 20 images were rejected, .* --max-rejected 1"):
        detect(photos)
    assert detect(photos, max_rejected=1.0).summary.rejected == COUNT


def test_a_folder_that_is_empty_by_now(photos: Path, detect: Any) -> None:
    detect(photos)
    shutil.rmtree(photos)
    photos.mkdir()
    again = detect(photos)
    assert (again.counts.images, again.summary.images) == (0, COUNT)


class Unmounted(FolderSource):
    """A folder of which a part goes away when its first image is asked for."""

    def read(self, item: Item) -> bytes:
        part = Path(item.uri).parent
        if part.name == "below" and part.exists() and not (part / ".NOT_MOUNTED").exists():
            part.rename(part.with_name(".away"))
            part.mkdir()
            (part / ".NOT_MOUNTED").touch()
        return super().read(item)


def test_a_part_of_a_folder_that_is_unmounted(tmp_path: Path, photos: Path, detect: Any, impatient: None) -> None:
    """While the run is on, and before the next one: nothing of it is committed, and later it is as if nothing was."""
    detect(photos, to="undisturbed", chunk=4)
    with pytest.raises(SourceError, match=r"/below' holds no images on this machine: .* run the same command"):
        detect(Unmounted(str(photos)), chunk=4)
    with pytest.raises(SourceError, match=r"/below' holds no images"):
        detect(photos, chunk=4)
    columns = "uri, status, reason, width, num_detections, version"
    found = rows(tmp_path, f"select {columns} from images", job="job")
    assert {row["status"] for row in found} <= {"ok"}
    assert not [row for row in found if "/below/" in row["uri"]]
    shutil.rmtree(photos / "below")
    (photos / ".away").rename(photos / "below")
    assert detect(photos, chunk=4).summary.rejected == 0
    expected = rows(tmp_path, f"select {columns} from images order by uri", job="undisturbed")
    assert rows(tmp_path, f"select {columns} from images order by uri", job="job") == expected
    assert len(expected) == COUNT


def test_images_that_were_removed_for_good(photos: Path, detect: Any, impatient: None) -> None:
    """The job does not have to begin anew without them."""
    with pytest.raises(SourceError):
        detect(Unmounted(str(photos)), chunk=4)
    shutil.rmtree(photos / "below")
    assert detect(photos, chunk=4, missing="reject").summary.reasons == {"file not found": COUNT // 2}


def test_a_video_is_no_image(tmp_path: Path, detect: Any) -> None:
    (tmp_path / "line 1.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    with pytest.raises(FormatError, match=r"is a video, .* `mkdir frames && ffmpeg -i 'line 1.mp4' frames/%06d.jpg`"):
        detect(tmp_path / "line 1.mp4")


@pytest.mark.parametrize("to", ["out.csv", "out.JSONL", "./out.parquet", "{tmp}/out.json", "file://{tmp}/out.sqlite"])
def test_a_file_is_no_target(tmp_path: Path, photos: Path, detect: Any, to: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="give a name, a directory such as") as refused:
        detect(photos, to.format(tmp=tmp_path))
    assert not (tmp_path / "ws").exists()
    (command,) = re.findall(r"`sightline query \"(.*)\" --job NAME`", str(refused.value))
    detect(photos)
    rows(tmp_path, command, job="job")
    (copied,) = tmp_path.glob("out.*")
    assert copied.stat().st_size > 0


def test_a_target_that_is_a_file(tmp_path: Path, photos: Path, detect: Any) -> None:
    (tmp_path / "notes").write_text("keep me")
    with pytest.raises(ConfigError, match=r"/notes' names a file, .* give a name, a directory"):
        detect(photos, str(tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "keep me"


def test_a_job_of_before_keeps_its_name(photos: Path, tmp_path: Path, detect: Any) -> None:
    detect(photos)
    (tmp_path / "ws/detections/job").rename(tmp_path / "ws/detections/out.csv")
    assert detect(photos, "out.csv").counts.images == 0


def test_every_target_of_a_job_stays_listed(photos: Path, tmp_path: Path, detect: Any) -> None:
    """Under a name of its own, which is the same the next time."""
    elsewhere = [
        f"{tmp_path}/out.duckdb",
        f"{tmp_path}/b/out.duckdb",
        f"sqlite:///{tmp_path}/out.sqlite",
        f"{tmp_path}/out",
    ]
    (tmp_path / "b").mkdir()
    names = [detect(photos, to).name for to in (None, *elsewhere)]
    assert names[1:4] == [f"{names[0]}-out-duckdb", names[2], f"{names[0]}-out-sqlite"]
    assert re.fullmatch(f"{names[0]}-out-duckdb-[0-9a-f]{{6}}", names[2])
    assert [detect(photos, to).name for to in (None, *elsewhere)] == names
    listed = {job.name: (job.target, job.images) for job in sightline.list_detections(workspace=tmp_path / "ws")}
    targets = [f"{tmp_path}/ws/detections/{names[0]}", *elsewhere]
    assert listed == {name: (target, COUNT) for name, target in zip(names, targets, strict=True)}
    for name in names:
        if "sqlite" not in name:
            assert len(rows(tmp_path, job=name)) == COUNT
            assert sightline.browse(name, workspace=tmp_path / "ws").totals().images == COUNT
    inside = detect(photos, f"{tmp_path}/ws/detections/{names[0]}")
    assert (inside.name, inside.counts.images) == (names[0], 0)
    assert len(sightline.list_detections(workspace=tmp_path / "ws")) == len(names)


def test_rejected_images_are_tried_again(tmp_path: Path, photos: Path, detect: Any) -> None:
    """If asked; or because they changed."""
    (photos / "00.jpg").write_bytes(b"no image")
    detect(photos)
    assert detect(photos).counts.images == 0
    again = detect(photos, retry_rejected=True)
    assert (again.counts.images, again.summary.rejected) == (1, 1)
    (photos / "00.jpg").write_bytes(jpeg())
    assert detect(photos).summary.rejected == 0
    assert len(rows(tmp_path)) == COUNT


def test_the_job_is_what_decides_on_the_rows(photos: Path, detect: Any) -> None:
    """Batch, chunk and threads do not; threshold, tiles and size do."""
    detect(photos)
    assert detect(photos, batch=3, chunk=2).counts.images == 0
    for settings in ({"threshold": 0.5}, {"tile": 64}, {"size": 96}, {"limit": 3}):
        with pytest.raises(ExistsError, match="another job"):
            detect(photos, **settings)


def test_names_by_themselves(photos: Path, detect: Any) -> None:
    first = detect(photos, None)
    assert first.name.startswith("photos-lively-")
    assert detect(photos, None, threshold=0.5).name != first.name
    assert detect(photos, None).counts.images == 0


def test_a_dataset_and_a_condition(tmp_path: Path, detect: Any) -> None:
    sightline.synth("shapes", "shapes", images=30, seed=1, workspace=tmp_path / "ws")
    dataset = sightline.open_dataset("shapes", workspace=tmp_path / "ws")
    result = detect("shapes", where="split='test'")
    assert result.summary.images == len(dataset.select("test")) < 30
    assert {row["image_id"] for row in rows(tmp_path)} <= {sample.image_id for sample in dataset}


def test_a_classifier(tmp_path: Path, photos: Path, detect: Any, classifier: Bundle) -> None:
    result = detect(photos, model=classifier)
    assert result.summary.detections == COUNT
    assert {row["label"] for row in rows(tmp_path, "select label from detections")} <= {"cat", "dog"}
    with pytest.raises(ConfigError, match="for detectors"):
        detect(photos, "tiled", model=classifier, tile=64)


def test_pictures(photos: Path, detect: Any) -> None:
    result = detect(photos, save_images=3)
    assert len(list(Path(result.pictures).glob("*.jpg"))) == 3


def test_an_estimate_writes_nothing(tmp_path: Path, photos: Path, bundle: Bundle) -> None:
    (photos / "00.jpg").write_bytes(b"no image")
    found = sightline.estimate_detection(bundle.path, photos, workspace=tmp_path / "ws", engine="torch", threads=1)
    assert found.images == COUNT
    assert found.images_per_s > 0
    assert found.written > 0
    assert sightline.list_detections(workspace=tmp_path / "ws") == []
    assert not (tmp_path / "ws" / "detections").exists()


def test_watching(tmp_path: Path, photos: Path, detect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """New images get their rows until somebody stops it."""
    monkeypatch.setattr("sightline.detect_api._WATCH_EVERY_S", 0.01)
    seen: list[int] = []

    def on_progress(progress: Any) -> None:
        seen.append(progress.total)
        if progress.done == COUNT:
            (photos / "later.jpg").write_bytes(jpeg(seed=7))

    with pytest.raises(Stopped):
        detect(photos, watch=True, on_progress=on_progress, should_stop=lambda: bool(seen) and seen[-1] > COUNT)
    detect(photos)
    assert len(rows(tmp_path)) == COUNT + 1


def test_watching_goes_on_when_the_source_is_back(
    tmp_path: Path, photos: Path, detect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.detect_api._WATCH_EVERY_S", 0.01)
    list_files, asked, notes = FolderSource.items, [], []

    def items(self: FolderSource) -> Iterator[Item]:
        asked.append(self)
        if len(asked) == 2:
            raise SourceError("cannot list '/photos': Stale file handle")
        if len(asked) == 4:
            (photos / "later.jpg").write_bytes(jpeg(seed=7))
        return list_files(self)

    monkeypatch.setattr(FolderSource, "items", items)
    with pytest.raises(Stopped):
        detect(photos, watch=True, on_note=notes.append, should_stop=lambda: len(asked) > 4)
    assert [note for note in notes if "Stale file handle; trying again in 0.01 s" in note]
    assert len(rows(tmp_path)) == COUNT + 1


def test_watching_tries_what_was_rejected_once(photos: Path, detect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.detect_api._WATCH_EVERY_S", 0.01)
    (photos / "00.jpg").write_bytes(b"no image")
    detect(photos)
    list_files, asked, commits = FolderSource.items, [], []

    def items(self: FolderSource) -> Iterator[Item]:
        asked.append(self)
        return list_files(self)

    monkeypatch.setattr(FolderSource, "items", items)
    monkeypatch.setattr("sightline.detection.pictures.Pictures.take", lambda self, chunk, rows: commits.append(rows))
    with pytest.raises(Stopped):
        detect(photos, watch=True, retry_rejected=True, should_stop=lambda: len(asked) > 4)
    assert [table.num_rows for table in commits] == [1]


def test_nothing_there(tmp_path: Path, detect: Any) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no image")
    for to in (None, "job", str(tmp_path / "rows.duckdb")):
        with pytest.raises(NotFoundError, match=r"no images were found in '.*empty': .* that end in \.bmp, "):
            detect(tmp_path / "empty", to)
    with pytest.raises(NotFoundError, match="does not exist"):
        detect(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match="there are no detections yet"):
        rows(tmp_path)
    with pytest.raises(NotFoundError, match="sightline detections"):
        rows(tmp_path, job="other")


def test_a_wrong_query(tmp_path: Path, photos: Path, detect: Any) -> None:
    detect(photos)
    with pytest.raises(ConfigError, match="the query failed"):
        rows(tmp_path, "select nonsense from images")


def test_a_model_that_moved_is_the_same_job(tmp_path: Path, photos: Path, detect: Any, bundle: Bundle) -> None:
    """Its bytes are what counts."""
    detect(photos)
    shutil.copytree(bundle.path, tmp_path / "moved")
    moved = sightline.detect(
        str(tmp_path / "moved"), photos, "job", workspace=tmp_path / "ws", engine="torch", threshold=0.1
    )
    assert moved.counts.images == 0


def test_precision_is_part_of_the_job(photos: Path, detect: Any) -> None:
    """Rows of another precision are other rows; an engine that has no other refuses."""
    job = detect(photos).job
    other = replace(job, settings=replace(job.settings, precision="bfloat16"))
    assert (job.settings.precision, other.id == job.id) == ("auto", False)
    with pytest.raises(ConfigError, match="'torch' does not run in bfloat16"):
        detect(photos, None, precision="bfloat16")
