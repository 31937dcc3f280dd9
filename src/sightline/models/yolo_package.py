"""Ultralytics' package: its networks and its loss, and nothing else of it. The only file that imports it.

It is asked for when a YOLO is made, and kept from what it does on its own: writing settings into the home directory,
looking for a network, installing packages, choosing the number of threads of the process.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import ConfigError, MissingExtraError

PACKAGE = "ultralytics"
_QUIET = {
    "YOLO_OFFLINE": "true",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_VERBOSE": "false",
}
_GAINS = ("box", "cls", "dfl")
_UNUSED = {"batch_idx": 1, "cls": 1, "bboxes": 4}


def is_installed() -> bool:
    """Whether the package is there."""
    return find_spec(PACKAGE) is not None


def make_network(name: str, num_classes: int) -> nn.Module:
    """A network with fresh weights.

    It takes B x 3 x H x W from 0 to 1 and gives what its head says at every place, not decoded: `boxes` B x 4R x P,
    `scores` (logits) B x C x P, and `feats`, the maps before it.

    Args:
        name: Such as yolov8n or yolo11s.

    Raises:
        MissingExtraError: The package is not installed.
        ConfigError: The installed version does not have this network.
    """
    package = _package()
    try:
        network: nn.Module = package.tasks.DetectionModel(f"{name}.yaml", nc=num_classes, verbose=False)
    except FileNotFoundError:
        raise ConfigError(f"ultralytics {package.version} has no {name!r}: install another version of it") from None
    head = network.model[-1]  # type: ignore[index]
    if type(head) is not package.head.Detect or getattr(head, "one2one_cv2", None) is not None:
        raise ConfigError(f"{name!r} of ultralytics {package.version} is no detector like YOLOv8 and YOLO11")
    head.__class__ = package.raw_head
    network.args = package.settings
    return network


def fit_width(network: nn.Module, name: str, width: int) -> None:
    """Make the branch of a network that tells classes apart so wide, with fresh weights; nothing if it is.

    The package makes it as wide as the classes are many, within limits; a width that it never makes is left to the
    loading of weights to refuse.
    """
    head: Any = network.model[-1]  # type: ignore[index]
    if head.cv3[0][-1].in_channels == width:
        return
    like = next(network.parameters())
    branches = make_network(name, width).model[-1].cv3  # type: ignore[index, union-attr]
    if branches[0][-1].in_channels != width:
        return
    for branch in branches:
        branch[-1] = nn.Conv2d(width, head.nc, 1)
    head.cv3 = branches.to(like).to(memory_format=torch.channels_last).train(head.training)
    head.bias_init()


def loss_sums(network: nn.Module, said: dict[str, Any], objects: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The parts of the package's loss before it divides them, and what it divides them by.

    Args:
        said: What the network has given, in single precision at least.
        objects: B x N x 5, label and box (xyxy in pixels) of each object of each image, filled up with zeros.
    """
    criterion = _package().loss.v8DetectionLoss(network)
    of_classes, of_boxes = criterion.bce, criterion.bbox_loss
    nothing = said["boxes"].sum() * 0  # Keeps the gradient's path where no image has objects.
    sums, divisor = dict.fromkeys(_GAINS, nothing), nothing.detach()

    def add_classes(logits: Tensor, wanted: Tensor) -> Tensor:
        nonlocal divisor
        each: Tensor = of_classes(logits, wanted)
        sums["cls"], divisor = each.sum(), wanted.sum().detach()
        return each

    def add_boxes(*given: Tensor) -> tuple[Tensor, Tensor]:
        whole = (*given[:5], torch.ones_like(given[5]), *given[6:])
        sums["box"], sums["dfl"] = of_boxes(*whole)
        return sums["box"], sums["dfl"]

    criterion.bce, criterion.bbox_loss = add_classes, add_boxes
    # It would lay objects out in single precision, whatever the network's is.
    criterion.preprocess = lambda *_, **__: objects
    criterion(said, {name: objects.new_zeros(0, columns) for name, columns in _UNUSED.items()})
    return sums, divisor


def loss_weights() -> dict[str, float]:
    """How much each part of the loss counts, by the package's default."""
    settings = _package().settings
    return {name: float(getattr(settings, name)) for name in _GAINS}


@cache
def _package() -> SimpleNamespace:
    if not is_installed():
        raise MissingExtraError(PACKAGE, "yolo")
    with _kept_to_itself():
        import ultralytics
        from ultralytics.cfg import get_cfg
        from ultralytics.nn import tasks
        from ultralytics.nn.modules import head
        from ultralytics.utils import loss

    class RawHead(head.Detect):
        """A head that says what it says in training, at all times: decoding is ours, the same for all engines."""

        def forward(self, maps: list[Tensor]) -> dict[str, Any]:
            said: dict[str, Any] = self.forward_head(maps, **self.one2many)
            return said

    version = ultralytics.__version__
    return SimpleNamespace(tasks=tasks, head=head, loss=loss, raw_head=RawHead, settings=get_cfg(), version=version)


@contextmanager
def _kept_to_itself() -> Iterator[None]:
    """While this lasts the package may be imported: its settings go nowhere, and ours stay as they are."""
    before, threads = dict(os.environ), torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="sightline-yolo-") as settings:
        os.environ.update({**_QUIET, "YOLO_CONFIG_DIR": settings})
        try:
            yield
        finally:
            for name in os.environ.keys() - before.keys() - _QUIET.keys():
                del os.environ[name]
            os.environ.update({**before, **_QUIET})
            torch.set_num_threads(threads)
