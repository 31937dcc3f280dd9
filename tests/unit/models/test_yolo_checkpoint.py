"""Files of Ultralytics are read without running anything in them."""

import os
import pickle
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sightline
from sightline.config import load_config
from sightline.errors import ConfigError, DamagedError, FormatError
from sightline.models.factory import make_model
from sightline.models.weights import load_weights, read_weights
from sightline.models.yolo_checkpoint import family_in, is_yolo_checkpoint, read_yolo_checkpoint
from sightline.models.yolo_package import make_network


class Payload:
    """What a hostile file holds."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


def network(name: str = "yolov8n", classes: int = 3) -> nn.Module:
    """As the package itself would make it."""
    from ultralytics.nn.modules.head import Detect

    made = make_network(name, classes)
    made.model[-1].__class__ = Detect
    made.names = dict(enumerate(["cat", "dog", "emu", "fox"][:classes]))
    return made


def save(file: Path, model: Any, **others: Any) -> Path:
    """As its trainer saves it, in half precision."""
    held = {"epoch": -1, "model": model, "ema": None, "train_args": {"model": "x.pt"}, "license": "AGPL-3.0", **others}
    torch.save(held, file)
    return file


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n"])
def test_tensors_names_and_architecture_are_read(tmp_path: Path, name: str) -> None:
    made = network(name)
    file = save(tmp_path / "last.pt", made.half())
    assert is_yolo_checkpoint(file)
    found = read_yolo_checkpoint(file)
    assert (found.classes, found.model) == (("cat", "dog", "emu"), name)
    expected = made.float().state_dict()
    assert found.weights.keys() == expected.keys()
    assert all(torch.equal(found.weights[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    ("imgsz", "size"), [(320, 320), ([480, 640], 640), (300, 320), (None, None), ("large", None), (True, None)]
)
def test_the_size_it_was_trained_at_is_read(tmp_path: Path, imgsz: Any, size: int | None) -> None:
    file = save(tmp_path / "last.pt", network(), train_args={"model": "x.pt", "imgsz": imgsz})
    assert read_yolo_checkpoint(file).size == size


def test_an_imported_model_takes_images_of_the_size_it_was_trained_at(tmp_path: Path) -> None:
    file = save(tmp_path / "last.pt", network(), train_args={"model": "x.pt", "imgsz": 320})
    config = load_config(sets=("train.size=96",))
    settings: list[dict[str, Any]] = [{}, {"model": "yolov8n", "classes": "a,b,c"}, {"config": config}, {"size": 64}]
    sizes = [
        sightline.import_model(file, tmp_path / f"net-{number}", **given).info.size
        for number, given in enumerate(settings)
    ]
    assert sizes == [320, 320, 96, 64]


def test_the_average_of_weights_is_taken_where_there_is_one(tmp_path: Path) -> None:
    one, other = network(), network()
    file = save(tmp_path / "last.pt", one, ema=other)
    assert torch.equal(read_yolo_checkpoint(file).weights["model.0.conv.weight"], other.model[0].conv.weight)


def test_a_model_takes_all_of_a_file_with_its_classes(tmp_path: Path) -> None:
    file = save(tmp_path / "last.pt", network())
    taken = load_weights(make_model("yolov8n", num_classes=3), file)
    assert (taken.unused, taken.fresh) == ([], [])


def test_heads_of_other_classes_start_fresh(tmp_path: Path) -> None:
    file = save(tmp_path / "last.pt", network(classes=80))
    taken = load_weights(make_model("yolov8n", num_classes=3), file, heads=False)
    assert taken.fresh == [
        f"network.model.22.cv3.{scale}.2.{kind}" for scale in range(3) for kind in ("weight", "bias")
    ]


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n"])
def test_what_was_tuned_from_many_classes_stays_as_wide_as_it_was(tmp_path: Path, name: str) -> None:
    """The package makes the branch of classes 80 wide for COCO, 64 for a few classes, and tunes COCO's."""
    coco = save(tmp_path / "coco.pt", network(name, classes=80))
    tuned = make_model(name, num_classes=4)
    load_weights(tuned, coco, heads=False)
    theirs = network(name, classes=4)
    theirs.load(network(name, classes=80), verbose=False)  # type: ignore[operator]
    own = {name.removeprefix("network."): weight.shape for name, weight in tuned.state_dict().items()}
    assert own == {name: weight.shape for name, weight in theirs.state_dict().items()}
    again = make_model(name, num_classes=4)
    assert (load_weights(again, save(tmp_path / "last.pt", theirs)).fresh) == []
    third = make_model(name, num_classes=4)
    third.load_state_dict(tuned.state_dict())
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(third.eval()(images)[0], tuned.eval()(images)[0])


def test_a_width_that_the_package_never_makes_is_refused(tmp_path: Path) -> None:
    odd = {
        name: weight
        for name, weight in make_model("yolov8n", num_classes=3).state_dict().items()
        if ".cv3." not in name
    }
    odd["network.model.22.cv3.0.2.weight"] = torch.zeros(3, 7, 1, 1)
    with pytest.raises(RuntimeError, match="size mismatch"):
        make_model("yolov8n", num_classes=3).load_state_dict(odd, strict=False)


@pytest.mark.parametrize("place", ["top", "in the model", "instead of a tensor", "plain pickle"])
def test_a_hostile_file_is_refused_by_name_and_not_run(tmp_path: Path, place: str) -> None:
    marker, file, made = tmp_path / "marker", tmp_path / "evil.pt", network()
    match place:
        case "top":
            save(file, made, extra=Payload(marker))
        case "in the model":
            made.extra = Payload(marker)
            save(file, made)
        case "instead of a tensor":
            made.model[0].conv._buffers["weight"] = Payload(marker)
            save(file, made)
        case _:
            file.write_bytes(pickle.dumps({"model": Payload(marker)}, protocol=2))
    with pytest.raises(DamagedError, match="nothing in it was run") as refused:
        read_weights(file)
    assert not marker.exists()
    if place != "plain pickle":
        assert "posix.system" in str(refused.value)


@pytest.mark.parametrize("thing", [eval, getattr, __import__, torch.hub.load, types.SimpleNamespace])
def test_functions_are_refused_by_name(tmp_path: Path, thing: Any) -> None:
    file = save(tmp_path / "evil.pt", network(), extra=thing)
    with pytest.raises(DamagedError, match=thing.__name__):
        read_weights(file)


def test_names_that_sound_like_the_package_are_shells_that_do_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    """What stands behind such a name here is not looked up, so it does not matter what it is."""
    import ultralytics.utils.downloads as downloads

    def run(*_: Any) -> None:
        raise AssertionError("it was called")

    class Call:
        def __reduce__(self) -> Any:
            return downloads.safe_download, ("http://localhost/",)

    file = save(tmp_path / "odd.pt", network(), extra=Call())
    monkeypatch.setattr(downloads, "safe_download", run)
    assert read_yolo_checkpoint(file).model == "yolov8n"


def test_a_module_that_is_referenced_many_times_is_visited_once(tmp_path: Path) -> None:
    """Sixteen levels that each refer twice to the next one: 65,536 paths to one convolution."""
    inner: nn.Module = nn.Conv2d(3, 4, 1, bias=False)
    for _ in range(16):
        inner = nn.Sequential(inner, inner)
    made = network()
    made.model = inner
    assert list(read_yolo_checkpoint(save(tmp_path / "bomb.pt", made)).weights) == ["model" + ".0" * 16 + ".weight"]


def test_other_tasks_and_other_contents_are_refused(tmp_path: Path) -> None:
    from ultralytics.nn.tasks import SegmentationModel

    with pytest.raises(FormatError, match="no detector"):
        read_yolo_checkpoint(save(tmp_path / "seg.pt", SegmentationModel("yolov8n-seg.yaml", nc=2, verbose=False)))
    with pytest.raises(FormatError, match="hold no model"):
        read_yolo_checkpoint(save(tmp_path / "odd.pt", None, extra=network()))


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "last.pt", network())
    file.write_bytes(file.read_bytes()[:-2000])
    assert not is_yolo_checkpoint(file)
    with pytest.raises(DamagedError, match="nothing in it was run"):
        read_weights(file)


def test_a_file_that_does_not_say_what_it_is(tmp_path: Path) -> None:
    made = network()
    made.yaml = {"nc": 3}
    file = save(tmp_path / "last.pt", made)
    with pytest.raises(ConfigError, match="give --model"):
        family_in(file, read_yolo_checkpoint(file))
