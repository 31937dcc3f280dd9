"""Other people's weights become a bundle whole or not at all, and nothing in their files runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import models as tv
from torchvision.models import detection as tvd

import sightline
from sightline.errors import ConfigError, DamagedError, ExistsError, FormatError, NotFoundError
from sightline.models.bundle import open_bundle
from sightline.registering.conversion import parse_classes
from sightline.structures import Classification


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def test_a_state_dict_of_torchvision(tmp_path: Path) -> None:
    theirs = tv.resnet18(weights=None, num_classes=3).eval()
    torch.save(theirs.state_dict(), tmp_path / "net.pth")
    found = sightline.import_model(tmp_path / "net.pth", tmp_path / "net", model="resnet18", classes="a,b,c", size=64)
    assert open_bundle(tmp_path / "net") == found
    assert (found.info.licence, found.info.dataset, found.info.classes) == ("BSD-3-Clause", None, ("a", "b", "c"))
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    (answer,) = sightline.load_model(found.path, workspace=tmp_path).predict(pixels)
    assert isinstance(answer, Classification)
    means, stds = (torch.tensor(values)[:, None, None] for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = theirs(((torch.from_numpy(pixels).permute(2, 0, 1) / 255 - means) / stds)[None]).softmax(1)[0]
    np.testing.assert_allclose(answer.scores, expected.detach().numpy(), atol=1e-4)


def test_a_detector_counts_the_background_itself(tmp_path: Path) -> None:
    theirs = tvd.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    torch.save({"model": theirs.state_dict(), "epoch": 3}, tmp_path / "net.pt")
    (tmp_path / "names.txt").write_text("cat\n\ndog\n")
    for classes in ("cat,dog", str(tmp_path / "names.txt")):
        to = tmp_path / f"net-{len(classes)}"
        found = sightline.import_model(tmp_path / "net.pt", to, model="ssdlite", classes=classes)
        assert found.info.classes == ("cat", "dog")
    with pytest.raises(ConfigError, match=r"not a whole ssdlite of 3 classes: it gives nothing for model\.head"):
        sightline.import_model(tmp_path / "net.pt", tmp_path / "no", model="ssdlite", classes="cat,dog,cow")
    with pytest.raises(ExistsError, match="is there already"):
        sightline.import_model(tmp_path / "net.pt", to, model="ssdlite", classes="cat,dog")
    assert not (tmp_path / "no").exists()


def test_a_backbone_alone_is_no_model(tmp_path: Path) -> None:
    torch.save(tv.mobilenet_v2(weights=None).state_dict(), tmp_path / "net.pth")
    with pytest.raises(ConfigError, match="is not a whole fasterrcnn-mobilenetv2"):
        sightline.import_model(tmp_path / "net.pth", tmp_path / "no", model="fasterrcnn-mobilenetv2", classes="a")


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.pkl", "net.ckpt", "net.safetensors"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_payload_does_not_run(tmp_path: Path, name: str, inside: bool) -> None:
    weights = tv.resnet18(weights=None, num_classes=2).state_dict()
    payload = Payload(tmp_path / "ran")
    torch.save({**weights, "extra": payload} if inside else payload, tmp_path / name)
    with pytest.raises(DamagedError, match="nothing in it was run"):
        sightline.import_model(tmp_path / name, tmp_path / "net", model="resnet18", classes="a,b")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("text", "names"), [("a", ("a",)), ("a, b ,c", ("a", "b", "c")), ("bad solder", ("bad solder",))]
)
def test_classes(text: str, names: tuple[str, ...]) -> None:
    assert parse_classes(text) == names


@pytest.mark.parametrize(("text", "error"), [("", ConfigError), ("a,,b", ConfigError), ("./no.txt", NotFoundError)])
def test_classes_that_are_none(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_classes(text)


@pytest.mark.parametrize("text", ["names: [a, b]", "names: {1: b, 0: a}", "path: .\nnames:\n  0: a\n  1: b\n"])
def test_classes_of_a_yaml_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.yaml").write_text(text)
    assert parse_classes(str(tmp_path / "names.yaml")) == ("a", "b")


@pytest.mark.parametrize("text", ["a: 1", "names: 7", "names: {1: a}", "- a", "names: [", "!!python/name:os.x"])
def test_yaml_files_without_classes(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(FormatError):
        parse_classes(str(tmp_path / "names.yaml"))


def test_a_file_of_names_that_is_not_there_is_no_name() -> None:
    with pytest.raises(NotFoundError, match=r"'names\.yaml' is not there"):
        parse_classes("names.yaml")


def test_weights_alone_need_a_model_and_classes(tmp_path: Path) -> None:
    torch.save(tv.resnet18(weights=None, num_classes=2).state_dict(), tmp_path / "net.pth")
    with pytest.raises(ConfigError, match="say with --model what they are of"):
        sightline.import_model(tmp_path / "net.pth", tmp_path / "net", classes="a,b")
    with pytest.raises(ConfigError, match="say with --classes what they are of"):
        sightline.import_model(tmp_path / "net.pth", tmp_path / "net", model="resnet18")
    with pytest.raises(ConfigError, match="leave --licence out"):
        sightline.import_model(tmp_path / "net.pth", tmp_path / "net", model="resnet18", classes="a,b", licence="MIT")
