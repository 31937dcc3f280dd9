"""`sightline detect` in processes that are killed, that die over an image, that run twice at once; on one machine and
on a Ray cluster. `make chaos` has the long form.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from commands import FAULTS
from ray_nodes import BlindNode, RayCluster, processes

import sightline
from programs import need_mounts
from sightline.cluster.connection import connected
from sightline.data.decode import encode_jpeg
from sightline.detection.runner import Progress
from sightline.errors import ConfigError, ImageError, SourceError, WorkerError
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own.

COUNT = 120
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sees things everywhere, and photos: some blank, two that cannot be read."""
    place = tmp_path_factory.mktemp("detect")
    torch.manual_seed(0)
    model = make_model("nano", num_classes=3, size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)
    info = describe(model, name="nano", classes=("circle", "square", "triangle"), score_threshold=0.1)
    save_bundle(place / "model", model.state_dict(), info, {})
    (place / "photos").mkdir()
    for number in range(COUNT):
        dice = np.random.default_rng(number)
        pixels = dice.integers(0, 255, (64, 80, 3), np.uint8) * np.uint8(number % 5 > 0)
        (place / "photos" / f"{number:03}.jpg").write_bytes(encode_jpeg(pixels))
    for number in (7, 70):
        (place / "photos" / f"{number:03}.jpg").write_bytes(b"\xff\xd8\xff broken")
    return place


@pytest.fixture(scope="module")
def poison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Workers die over images named in this file; nodes of Ray know of it from their start."""
    file = tmp_path_factory.mktemp("faults") / "poison"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FAULTS))
        patch.setenv("SIGHTLINE_TEST_POISON", str(file))
        yield file


@pytest.fixture(scope="module")
def nodes(poison: Path) -> Iterator[RayCluster]:
    with RayCluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, Any]:
    """What an undisturbed run finds."""
    start(place, "undisturbed").wait(TIMEOUT_S)
    return found(place, "undisturbed")


def start(place: Path, name: str, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "sightline", "detect", str(place / "model"), str(place / "photos"), "--to", name]
    command += ["-w", str(place / "ws"), "--engine", "torch", "--set", "detect.threads=1", "--set", "detect.chunk=8"]
    log = open(place / f"{name}.log", "a")  # noqa: SIM115 - the process has it.
    return subprocess.Popen([*command, "--json", *options], stdout=subprocess.PIPE, stderr=log, text=True)


def finish(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out
    return json.loads(out)  # type: ignore[no-any-return]


def found(place: Path, name: str) -> dict[str, Any]:
    """Status, reason and rounded boxes by image; every image has one row."""
    files = place / "ws" / "detections" / name / "images" / "*.parquet"
    rows = duckdb.sql(f"select uri, status, reason, num_detections, boxes from read_parquet('{files}')").fetchall()
    assert len(rows) == len({row[0] for row in rows}) == COUNT
    return {row[0]: (*row[1:4], [(box["label"], round(box["score"], 4)) for box in row[4]]) for row in rows}


def committed(place: Path, name: str) -> int:
    folder = place / "ws" / "detections" / name / "images"
    return len(list(folder.glob("*.parquet"))) if folder.exists() else 0


def test_killed_again_and_again(place: Path, expected: dict[str, Any]) -> None:
    dice, kills = random.Random(1), 0
    while kills < 3:
        process, before = start(place, "killed"), committed(place, "killed")
        while committed(place, "killed") <= before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.2))
        process.kill()
        process.communicate()
        kills += 1
    finish(start(place, "killed"))
    assert found(place, "killed") == expected
    assert finish(start(place, "killed"))["run"]["images"] == 0


def test_two_commands_at_once(place: Path, expected: dict[str, Any]) -> None:
    """They share the work, and nobody does what the other has done."""
    both = [start(place, "twice") for _ in range(2)]
    counts = [finish(process)["run"]["images"] for process in both]
    assert sum(counts) == COUNT
    assert found(place, "twice") == expected


def test_an_image_that_kills_the_process(place: Path, poison: Path, expected: dict[str, Any]) -> None:
    """The command dies of it once; the next one looks at that chunk in another process, and goes on without it."""
    poison.write_text("042.jpg")
    try:
        first = start(place, "poisoned")
        first.communicate(timeout=TIMEOUT_S)
        assert first.returncode == -signal.SIGABRT
        finish(start(place, "poisoned"))
    finally:
        poison.unlink()
    rows = found(place, "poisoned")
    (bad,) = (uri for uri in rows if rows[uri] != expected[uri])
    assert Path(bad).name == "042.jpg"
    assert rows[bad][:2] == ("rejected", "killed the worker")


def test_sigterm(place: Path) -> None:
    process = start(place, "stopped")
    while not committed(place, "stopped") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not list((place / "ws" / "detections" / "stopped" / "leases").iterdir())


def test_an_image_that_hangs(place: Path, poison: Path, expected: dict[str, Any]) -> None:
    """A thread cannot be ended: the command is, when it is asked to stop and when nothing was finished for long."""
    poison.write_text("000.jpg:hang")
    leases = place / "ws" / "detections" / "hung" / "leases"
    with ExitStack() as stack:
        stack.callback(poison.unlink)
        stopped = start(place, "hung")
        stack.callback(stopped.kill)
        while not (leases.is_dir() and any(leases.iterdir())) and stopped.poll() is None:
            time.sleep(0.01)
        time.sleep(2)
        stopped.send_signal(signal.SIGINT)
        stopped.communicate(timeout=60)
        assert stopped.returncode == 130
        stalled = start(place, "hung", "--set", "detect.stall_s=3")
        stack.callback(stalled.kill)
        stalled.communicate(timeout=TIMEOUT_S)
        assert stalled.returncode == 3
        said = (place / "hung.log").read_text()
        assert "no image was finished in 3 s (chunk 000000-00000" in said
        assert "run the same command again" in said
        apart = start(place, "hung", "--set", "detect.stall_s=3")
        stack.callback(apart.kill)
        apart.communicate(timeout=TIMEOUT_S)
        assert apart.returncode == 0
    rows = found(place, "hung")
    assert rows.keys() == expected.keys()
    different = {name for name, row in rows.items() if row != expected[name]}
    assert {Path(name).name for name in different} == {"000.jpg"}


def on_ray(place: Path, nodes: RayCluster, name: str, **settings: Any) -> list[str]:
    notes: list[str] = []
    given = {"engine": "torch", "chunk": 8, "workers": 2, "address": nodes.address, "on_note": notes.append}
    sightline.detect(place / "model", place / "photos", name, workspace=place / "ws", **(given | settings))
    return notes


def actors(nodes: RayCluster) -> list[int]:
    running = processes()
    raylets = {pid for pid, _, command in running if "raylet/raylet" in command and nodes.address in command}
    return [pid for pid, parent, command in running if parent in raylets and "ray::Actor" in command]


def test_ray_loses_a_worker(place: Path, nodes: RayCluster, expected: dict[str, Any]) -> None:
    killed: list[int] = []

    def on_progress(progress: Progress) -> None:
        if progress.new > 20 and not killed and (pids := actors(nodes)):
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    notes = on_ray(place, nodes, "ray", on_progress=on_progress)
    assert killed
    assert any("a worker died" in note for note in notes)
    assert found(place, "ray") == expected


@pytest.mark.slow
def test_ray_and_a_worker_that_hangs(place: Path, nodes: RayCluster, expected: dict[str, Any]) -> None:
    stopped: list[int] = []

    def on_progress(progress: Progress) -> None:
        if progress.new > 20 and not stopped and (pids := actors(nodes)):
            stopped.append(pids[0])
            os.kill(pids[0], signal.SIGSTOP)

    notes = on_ray(place, nodes, "ray-hung", on_progress=on_progress, stall_s=5)
    assert any("no image was finished in 5 s" in note for note in notes)
    assert found(place, "ray-hung") == expected


@pytest.mark.parametrize("how", ["", ":break"])
def test_ray_and_an_image_that_kills_workers(
    place: Path, nodes: RayCluster, poison: Path, expected: dict[str, Any], how: str
) -> None:
    name = f"ray-poisoned{how.replace(':', '-')}"
    poison.write_text(f"033.jpg{how}")
    try:
        on_ray(place, nodes, name)
    finally:
        poison.unlink()
    rows = found(place, name)
    (bad,) = (uri for uri in rows if rows[uri] != expected[uri])
    assert Path(bad).name == "033.jpg"
    assert rows[bad][:2] == ("rejected", "killed the worker")


def test_too_small_a_cluster(place: Path, nodes: RayCluster, expected: dict[str, Any]) -> None:
    """More workers than CPUs share them; far more are refused, and so are more threads than there are CPUs."""
    with pytest.raises(ConfigError, match=r"5 workers .* 2 cores: give --workers 2, or --oversubscribe"):
        on_ray(place, nodes, "too-many", workers=5)
    with pytest.raises(ConfigError, match="room for 2 workers"):
        on_ray(place, nodes, "too-many", workers=3, threads=1)
    notes = on_ray(place, nodes, "many", workers=3)
    assert any("warning: 3 workers share 2 cores" in note for note in notes)
    assert found(place, "many") == expected


@pytest.mark.slow
def test_a_cluster_that_loses_all_its_nodes(place: Path, poison: Path) -> None:
    poison.write_text("100.jpg:hang")  # Or else it may have ended before the nodes are lost.
    with ExitStack() as stack:
        stack.callback(poison.unlink)
        cluster = stack.enter_context(RayCluster(1))

        def on_progress(progress: Progress) -> None:
            if progress.new > 20:
                cluster.lose_nodes()

        with pytest.raises(WorkerError, match=r"no worker was ready in 60 s: each needs 1 CPUs .* has 0 CPUs"):
            on_ray(place, cluster, "ray-lost", workers=1, on_progress=on_progress, stall_s=5)


def test_a_source_that_is_away_on_the_drivers_node(nodes: RayCluster) -> None:
    """The worker that reads through that node hears of it as if it had read by itself."""
    import ray

    from sightline.detection.item import Item
    from sightline.detection.ray_pool import ServedSource, SourceServer

    class Away:
        def read(self, item: Item) -> bytes:
            raise SourceError("the bucket is away") if item.ref == "away" else ImageError("truncated image")

    with connected(nodes.address):
        remote: Any = ray.remote
        served = ServedSource("photos", remote(num_cpus=0)(SourceServer).remote(Away()))
        for ref, error in {"away": SourceError, "bad": ImageError}.items():
            with pytest.raises(error) as raised:
                served.read(Item(ref, ref, "", ref))
            assert type(raised.value) is error
        ray.kill(served.server)

        def read_until_it_is_gone() -> None:
            """`ray.kill` does not wait for the end of the actor, which may answer once more."""
            for _ in range(300):
                with suppress(ImageError):
                    served.read(Item("bad", "bad", "", "bad"))
                time.sleep(0.1)

        with pytest.raises(SourceError, match="does not answer"):
            read_until_it_is_gone()


@pytest.mark.parametrize("has_others", [False, True])
def test_a_node_that_sees_neither_model_nor_images(
    place: Path, expected: dict[str, Any], tmp_path: Path, has_others: bool
) -> None:
    """Both travel by Ray; also where other images lie under the same names."""
    need_mounts()
    if has_others:
        (tmp_path / "photos").mkdir()
        for photo in (place / "photos").iterdir():
            (tmp_path / "photos" / photo.name).write_bytes(encode_jpeg(np.zeros((64, 80, 3), np.uint8)))
    shown = tmp_path if has_others else None
    with RayCluster(0) as cluster, BlindNode(cluster.address, place, num_cpus=2, shown=shown):
        cluster.wait_for_cpus(2)
        notes = on_ray(place, cluster, f"blind-{has_others}")
    said = "has other bytes there" if has_others else f"{place}/photos is not there"
    assert any("a worker does not see the source" in note and said in note for note in notes)
    assert found(place, f"blind-{has_others}") == expected
