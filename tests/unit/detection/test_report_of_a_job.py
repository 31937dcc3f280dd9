"""A job as a page: figures are those of its rows, pictures come from wherever its images are, names stay text."""

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import jpeg

import sightline
from sightline.detection.overview import survey_job
from sightline.detection.past import list_jobs
from sightline.errors import ConfigError, NotFoundError
from sightline.models.bundle import Bundle, describe, save_bundle
from sightline.models.factory import make_model
from sightline.report.job_report import JobReport
from sightline.workspace import Workspace

SCRIPT = "<script>alert(1)</script>"
HOSTILE = ("<img src=x onerror=alert(1)>.jpg", "quote\"'&.jpg", "new\nline.jpg", "e" * 200 + ".jpg")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model whose classes have such names."""
    torch.manual_seed(0)
    model = make_model("nano", num_classes=3, size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)
    info = describe(model, name="nano", classes=(SCRIPT, "b" * 300, "two\nlines"))
    return save_bundle(tmp_path_factory.mktemp("model") / "hostile", model.state_dict(), info, {})


def detect(workspace: Path, model: Bundle, source: Any, name: str = "job") -> None:
    settings = {"engine": "torch", "threads": 1, "threshold": 0.1}
    sightline.detect(str(model.path), source, name, workspace=workspace, **settings)


def survey(workspace: Path, name: str = "job") -> JobReport:
    (job,) = (job for job in list_jobs(Workspace(workspace)) if job.name == name)
    return survey_job(Workspace(workspace), job, pictures=4)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.jpg").write_bytes(jpeg(seed=number))
    (folder / "broken.jpg").write_bytes(jpeg()[:-300])
    return folder


def test_figures_are_those_of_the_rows(tmp_path: Path, photos: Path, bundle: Bundle) -> None:
    detect(tmp_path / "ws", bundle, photos)
    found = survey(tmp_path / "ws")
    (totals,) = sightline.query("select count(*) as n from detections", workspace=tmp_path / "ws").to_pylist()
    assert (found.images, found.rejected) == (7, 1)
    assert found.detections == totals["n"] == sum(one.detections for one in found.classes) == sum(found.scores) > 0
    assert {one.name: one.label for one in found.classes}.items() <= {"circle": 0, "square": 1, "triangle": 2}.items()
    assert [(reason.reason, reason.images) for reason in found.reasons] == [("truncated image", 1)]
    shown = found.pictures["What was found"]
    assert len(shown) == min(4, found.with_detections)
    assert all(picture.uri.startswith("data:image/jpeg;base64,") for picture in shown)


@pytest.mark.parametrize("kind", ["zip", "dataset", "pattern"])
def test_pictures_are_found_again_in_other_sources(tmp_path: Path, photos: Path, bundle: Bundle, kind: str) -> None:
    source: str = f"{photos}/[0-4].jpg"
    if kind == "zip":
        source = str(tmp_path / "photos.zip")
        with zipfile.ZipFile(source, "w") as archive:
            for file in photos.glob("[0-4].jpg"):
                archive.write(file, file.name)
    elif kind == "dataset":
        source = "shapes"
        sightline.synth("shapes", source, images=5, workspace=tmp_path / "ws")
    detect(tmp_path / "ws", bundle, source)
    shown = survey(tmp_path / "ws").pictures["What was found"]
    assert shown
    assert [picture.trouble for picture in shown if not picture.uri] == []


def test_images_that_are_gone_leave_their_reason(tmp_path: Path, photos: Path, bundle: Bundle) -> None:
    detect(tmp_path / "ws", bundle, photos)
    photos.rename(tmp_path / "elsewhere")
    shown = survey(tmp_path / "ws").pictures["What was found"]
    assert all(picture.trouble and not picture.uri for picture in shown)
    assert sightline.write_report("job", tmp_path / "job.html", workspace=tmp_path / "ws").is_file()


def test_names_are_shown_as_text(tmp_path: Path, hostile: Bundle) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed, name in enumerate(HOSTILE):
        (folder / name).write_bytes(jpeg(seed=seed))
    detect(tmp_path / "ws", hostile, folder)
    page = sightline.write_report("job", tmp_path / "job.html", workspace=tmp_path / "ws").read_text("utf-8")
    assert "<script" not in page
    assert not re.search(r"<img(?! src=\"data:image/jpeg;base64,)", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;img src=x onerror=alert(1)&gt;.jpg" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)


def test_nothing_found(tmp_path: Path, photos: Path, bundle: Bundle) -> None:
    sightline.detect(
        str(bundle.path), photos, "job", workspace=tmp_path / "ws", engine="torch", threads=1, threshold=0.999
    )
    page = sightline.write_report("job", workspace=tmp_path / "ws")
    assert page == tmp_path / "ws" / "reports" / "job.html"
    assert "Nothing was found." in page.read_text("utf-8")


def test_what_a_name_means(tmp_path: Path, photos: Path, bundle: Bundle) -> None:
    sightline.synth("shapes", "job", images=4, workspace=tmp_path / "ws")
    assert "dataset" in sightline.write_report("job", workspace=tmp_path / "ws").read_text("utf-8")
    detect(tmp_path / "ws", bundle, photos)
    with pytest.raises(ConfigError, match="is a job and a dataset: say which with --kind"):
        sightline.write_report("job", workspace=tmp_path / "ws")
    assert "Detections" in sightline.write_report("job", kind="job", workspace=tmp_path / "ws").read_text("utf-8")
    with pytest.raises(NotFoundError, match="no run 'job', only a job and a dataset"):
        sightline.write_report("job", kind="run", workspace=tmp_path / "ws")
    with pytest.raises(NotFoundError, match="no job, run or dataset 'other'"):
        sightline.write_report("other", workspace=tmp_path / "ws")
