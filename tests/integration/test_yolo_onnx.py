"""The real commands on a YOLO in ONNX: import, evaluate, compare; the package that makes such files is not needed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sightline
from sightline.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "models"))  # `yolo_files` is shared with the tests there.

from yolo_files import CELL, NAMES, make_scene, write_yolo

SIZES = ((128, 128), (128, 64), (64, 128))
"""Cells of such images lie on those of the canvas, wherever in its middle they are."""


def run(workspace: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sightline", *arguments, "--workspace", str(workspace)]
    return subprocess.run(command, capture_output=True, text=True, cwd=workspace, timeout=300)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a dataset `cells`, whose images show coloured cells."""
    root, random = tmp_path_factory.mktemp("ws"), np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / "source" / folder).mkdir(parents=True)
    (root / "source" / "names.yaml").write_text(f"path: .\nval: images\nnames: {list(NAMES)}\n")
    for number in range(12):
        width, height = SIZES[number % 3]
        places = [(x, y) for x in range(0, width, CELL) for y in range(0, height, CELL)]
        chosen = random.choice(len(places), 3, replace=False)
        cells = {places[place]: int(random.integers(3)) for place in chosen}
        Image.fromarray(make_scene(width, height, cells)).save(root / "source" / "images" / f"{number}.png")
        lines = [
            f"{label} {(x + CELL / 2) / width} {(y + CELL / 2) / height} {CELL / width} {CELL / height}"
            for (x, y), label in cells.items()
        ]
        (root / "source" / "labels" / f"{number}.txt").write_text("\n".join(lines))
    sightline.ingest(root / "source", "cells", workspace=root, split="test=1")
    return root


@pytest.fixture(scope="module", params=["dynamic", "static"])
def model(request: pytest.FixtureRequest, workspace: Path) -> Path:
    """Imported by the command, with names in a file."""
    kind = request.param
    axes = {"batch": 1, "height": 128, "width": 128} if kind == "static" else {}
    file = write_yolo(workspace / f"{kind}.onnx", **axes)
    done = run(workspace, "import", str(file), "--names", "source/names.yaml", "--to", f"./{kind}")
    assert done.returncode == 0, done.stderr
    assert "licence: AGPL-3.0" in done.stdout + done.stderr
    return workspace / kind


def test_evaluate_finds_everything(workspace: Path, model: Path) -> None:
    done = run(workspace, "evaluate", str(model), "cells", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["map"] == pytest.approx(1)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_every_engine_scores_the_same(workspace: Path, model: Path, engine: str) -> None:
    assert sightline.evaluate(model, "cells", engine=engine, workspace=workspace).map == pytest.approx(1)


def test_torch_is_refused_by_name(workspace: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="take onnxruntime or openvino"):
        sightline.evaluate(model, "cells", engine="torch", workspace=workspace)


def test_it_is_compared_like_any_model(workspace: Path, model: Path) -> None:
    found = sightline.compare_models(model, model, dataset="cells", workspace=workspace)
    assert [scored.score for scored in found.models] == [pytest.approx(1), pytest.approx(1)]


def test_a_payload_is_refused_with_its_reason(workspace: Path) -> None:
    (workspace / "evil.onnx").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch ran'\ntR.")
    done = run(workspace, "import", "evil.onnx", "--names", "a,b", "--to", "./evil")
    assert done.returncode == 3
    assert "is not an ONNX file" in " ".join(done.stderr.split())
    assert not (workspace / "ran").exists()
    assert not (workspace / "evil").exists()
