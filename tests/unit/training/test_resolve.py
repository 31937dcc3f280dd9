"""What a run will do is decided before it has a name."""

import hashlib
from pathlib import Path

import pytest
import torch

import sightline
from sightline.config import Config, load_config
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError, DamagedError, NotFoundError, StorageError
from sightline.models import weights as weights_module
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import FAMILIES, make_model
from sightline.models.weights import cached_file
from sightline.training import precision
from sightline.training.identity import run_name
from sightline.training.resolve import resolve_training, start_from_weights
from sightline.workspace import Workspace


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    sightline.synth("shape-classes", "classes", images=20, seed=1, workspace=place)
    return place


@pytest.fixture
def shapes(root: Path) -> Dataset:
    return sightline.open_dataset("shapes", workspace=root)


@pytest.fixture
def classes(root: Path) -> Dataset:
    return sightline.open_dataset("classes", workspace=root)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torch's cache, empty; and no network."""

    def refuse(url: str, file: Path) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(weights_module, "_download", refuse)
    place = cached_file("x").parent
    place.mkdir(parents=True)
    return place


def pretend_cached(model: str, weights: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put a file in the cache under a name that holds its hash."""
    sha = hashlib.sha256(model.encode()).hexdigest()
    url = f"https://example.org/{model}-{sha[:8]}.pth"
    monkeypatch.setitem(FAMILIES[model].urls, weights, url)
    cached_file(url).write_bytes(model.encode())
    return sha


def config(**train: object) -> Config:
    return load_config(flags={"train": train})


def own_model(place: Path, dataset: Dataset, name: str = "nano") -> dict[str, torch.Tensor]:
    model = make_model(name, num_classes=len(dataset.classes), size=64)
    save_bundle(place, model.state_dict(), describe(model, name=name, classes=tuple(dataset.classes)), {})
    return model.state_dict()


def test_nothing_at_hand_is_nano_from_scratch(shapes: Dataset) -> None:
    resolved, notes = resolve_training(config(), shapes)
    train = resolved.train
    assert (train.model, train.weights, train.weights_hash, train.size) == ("nano", "none", None, 640)
    assert (train.optimizer, train.lr, train.weight_decay, train.batchnorm) == ("adamw", 0.002, 0.05, "sync")
    assert len(notes) == 1
    assert notes[0].startswith("model nano, from scratch: no COCO weights are in ")
    assert "--weights coco" in notes[0]


def test_weights_at_hand_choose_the_model(shapes: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    sha = pretend_cached("ssdlite", "coco", monkeypatch)
    resolved, notes = resolve_training(config(batch=8), shapes)
    train = resolved.train
    assert (train.model, train.weights, train.weights_hash, train.size) == ("ssdlite", "coco", sha, 320)
    assert (train.optimizer, train.lr, train.weight_decay, train.batchnorm) == ("sgd", 0.005, 5e-4, "frozen")
    assert notes[0].startswith("model ssdlite: its coco weights are at hand in ")
    assert resolve_training(config(weights="none"), shapes)[0].train.model == "nano"


def test_classifiers(classes: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved, notes = resolve_training(config(), classes)
    assert (resolved.train.model, resolved.train.weights) == ("resnet18", "none")
    assert notes == ["model resnet18: starts from scratch, for no weights of it are at hand (--weights imagenet "
                     "downloads some)"]  # fmt: skip
    sha = pretend_cached("resnet18", "imagenet", monkeypatch)
    resolved, notes = resolve_training(config(), classes)
    assert (resolved.train.weights, resolved.train.weights_hash) == ("imagenet", sha)
    assert "starts from its imagenet weights, at hand in" in notes[0]


def test_resolving_twice_changes_nothing(shapes: Dataset, tmp_path: Path) -> None:
    own_model(tmp_path / "model", shapes)
    for given in (config(), config(weights=str(tmp_path / "model"), lr=0.1, optimizer="sgd")):
        once, _ = resolve_training(given, shapes)
        assert resolve_training(once, shapes) == (once, [])
        assert run_name(shapes, once) == run_name(shapes, resolve_training(once, shapes)[0])


def test_what_the_user_gave_stays(shapes: Dataset) -> None:
    given = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "batchnorm": "local", "size": 96, "model": "fcos"}
    train = resolve_training(config(**given), shapes)[0].train
    assert {name: getattr(train, name) for name in given} == given


def test_a_run_of_ours_by_name_directory_or_file(shapes: Dataset, root: Path, tmp_path: Path) -> None:
    weights = own_model(root / "runs" / "first" / "model", shapes)
    names = set()
    for reference in (
        "first",
        str(root / "runs" / "first"),
        str(root / "runs" / "first" / "model" / "weights.safetensors"),
    ):
        resolved, notes = resolve_training(config(weights=reference), shapes, workspace=Workspace(root))
        assert (resolved.train.model, resolved.train.lr) == ("nano", 0.001)
        assert notes == ["model nano: that is what the weights are of"]
        names.add(run_name(shapes, resolved))
        model = make_model("nano", num_classes=len(shapes.classes), size=64)
        said = start_from_weights(model, resolved.train, shapes)
        assert said == f"weights weights.safetensors: took {len(weights)} of {len(weights)} tensors"
        assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert len(names) == 1


def test_heads_of_other_classes_start_fresh(shapes: Dataset, classes: Dataset, tmp_path: Path) -> None:
    model = make_model("nano", num_classes=len(shapes.classes))
    info = describe(model, name="nano", classes=tuple(f"other {name}" for name in shapes.classes))
    save_bundle(tmp_path / "model", model.state_dict(), info, {})
    train = resolve_training(config(weights=str(tmp_path / "model")), shapes)[0].train
    said = start_from_weights(make_model("nano", num_classes=len(shapes.classes)), train, shapes)
    assert "2 of the model start fresh (net.class_map.weight, net.class_map.bias)" in str(said)


def test_the_identity_has_the_real_model_and_its_weights(shapes: Dataset, tmp_path: Path) -> None:
    auto, nano = (resolve_training(config(model=name), shapes)[0] for name in ("auto", "nano"))
    assert run_name(shapes, auto) == run_name(shapes, nano)
    assert run_name(shapes, auto).startswith("shapes-nano-")
    names = set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        own_model(tmp_path / "model", shapes)
        names.add(run_name(shapes, resolve_training(config(weights=str(tmp_path / "model")), shapes)[0]))
    assert len(names) == 2


def test_a_published_file_tells_its_model(shapes: Dataset, classes: Dataset, tmp_path: Path) -> None:
    for name, dataset, model in (
        ("mobilenet_v2-b0353104.pth", shapes, "fasterrcnn-mobilenetv2"),
        ("resnet50-0676ba61.pth", classes, "resnet50"),
        ("fasterrcnn_mobilenet_v3_large_320_fpn-907ea3f9.pth", shapes, "fasterrcnn-mobilenet-320"),
    ):
        (tmp_path / name).write_bytes(b"")
        assert resolve_training(config(weights=str(tmp_path / name)), dataset)[0].train.model == model
    (tmp_path / "mine.pth").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"say with --model .*mine\.pth"):
        resolve_training(config(weights=str(tmp_path / "mine.pth")), shapes)


@pytest.mark.parametrize(
    ("train", "error", "message"),
    [
        ({"model": "nanno"}, ConfigError, "'nanno' is not known"),
        (
            {"model": "nano", "weights": "coco"},
            ConfigError,
            "no published coco weights of model 'nano'; there are of ssd",
        ),
        ({"weights": "nothing"}, NotFoundError, "give coco, imagenet, none, a file"),
        ({"weights": "./nothing.pth"}, NotFoundError, "give coco, imagenet, none, a file"),
        ({"weights": "coco"}, StorageError, "coco weights of fasterrcnn-mobilenet could not be downloaded .no route"),
        ({"model": "fcos", "weights": "imagenet"}, StorageError, r"Wanted: https://.*/resnet50-0676ba61\.pth"),
    ],
)
def test_mistakes_are_named(shapes: Dataset, train: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_training(config(**train), shapes)


def test_damaged_files_are_noticed(shapes: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cached("ssdlite", "coco", monkeypatch)
    cached_file(FAMILIES["ssdlite"].urls["coco"]).write_bytes(b"torn")
    with pytest.raises(DamagedError, match="not what was published"):
        resolve_training(config(), shapes)
    (tmp_path / "w.pth").write_bytes(b"x")
    with pytest.raises(DamagedError, match=r"train\.weights_hash asks for 123"):
        resolve_training(config(model="nano", weights=str(tmp_path / "w.pth"), weights_hash="123"), shapes)
    own_model(tmp_path / "model", shapes)
    (tmp_path / "model" / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(DamagedError, match="not as it was written"):
        resolve_training(config(weights=str(tmp_path / "model")), shapes)


def test_a_run_has_the_same_name_on_every_processor(shapes: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """What numbers workers are quick in is theirs to say, and not the driver's."""
    names = set()
    for able in (True, False):
        monkeypatch.setattr(precision, "_multiplies_bfloat16", lambda able=able: able)
        config, _ = resolve_training(Config(), shapes)
        assert config.train.precision == "auto"
        names.add(run_name(shapes, config))
    assert len(names) == 1
