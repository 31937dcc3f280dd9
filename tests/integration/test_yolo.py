"""The real commands on YOLOv8n: two workers, no network, the source left alone; then detection without the package."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import sightline
from sightline.models.yolo_package import make_network

LICENCE = "licence of model yolov8n: AGPL-3.0"


def hashes(root: Path) -> dict[str, str]:
    return {
        str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


class Commands:
    """Runs commands in a workspace, where nothing but this machine can be reached."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, root / "calls.txt"

    def run(self, *arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sightline", *arguments]
        if arguments[0] != "query":
            command += ["--workspace", str(self.root / "workspace")]
        taken = {"PYTHONPATH": str(Path(__file__).parent / "without"), "SIGHTLINE_TEST_CALLS": str(self.calls)}
        environment = {**os.environ, **taken, "SIGHTLINE_TEST_WITHOUT": without, "HOME": str(self.root / "home")}
        return subprocess.run(command, capture_output=True, text=True, cwd=self.root, env=environment, timeout=600)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """With a tree of images in YOLO's form, and a file of Ultralytics that knows three other classes."""
    root = tmp_path_factory.mktemp("yolo")
    (root / "home").mkdir()
    sightline.synth("shapes", "shapes", images=24, seed=3, workspace=root / "first")
    sightline.export_dataset("shapes", root / "source", format="yolo", workspace=root / "first")
    torch.manual_seed(0)
    network = make_network("yolov8n", 3)
    network.names = {0: "cat", 1: "dog", 2: "emu"}
    from ultralytics.nn.modules.head import Detect

    network.model[-1].__class__ = Detect  # As the package makes it.
    torch.save({"model": network.half(), "ema": None, "train_args": {"model": "yolov8n.yaml"}}, root / "yolov8n.pt")
    return Commands(root)


@pytest.fixture(scope="module")
def ingested(commands: Commands) -> dict[str, str]:
    """The dataset `shapes`, and the hashes of the files it was made of."""
    before = hashes(commands.root / "source")
    done = commands.run("ingest", "source", "--to", "shapes")
    assert done.returncode == 0, done.stderr
    return before


@pytest.fixture(scope="module")
def trained(commands: Commands, ingested: dict[str, str]) -> str:
    """A run, after seeing that its training touched nothing else."""
    settings = ["--set", "train.size=96", "--set", "train.threads=1", "--epochs", "2", "--batch", "6"]
    done = commands.run("train", "shapes", "--weights", "yolov8n.pt", "--workers", "2", "--verify", "--json", *settings)
    assert done.returncode == 0, done.stderr
    assert hashes(commands.root / "source") == ingested
    assert not commands.calls.exists(), commands.calls.read_text()
    assert [file for file in (commands.root / "home").rglob("*") if file.is_file()] == []
    assert (done.stdout + done.stderr).count(LICENCE) == 1
    assert "model yolov8n: that is what the weights are of" in done.stderr
    name: str = json.loads(done.stdout)["name"]
    return name


def test_the_licence_goes_with_the_model(commands: Commands, trained: str) -> None:
    model = commands.root / "workspace" / "runs" / trained / "model"
    assert json.loads((model / "model.json").read_text())["licence"] == "AGPL-3.0"
    assert "AGPL" in (model / "README.md").read_text()
    (run,) = sightline.list_runs(workspace=commands.root / "workspace")
    assert run.settings["licence"] == "AGPL-3.0"
    done = commands.run("register", trained, "--name", "shapes")
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count(LICENCE) == 1


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_what_is_exported_detects_without_the_package(commands: Commands, trained: str, to: str) -> None:
    done = commands.run("export", trained, "--to", to, "--output", f"./yolo-{to}")
    assert done.returncode == 0, done.stderr
    images, output = str(commands.root / "source" / "images"), commands.root / f"found-{to}"
    threshold = ["--threshold", "0.002"]
    done = commands.run("detect", f"./yolo-{to}", images, "--to", str(output), *threshold, without="ultralytics")
    assert done.returncode == 0, done.stderr
    assert "AGPL" not in done.stdout + done.stderr, "it was said when the model was trained, and is in the card"
    assert "threshold 0.002 (as given)" in done.stdout
    rows = pq.read_table(output / "images").to_pylist()
    assert len(rows) == 24
    model = sightline.load_model(trained, engine="torch", threads=1, workspace=commands.root / "workspace")
    for row in rows[:6]:
        (found,) = model.predict(row["uri"].removeprefix("file://"), threshold=0.002)
        assert abs(len(found) - row["num_detections"]) <= 0.1 * len(found) + 3


def test_training_without_the_package_says_what_to_install(commands: Commands, trained: str) -> None:
    done = commands.run("train", "shapes", "--model", "yolov8n", "--epochs", "1", without="ultralytics")
    assert done.returncode == 3, done.stderr
    assert "pip install 'sightline[yolo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_ultralytics_becomes_a_bundle(commands: Commands) -> None:
    done = commands.run("import", "yolov8n.pt", "--to", "./imported")
    assert done.returncode == 0, done.stderr
    assert "licence: AGPL-3.0" in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(LICENCE) == 1
    bundle = sightline.load_model(commands.root / "imported", workspace=commands.root).bundle
    assert (bundle.info.model, bundle.info.classes) == ("yolov8n", ("cat", "dog", "emu"))
    assert (commands.root / "imported" / "weights.safetensors").is_file()


def test_a_hostile_file_is_refused_by_the_commands(commands: Commands, ingested: dict[str, str]) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch '{commands.root / 'marker'}'",)

    held = torch.load(commands.root / "yolov8n.pt", weights_only=False)  # Ours, from a moment ago.
    torch.save({**held, "extra": Payload()}, commands.root / "evil.pt")
    for command in (["import", "evil.pt", "--to", "./evil"], ["train", "shapes", "--weights", "evil.pt"]):
        done = commands.run(*command)
        assert done.returncode != 0
        assert "posix.system" in done.stderr
        assert "Traceback" not in done.stderr
    assert not (commands.root / "marker").exists()
