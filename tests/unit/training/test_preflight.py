"""What a run needs, estimated from its model, and what is refused before anything starts."""

from pathlib import Path

import pytest

import sightline
from families import TESTED
from sightline.cluster.preflight import Node
from sightline.config import Config, LoaderConfig, load_config
from sightline.data.parallel import num_cores
from sightline.errors import ConfigError
from sightline.models.factory import make_model
from sightline.tracking.machine import Placement
from sightline.training import preflight
from sightline.training.identity import run_name
from sightline.training.preflight import (
    ModelMemory,
    check_cores,
    check_training,
    checkpoint_bytes,
    measure_model,
    worker_memory,
)

MB = 1 << 20
GIANT = 1 << 16
MODEL = ModelMemory(weights=10 * MB, trained=9 * MB, activations=100 * MB, pixels=MB)


def config(oversubscribe: bool = False, count: int = 1, **train: object) -> Config:
    settings = {"model": "nano", "size": 64, "optimizer": "adamw", "precision": "float32", **train}
    return load_config(flags={"train": settings, "workers": {"count": count, "oversubscribe": oversubscribe}})


def test_the_bytes_of_a_model() -> None:
    small, large = (measure_model(make_model("nano", num_classes=3, size=size)) for size in (64, 128))
    model = make_model("nano", num_classes=3)
    assert small.weights == large.weights == sum(tensor.nbytes for tensor in model.state_dict().values())
    assert small.trained == sum(parameter.nbytes for parameter in model.parameters())
    assert large.activations == pytest.approx(4 * small.activations, rel=0.1)
    assert large.pixels == 4 * small.pixels


@pytest.mark.parametrize("name", TESTED)
def test_every_family_can_be_measured(name: str) -> None:
    """Also at a size that is no multiple of its strides."""
    found = measure_model(make_model(name, num_classes=3, size=100))
    assert found.activations > found.pixels > 0
    assert found.weights >= found.trained > 0


@pytest.mark.parametrize(
    ("settings", "workers", "on_gpu", "megabytes"),
    [
        # Workspace 64, state 20 + 18, copies 10 + 18, gradients 9, activations 4 x 125, images 8.
        ({"batch": 4}, 1, False, 64 + 38 + 28 + 9 + 500 + 8),
        ({"batch": 4, "ema": 0}, 1, False, 64 + 28 + 28 + 9 + 500 + 8),
        ({"batch": 4, "optimizer": "sgd"}, 1, False, 64 + 29 + 19 + 9 + 500 + 8),
        ({"batch": 4, "precision": "bfloat16"}, 1, False, 64 + 38 + 28 + 9 + 250 + 8),
        ({"batch": 4, "accumulate": 2}, 1, False, 64 + 38 + 28 + 9 + 250 + 8),
        ({"batch": 4}, 2, False, 64 + 38 + 28 + 18 + 250 + 4),
        ({"batch": 5}, 4, False, 64 + 38 + 28 + 18 + 250 + 4),
        ({"batch": 4}, 1, True, 64 + 28 + 8),
    ],
)
def test_the_memory_of_a_worker(settings: dict[str, object], workers: int, on_gpu: bool, megabytes: int) -> None:
    train = config(**settings).train
    assert worker_memory(MODEL, train, LoaderConfig(), workers=workers, on_gpu=on_gpu) == megabytes * MB


def test_the_processes_of_a_loader_are_counted_too() -> None:
    """A server with all that they share, two of 128 MB and a batch of 4 MB, and of such five and one in /dev/shm."""
    train, loader = config(batch=4).train, LoaderConfig(processes=2, prefetch=4)
    without, counted = (worker_memory(MODEL, train, each, workers=1) for each in (LoaderConfig(), loader))
    assert counted - without == (400 + 2 * (128 + 4) + 5 * 4) * MB


def test_far_too_many_processes_of_loaders(workspace: Path) -> None:
    cores = num_cores()
    processes = cores + 1
    given = config(count=2).model_copy(update={"loader": LoaderConfig(processes=processes)})
    one = given.model_copy(update={"workers": config().workers})
    fitting = max(1, cores // 2)
    for refuse in (check_cores, lambda given: check(workspace, given)):
        with pytest.raises(ConfigError, match=f"{2 * processes} loader processes .* --set loader.processes={fitting},"):
            refuse(given)
        refuse(one)
    check_cores(given.model_copy(update={"workers": config(oversubscribe=True, count=2).workers}))


def test_the_size_of_a_checkpoint_is_that_on_disk(workspace: Path) -> None:
    settings = {"model": "nano", "size": 64, "epochs": 1, "threads": 1}
    untracked = load_config(flags={"tracking": {"enabled": False}})
    result = sightline.train("shapes", workspace=workspace, config=untracked, **settings)
    checkpoint = max((Path(result.directory) / "checkpoints").glob("step-*"))
    on_disk = sum(file.stat().st_size for file in checkpoint.iterdir())
    classes = len(sightline.open_dataset("shapes", workspace=workspace).classes)
    measured = measure_model(make_model("nano", num_classes=classes, size=64))
    assert checkpoint_bytes(measured, config().train) == pytest.approx(on_disk, rel=0.05)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=10, workspace=place)
    return place


def check(workspace: Path, settings: Config) -> list[str]:
    notes: list[str] = []
    placement = Placement(workers=settings.workers.count)
    images = sightline.open_dataset("shapes", workspace=workspace).select("train")
    check_training(settings, placement, workspace, images, on_note=notes.append)
    return notes


def test_a_run_that_fits(workspace: Path) -> None:
    """A batch is never larger than the dataset."""
    check_cores(config())
    assert check(workspace, config()) == check(workspace, config(batch=10**9)) == []


def test_images_that_do_not_fit_into_memory(workspace: Path) -> None:
    """Of four gigapixels each."""
    with pytest.raises(
        ConfigError, match=r"do not fit into 90% .* give a smaller --batch or --size, or --oversubscribe"
    ):
        check(workspace, config(size=GIANT))
    (warning,) = check(workspace, config(oversubscribe=True, size=GIANT))
    assert warning.startswith("warning: 1 workers of about")


def test_a_run_is_checked_before_its_model_is_made(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with 50 MB of memory left."""
    monkeypatch.setattr(preflight, "local_node", lambda: Node(num_cores(), memory=50 * MB))
    settings = {"model": "nano", "size": 64, "epochs": 1, "name": "refused"}
    with pytest.raises(ConfigError, match="do not fit into 90%"):
        sightline.train("shapes", workspace=workspace, **settings)
    assert [file.name for file in (workspace / "runs" / "refused").iterdir()] == [".lock"]


def test_too_many_workers_for_the_cores(workspace: Path) -> None:
    settings = config(count=10**4, batch=10**4)
    for refuse in (check_cores, lambda given: check(workspace, given)):
        with pytest.raises(ConfigError, match=r"10000 workers .* give --workers \d+, or --oversubscribe"):
            refuse(settings)
    check_cores(config(oversubscribe=True, count=10**4))


def test_more_workers_than_cores_are_a_warning(workspace: Path) -> None:
    """For the cores, or on machines with many of them for the memory."""
    workers = num_cores() + 1
    (warning,) = check(workspace, config(oversubscribe=True, count=workers))
    assert warning.startswith(f"warning: {workers} workers ")


def test_workers_for_a_cluster_are_not_counted_against_this_machine() -> None:
    check_cores(load_config(flags={"workers": {"count": 10**4, "address": "elsewhere:6379"}}))
    with pytest.raises(ConfigError, match="--oversubscribe"):
        check_cores(load_config(flags={"workers": {"count": 10**4, "launcher": "ray"}}))


def test_the_name_of_a_run_does_not_depend_on_it(workspace: Path) -> None:
    dataset = sightline.open_dataset("shapes", workspace=workspace)
    assert run_name(dataset, config()) == run_name(dataset, config(oversubscribe=True, count=4))
