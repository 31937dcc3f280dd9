"""Weights to start from: what fits is taken and said, what does not is an error, and nothing in a file is run."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import models as tv
from torchvision.models import detection as tvd
from torchvision.ops import FrozenBatchNorm2d

from sightline.errors import ConfigError, DamagedError, NotFoundError, StorageError
from sightline.models.detector import Detector
from sightline.models.factory import FAMILIES, make_model
from sightline.models.weights import cached_file, fetch_weights, load_weights, read_weights

MOBILENET2 = Path("/work/shared/weights/mobilenet_v2-b0353104.pth")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def saved(weights: dict[str, Any], file: Path) -> Path:
    torch.save(weights, file)
    return file


def equal(model: Detector, weights: dict[str, Tensor], prefix: str) -> bool:
    own = model.state_dict()
    return all(torch.equal(own[prefix + name], tensor) for name, tensor in weights.items() if prefix + name in own)


DETECTORS = {
    "ssdlite": (tvd.ssdlite320_mobilenet_v3_large, 91),
    "fasterrcnn-mobilenet-320": (tvd.fasterrcnn_mobilenet_v3_large_320_fpn, 91),
    "retinanet": (tvd.retinanet_resnet50_fpn_v2, 91),
    "fcos": (tvd.fcos_resnet50_fpn, 91),
}


@pytest.mark.parametrize("name", DETECTORS)
def test_a_whole_detector_is_taken_but_for_its_heads(name: str, tmp_path: Path) -> None:
    build, classes = DETECTORS[name]
    weights = build(weights=None, weights_backbone=None, num_classes=classes).state_dict()
    model = make_model(name, num_classes=3)
    heads = {key for key in model.state_dict() if key.startswith(model.heads)}
    taken = load_weights(model, saved(weights, tmp_path / "coco.pth"))
    assert set(taken.fresh) <= heads
    assert 2 <= len(taken.fresh) <= 12
    assert set(taken.unused) == {key.removeprefix("model.") for key in taken.fresh}
    assert taken.taken == len(weights) - len(taken.unused)
    kept = {key: tensor for key, tensor in weights.items() if key not in taken.unused}
    assert equal(model, kept, "model.")


def test_frozen_batchnorm_of_torchvision_becomes_ours(tmp_path: Path) -> None:
    """Files of torchvision's detectors were made with FrozenBatchNorm2d: no counters, older names in the pyramid."""
    model = make_model("fasterrcnn-mobilenet-320", num_classes=3)
    backbone = tvd.backbone_utils._mobilenet_extractor(
        tv.mobilenet_v3_large(weights=None, norm_layer=FrozenBatchNorm2d), True, 6
    )
    for buffer in backbone.buffers():
        buffer.uniform_(0.5, 2)
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    assert not any(name.endswith("num_batches_tracked") for name in weights)
    old = {
        name.replace(".0.0.", ".0.").replace(".1.0.", ".1.") if ".fpn." in name else name: tensor
        for name, tensor in weights.items()
    }
    assert "backbone.fpn.inner_blocks.1.weight" in old
    taken = load_weights(model, saved({"model": old, "epoch": 3}, tmp_path / "coco.pth"))
    assert (taken.taken, taken.unused) == (len(weights), [])
    assert not [name for name in taken.fresh if name.startswith("model.backbone")]
    assert equal(model, weights, "model.")
    images = torch.randn(1, 3, 64, 64)
    frozen = backbone.eval()(images)
    ours = model.eval().model.backbone(images)  # type: ignore[union-attr, operator]
    for key, features in frozen.items():
        torch.testing.assert_close(ours[key], features, rtol=1e-3, atol=1e-4)
    assert {type(module) for module in model.modules() if "BatchNorm" in type(module).__name__} == {nn.BatchNorm2d}


CLASSIFIERS = {
    "fasterrcnn-mobilenet-320": (tv.mobilenet_v3_large, "features.", "model.backbone.body."),
    "fasterrcnn-mobilenetv2": (tv.mobilenet_v2, "features.", "model.backbone.body."),
    "fcos": (tv.resnet50, "", "model.backbone.body."),
    "resnet18": (tv.resnet18, "", "network."),
    "mobilenet": (tv.mobilenet_v3_large, "", "network."),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_becomes_a_backbone_or_a_classifier(name: str, tmp_path: Path) -> None:
    build, cut, put = CLASSIFIERS[name]
    weights = build(weights=None).state_dict()
    model = make_model(name, num_classes=3)
    taken = load_weights(model, saved(weights, tmp_path / "imagenet.pth"))
    assert all(name.startswith(("fc.", "classifier.")) for name in taken.unused)
    begins = tuple({"model.backbone.fpn", "model.rpn", "model.roi_heads", "model.head", *model.heads})
    assert all(name.startswith(begins) for name in taken.fresh)
    used = {key.removeprefix(cut): tensor for key, tensor in weights.items() if key not in taken.unused}
    assert len(used) == taken.taken > 100
    assert equal(model, used, put)


@pytest.mark.skipif(not MOBILENET2.is_file(), reason=f"{MOBILENET2} is not here")
def test_published_mobilenet(tmp_path: Path) -> None:
    taken = load_weights(make_model("fasterrcnn-mobilenetv2", num_classes=6), MOBILENET2)
    assert str(taken).startswith("took 312 of 314 tensors; 2 in the file not used (classifier.1.weight, class")


@pytest.mark.parametrize("name", ["nano", "ssdlite", "resnet18"])
def test_our_own_models_are_taken_whole(name: str, tmp_path: Path) -> None:
    weights = make_model(name, num_classes=3, size=64).state_dict()
    save_file({key: tensor.contiguous() for key, tensor in weights.items()}, tmp_path / "w.safetensors")
    model = make_model(name, num_classes=3, size=64)
    taken = load_weights(model, tmp_path / "w.safetensors")
    assert (taken.taken, taken.unused, taken.fresh) == (len(weights), [], [])
    assert str(taken) == f"took {len(weights)} of {len(weights)} tensors"
    assert equal(model, weights, "")
    for other, heads in ((make_model(name, num_classes=5, size=64), True), (model, False)):
        taken = load_weights(other, tmp_path / "w.safetensors", heads=heads)
        assert taken.fresh
        assert all(key.startswith(other.heads) for key in taken.fresh)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            {"conv.kernel": torch.ones(3), "b": torch.ones(1)},
            r"nothing .* fits .*it holds conv\.kernel, b; expected net",
        ),
        (tv.resnet18(weights=None).state_dict(), r"nothing .* fits"),
    ],
)
def test_a_file_from_which_nothing_fits(weights: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_weights(make_model("nano", num_classes=3), saved(weights, tmp_path / "w.pth"))


def test_weights_of_another_model(tmp_path: Path) -> None:
    file = saved(tv.resnet18(weights=None).state_dict(), tmp_path / "resnet18.pth")
    with pytest.raises(
        ConfigError, match=r"another model: network\.layer1.* is \(64, 64, 3, 3\) there and \(64, 64, 1"
    ):
        load_weights(make_model("resnet50", num_classes=3), file)


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("wrap", [lambda evil: evil, lambda evil: {"model": {"conv.weight": torch.ones(1), "x": evil}}])
@pytest.mark.parametrize("name", ["w.pth", "w.pt", "w.safetensors"])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_malicious_pickle_does_not_run(tmp_path: Path, wrap: Any, name: str, legacy: bool) -> None:
    torch.save(wrap(Evil(tmp_path / "ran")), tmp_path / name, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(DamagedError, match="refused, nothing in it was run"):
        read_weights(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a plain file"),
        (b"<html>404</html>", "not a plain file"),
        (b"PK\x03\x04 torn", "not a plain file"),
    ],
)
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_files_of_something_else(tmp_path: Path, content: bytes, message: str, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedError, match=message):
        read_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "hold a list without named tensors"),
        ({"lr": 0.1}, "hold a dict without named tensors"),
        ({"conv.weight": torch.tensor([1, float("nan")])}, r"not finite: conv\.weight"),
    ],
)
def test_values_that_are_no_weights(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DamagedError, match=message):
        read_weights(saved(value, tmp_path / "w.pth"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="are not there"):
        read_weights(tmp_path / "none.pth")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of files, and an empty cache."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "files"))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_downloads_are_checked_and_kept(server: str, tmp_path: Path) -> None:
    import hashlib

    good = f"net-{hashlib.sha256(b'weights').hexdigest()[:8]}.pth"
    for name in (good, "net-00000000.pth"):
        (tmp_path / "files" / name).write_bytes(b"weights")
    file = fetch_weights(f"{server}/{good}", what="weights")
    assert file == cached_file(f"{server}/{good}")
    assert file.read_bytes() == b"weights"
    (tmp_path / "files" / good).unlink()
    assert fetch_weights(f"{server}/{good}", what="weights") == file
    with pytest.raises(StorageError, match="another hash"):
        fetch_weights(f"{server}/net-00000000.pth", what="weights")
    assert [found.name for found in file.parent.iterdir()] == [good]
    file.write_bytes(b"changed")  # By another program or user, after it was downloaded.
    with pytest.raises(DamagedError, match=r"not what was published: SHA-256 .*Remove that file"):
        fetch_weights(f"{server}/{good}", what="weights")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/net-12345678.pth", "{server}/missing-12345678.pth"])
def test_without_a_network_the_message_says_what_to_do(server: str, url: str) -> None:
    url = url.format(server=server)
    with pytest.raises(StorageError) as caught:
        fetch_weights(url, what="coco weights of ssdlite")
    message = str(caught.value)
    assert message.startswith("the coco weights of ssdlite could not be downloaded (")
    assert url in message
    assert "--weights FILE" in message
    assert str(cached_file(url)) in message


def test_published_weights_have_their_hash_in_their_name() -> None:
    urls = {url for family in FAMILIES.values() for url in family.urls.values()}
    assert len(urls) >= 10
    assert all(url.startswith("https://download.pytorch.org/") for url in urls)
