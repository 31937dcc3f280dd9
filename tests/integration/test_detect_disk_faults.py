"""Detections on a disk that fails: a network disk whose server is away or repeats itself, and a disk that is full.

In processes whose C library lets files fail, see `faults/disk.c`.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch

from programs import need
from sightline.data.decode import encode_jpeg
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model

FOREVER = 1 << 30
UNIT = Path(__file__).parents[1] / "unit" / "detection"
PRELUDE = f"""
import os, sys
sys.path[:0] = [{str(UNIT)!r}, {str(UNIT / "targets")!r}]
from pathlib import Path
from database_place import ANN, BEN, images
from sightline.detection.targets.parquet import ParquetTarget
from sightline.errors import SightlineError
target, control = ParquetTarget(Path(sys.argv[1])), Path(os.environ["SIGHTLINE_TEST_DISK"])
target.open({{"id": "one"}})
target.commit("old", images("old", ["1", "2"]), BEN)
target.claim(["mine"], ANN, lease_s=60)
target.publish(0, b"plan of another run")
def fail(text, below):
    control.write_text(f"{{text}} {{target.directory}}/{{below}}")
"""


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = need("a C compiler", shutil.which("cc") or shutil.which("gcc"))
    library = tmp_path_factory.mktemp("faults") / "disk.so"
    source = Path(__file__).parent / "faults" / "disk.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def run(faults: Path, tmp_path: Path) -> Callable[[str], str]:
    """Run a script with a target that can fail; what it printed."""
    environment = {**os.environ, "LD_PRELOAD": str(faults), "SIGHTLINE_TEST_DISK": str(tmp_path / "control")}

    def run(script: str) -> str:
        command = [sys.executable, "-c", PRELUDE + script, str(tmp_path / "target")]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert found.returncode == 0, found.stderr
        return found.stdout.strip()

    return run


COMMIT = 'target.commit("new", images("new", ["3"]), ANN)'
REWRITE = 'target.rewrite("old", images("old", ["2"], version="new"), ANN, revision=1)'
CLAIM = 'target.claim(["new"], ANN, lease_s=60)'
FAULTS = [
    ("link-done", errno.EEXIST, "images", COMMIT, "True"),
    ("link-done", errno.EIO, "images", COMMIT, "True"),
    ("link", errno.ESTALE, "images", COMMIT, "True"),
    ("write", errno.EIO, ".partial", COMMIT, "True"),
    ("link-done", errno.EEXIST, "plan", 'target.publish(1, b"plan")', "True"),
    ("link-done", errno.EEXIST, "leases", CLAIM, "{'new': 1}"),
    ("link-done", errno.EIO, "leases", CLAIM, "{'new': 1}"),
    ("rename-done", errno.ENOENT, "images", REWRITE, "True"),
    ("rename-done", errno.EIO, "images", REWRITE, "True"),
    ("rename", errno.EIO, "images", REWRITE, "True"),
    ("open", errno.EIO, "images", 'target.read_chunk("old", ["image_id"])[1].num_rows', "2"),
    ("utime", errno.ETIMEDOUT, "leases", 'target.renew(["mine"], ANN, lease_s=60)', "None"),
]


@pytest.mark.parametrize(("operation", "number", "below", "code", "expected"), FAULTS)
def test_a_failure_that_passes_and_an_answer_that_is_lost(
    run: Callable[[str], str], operation: str, number: int, below: str, code: str, expected: str
) -> None:
    script = f"""
fail("{operation} {number} 0 1", "{below}")
print({code})
control.unlink()
rows = sorted(tuple(row.values()) for batch in target.rows(["image_id", "version"]) for row in batch.to_pylist())
print([chunk.revision for chunk in target.stored()], rows)
"""
    found, stored = run(script).splitlines()
    assert found == expected
    expected_rows = {
        COMMIT: "[1, 1] [('1', 'v'), ('2', 'v'), ('3', 'v')]",
        REWRITE: "[2] [('1', 'v'), ('2', 'new')]",
    }
    assert stored == expected_rows.get(code, "[1] [('1', 'v'), ('2', 'v')]")


def test_a_name_whose_absence_is_remembered(run: Callable[[str], str]) -> None:
    """Another run has published; the client of a network disk still says that there is no such file."""
    script = f"""
fail("open {errno.ENOENT} 0 {FOREVER}", "plan")
print(target.publish(0, b"plan of this run"), target.generation(0), target.generation(1))
"""
    assert run(script) == "False b'plan of another run' None"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_ends_with_a_sentence_and_can_go_on(run: Callable[[str], str], number: int) -> None:
    script = f"""
fail("write {number} 0 {FOREVER}", ".partial")
for work in (lambda: {COMMIT}, lambda: {REWRITE}):
    try:
        work()
    except SightlineError as error:
        print(type(error).__name__, "run the same command again" in str(error))
control.unlink()
print({COMMIT}, {REWRITE}, os.listdir(target.directory / ".partial"))
"""
    assert run(script).splitlines() == ["StorageError True", "StorageError True", "True True []"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model, and photos."""
    torch.manual_seed(0)
    model = make_model("nano", num_classes=3, size=64)
    info = describe(model, name="nano", classes=("circle", "square", "triangle"), score_threshold=0.1)
    save_bundle(tmp_path / "model", model.state_dict(), info, {})
    (tmp_path / "photos").mkdir()
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 80, 3), np.uint8)
        (tmp_path / "photos" / f"{number:03}.jpg").write_bytes(encode_jpeg(pixels))
    return tmp_path


def test_a_command_goes_on_after_the_disk_was_full(place: Path, faults: Path) -> None:
    out, control = place / "out", place / "control"
    command = [sys.executable, "-m", "sightline", "detect", str(place / "model"), str(place / "photos")]
    command += ["--to", str(out), "-w", str(place / "ws"), "--engine", "torch", "--json", "--set", "detect.threads=1"]
    command += ["--set", "detect.chunk=8"]
    environment = {**os.environ, "LD_PRELOAD": str(faults), "SIGHTLINE_TEST_DISK": str(control)}
    control.write_text(f"write {errno.ENOSPC} 6 {FOREVER} {out}/.partial")
    full = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert full.returncode not in (0, 70), full.stderr
    assert "No space left on device; mend that, then run the same command again" in full.stderr
    committed = len(list((out / "images").glob("*.parquet")))
    assert committed < 5
    control.unlink()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["run"]["images"] == 40 - 8 * committed
    rows = duckdb.sql(f"select count(*), count(distinct uri) from read_parquet('{out}/images/*.parquet')").fetchall()
    assert rows == [(40, 40)]
