"""Processes for images that may kill whoever looks at them: how they start, fail and end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import FAULTS
from hostile_sources import Hostile, item
from ray_nodes import processes

import sightline
from sightline.config import load_config
from sightline.data.decode import encode_jpeg
from sightline.detection.child import Child
from sightline.detection.detect import prepare
from sightline.detection.plan import Chunk
from sightline.detection.pool import Died, Done, Task
from sightline.detection.rows import ModelName
from sightline.detection.worker_spec import WorkerSpec
from sightline.errors import ConfigError, DamagedError, WorkerError
from sightline.models.bundle import Bundle, describe, save_bundle
from sightline.models.factory import make_model

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "models"))  # `yolo_files` is shared with the tests there.

from yolo_files import write_yolo

TIMEOUT_S = 120
HERE = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> WorkerSpec:
    place = tmp_path_factory.mktemp("model")
    model = make_model("nano", num_classes=2, size=64)
    info = describe(model, name="nano", classes=("circle", "square"), score_threshold=0.1)
    bundle = save_bundle(place / "model", model.state_dict(), info, {})
    source = Hostile(encode_jpeg(np.zeros((64, 64, 3), np.uint8)))
    config = load_config(flags={"detect": {"engine": "torch", "threads": 1}})
    torch.manual_seed(0)
    return prepare(source, bundle, ModelName("m", "1"), config, device="cpu", cache=place / "compiled").packed()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{FAULTS}")


@pytest.fixture
def pool(spec: WorkerSpec) -> Iterator[Child]:
    pool = Child(spec, stall_s=TIMEOUT_S)
    yield pool
    pool.close()


def look_at(pool: Child, *refs: str) -> Done | Died:
    items = tuple(item(ref) for ref in refs)
    pool.submit(Task(Chunk("000000-00000", items), items, attempt=2))
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := pool.wait(0.1)):
        assert time.monotonic() < deadline, "nothing came"
    return found[0]


def test_one_process_for_many_tasks_and_another_after_a_death(pool: Child) -> None:
    first = look_at(pool, "good", "good")
    assert isinstance(first, Done)
    assert first.rows.column("status").to_pylist() == ["ok", "ok"]
    died = look_at(pool, "abort")
    assert isinstance(died, Died)
    assert died.why == f"its process ended by signal {signal.SIGABRT:d}: malloc(): corrupted top size"
    assert isinstance(look_at(pool, "good"), Done)
    pool.close()
    pool.close()  # Its file descriptors may be another's by now.


def test_an_image_that_breaks_the_model_for_the_whole_process(pool: Child) -> None:
    died = look_at(pool, "good", "break")
    assert isinstance(died, Died)
    assert "fails over any image in this process: RuntimeError: CUDA error" in died.why
    assert isinstance(look_at(pool, "good"), Done)


def test_a_model_that_fails_from_the_start_says_nothing_about_images(
    spec: WorkerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), HERE, str(FAULTS))))
    (tmp_path / "sitecustomize.py").write_text("import broken_model\nbroken_model.break_model()")
    pool = Child(spec, stall_s=TIMEOUT_S)
    try:
        with pytest.raises(WorkerError, match=r"the model fails over a blank image on this machine: .*CUDA error"):
            look_at(pool, "good")
    finally:
        pool.close()


def test_an_error_that_is_not_the_images_ends_the_run_as_itself(pool: Child) -> None:
    with pytest.raises(ConfigError, match="the source refuses"):
        look_at(pool, "refuse")


def test_an_image_that_hangs_is_ended(spec: WorkerSpec) -> None:
    pool = Child(spec, stall_s=TIMEOUT_S)
    try:
        assert isinstance(look_at(pool, "good"), Done)
        pool._stall_s = 2
        died = look_at(pool, "hang")
        assert isinstance(died, Died)
        assert died.why == "it got nowhere for 2 s"
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("at_start", "said"),
    [
        ("import os; print('no room for numpy\\nout of memory', flush=True, file=sys.stderr); os._exit(9)", "with 9"),
        ("import time; time.sleep(3600)", "it got nowhere for 2 s"),
    ],
)
def test_a_process_that_cannot_start_says_nothing_about_images(
    spec: WorkerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_start: str, said: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{at_start}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("sightline.detection.child.START_S", 2)
    pool = Child(spec, stall_s=1)
    try:
        with pytest.raises(WorkerError, match="ended before it had loaded the model") as failed:
            look_at(pool, "good")
    finally:
        pool.close()
    assert said in str(failed.value)
    if "with 9" in said:
        assert "no room for numpy | out of memory" in str(failed.value)


def test_a_model_that_arrives_damaged(spec: WorkerSpec) -> None:
    files = {name: content[:-1] + b"?" for name, content in spec.bundle.items()}
    pool = Child(replace(spec, bundle=files), stall_s=TIMEOUT_S)
    try:
        with pytest.raises(DamagedError):
            look_at(pool, "good")
    finally:
        pool.close()


def test_it_ends_with_its_parent(spec: WorkerSpec, tmp_path: Path) -> None:
    """While an image keeps it busy, so that it does not look for messages."""
    import pickle

    (tmp_path / "spec").write_bytes(pickle.dumps(spec))
    script = f"""
import pickle, time
from hostile_sources import item
from sightline.detection.child import Child
from sightline.detection.plan import Chunk
from sightline.detection.pool import Task

pool = Child(pickle.loads(open({str(tmp_path / "spec")!r}, "rb").read()), stall_s=600)
pool.submit(Task(Chunk("c", (item("good"),)), (item("good"),)))
while not pool.wait(0.1):
    pass
pool.submit(Task(Chunk("c", (item("hang"),)), (item("hang"),)))
time.sleep(1)
print("busy", flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout
        assert parent.stdout.readline() == "busy\n"
        (child,) = (pid for pid, parent_pid, _ in processes() if parent_pid == parent.pid)
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 10
    while child in {pid for pid, _, _ in processes()}:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            pytest.fail("it outlived its parent")
        time.sleep(0.1)


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "ultralytics"):
            raise AssertionError(f"a worker imported {name}")

sys.meta_path.insert(0, NoTorch())
"""


@pytest.mark.parametrize(
    ("family", "engine"),
    [
        ("nano", "onnxruntime"),
        ("nano", "openvino"),
        ("resnet18", "onnxruntime"),
        ("yolov8n", "openvino"),
        ("yolo-onnx", "openvino"),
    ],
)
def test_workers_of_compiled_models_import_no_torch(
    family: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save_model(family, tmp_path)
    config = load_config(flags={"detect": {"engine": engine, "threads": 1, "threshold": 0.0}})
    source = Hostile(encode_jpeg(np.zeros((64, 64, 3), np.uint8)))
    job = prepare(source, bundle, ModelName("m", "1"), config, device="cpu", cache=tmp_path / "compiled")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), HERE)))
    pool = Child(job.packed(), stall_s=TIMEOUT_S)
    try:
        done = look_at(pool, "good")
    finally:
        pool.close()
    assert isinstance(done, Done)
    assert done.rows.column("status").to_pylist() == ["ok"]


def save_model(family: str, place: Path) -> Bundle:
    """An untrained model."""
    if family == "yolo-onnx":
        return sightline.import_model(write_yolo(place / "yolo.onnx"), place / "model")
    model = make_model(family, num_classes=2, size=64)
    info = describe(model, name=family, classes=("circle", "square"), score_threshold=0.1)
    return save_bundle(place / "model", model.state_dict(), info, {})
