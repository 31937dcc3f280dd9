"""Exporting from the command line: what is refused, and how that is told."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--to", "onnx"], 3, "there is no model 'nothing'"),
        (["--to", "onnx", "--int8"], 2, "give a dataset with --calibrate"),
        (["--to", "onnx", "--calibrate", "boards"], 2, "give --int8 too"),
        (["--to", "tensorrt"], 2, "'onnx'"),
        ([], 2, "--to"),
    ],
)
def test_what_cannot_be_exported_is_told(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sightline", "export", "nothing", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
