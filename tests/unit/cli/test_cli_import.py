"""Importing from the command line: what is said of a model that was made, and how a refusal is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # `yolo_files` is shared with the tests there.

from yolo_files import NAMES, write_yolo


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sightline", "import", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_yolo_is_described_in_json(tmp_path: Path) -> None:
    write_yolo(tmp_path / "cells.onnx")
    done = run(tmp_path, "cells.onnx", "--to", "./cells/", "--licence", "bought in 2026", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["model"], said["classes"], said["licence"]) == ("yolo-onnx", list(NAMES), "bought in 2026")
    assert {file.name for file in (tmp_path / "cells").iterdir()} == {
        "README.md",
        "manifest.json",
        "model.json",
        "model.onnx",
    }
    again = run(tmp_path, "cells.onnx", "--to", "./cells/")
    assert again.returncode != 0
    assert "is there already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.onnx", "--to", "./new"], 3, "'missing.onnx' is not there"),
        (["cells.onnx", "--to", "./new", "--model", "ssdlite"], 2, "leave --model out"),
        (["cells.onnx", "--to", "./new", "--names", "red,green"], 3, "give the right --names"),
        (["cells.onnx", "--to", "./new", "--names", "names.yaml"], 3, "'names.yaml' is not there"),
        (["net.pth", "--to", "./new", "--classes", "a"], 2, "say with --model"),
        (["net.pth", "--to", "./new", "--model", "ssdlite"], 2, "say with --classes"),
        (["cells.onnx"], 2, "--to"),
    ],
)
def test_what_cannot_be_imported_is_told(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    write_yolo(tmp_path / "cells.onnx")
    (tmp_path / "net.pth").write_bytes(b"")
    done = run(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "new").exists()
