"""The commands of detection, as they are typed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sightline.cli.main import app
from sightline.data.decode import encode_jpeg
from sightline.data.parallel import num_cores
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    network = make_model("nano", num_classes=2, size=64)
    with torch.no_grad():
        network.get_parameter("net.class_map.bias").fill_(0)
    info = describe(network, name="nano", classes=("<script>", "[bold]it's\n☃"), score_threshold=0.1)
    place = tmp_path_factory.mktemp("model") / "lively"
    save_bundle(place, network.state_dict(), info, {})
    return str(place)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(encode_jpeg(pixels))
    (tmp_path / "photos" / "bad.png").write_bytes(b"nothing")
    return tmp_path / "photos"


def typed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_detect_list_and_query(tmp_path: Path, photos: Path, model: str) -> None:
    workspace = ("-w", str(tmp_path / "ws"))
    settings = ("--engine", "torch", "--set", "detect.threads=1", *workspace)
    text = typed("detect", model, str(photos), "--to", "first", "--save-images", "1", *settings)
    assert "source: a folder of images" in text
    assert "engine torch" in text
    assert "<script>" in text
    assert "[bold]it's" in text
    assert "rejected: 1 x" in text
    assert "7 images have rows" in text
    assert "--job first" in text
    assert "nothing was new" in typed("detect", model, str(photos), "--to", "first", *settings)
    machine = json.loads(typed("detect", model, str(photos), "--to", "first", "--json", *settings))
    assert (machine["run"]["images"], machine["summary"]["images"], machine["summary"]["rejected"]) == (0, 7, 1)
    assert "first" in typed("detections", *workspace)
    counted = typed("query", "select status, count(*) as n from images group by 1 order by 1", *workspace)
    assert [line.split() for line in counted.splitlines()[1:]] == [["ok", "6"], ["rejected", "1"]]
    assert len(json.loads(typed("query", "select * from images", "--json", "--limit", "3", *workspace))) == 3
    assert "only the first 2 rows" in typed("query", "select uri from images", "--limit", "2", *workspace)


def test_dry_run(tmp_path: Path, photos: Path, model: str) -> None:
    text = typed("detect", model, str(photos), "--dry-run", "--engine", "torch", "-w", str(tmp_path / "ws"))
    assert "7 images; " in text
    assert "images/s" in text
    assert "memory of a worker" in text


def failed(*words: str) -> str:
    """What a command says that is refused for a setting."""
    done = subprocess.run([sys.executable, "-m", "sightline", *words], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    return " ".join(done.stderr.split())


def test_far_too_many_workers_are_refused_before_anything_starts(tmp_path: Path, photos: Path, model: str) -> None:
    many = str(max(99, 2 * num_cores() + 1))
    said = failed("detect", model, str(photos), "--workers", many, "-w", str(tmp_path / "ws"))
    assert f"{many} workers" in said
    assert f"give --workers {num_cores()}, or --oversubscribe" in said
    assert not (tmp_path / "ws").exists()


def test_a_csv_file_is_refused_with_the_command_that_makes_one(tmp_path: Path, photos: Path, model: str) -> None:
    said = failed("detect", model, str(photos), "--to", "out.csv", "-w", str(tmp_path / "ws"))
    assert "run `sightline query \"copy detections to 'out.csv'\" --job NAME` afterwards" in said
    assert not (tmp_path / "ws").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_no_bug(tmp_path: Path, photos: Path, model: str) -> None:
    said = failed("detect", model, str(photos), "--set", "detect.gpus_per_worker=1", "-w", str(tmp_path / "ws"))
    assert "detect.gpus_per_worker is 1, and torch finds no GPU on this machine" in said


def test_no_detections_yet(tmp_path: Path) -> None:
    assert "no detections yet" in typed("detections", "-w", str(tmp_path))
