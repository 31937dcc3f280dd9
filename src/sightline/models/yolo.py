"""`yolov8n` to `yolo11x`: networks and loss of the package ultralytics (AGPL-3.0) in our loop, by the extra `yolo`.

Around them is what is around a YOLO in ONNX: Ultralytics' preprocessing and suppression, so that figures can be
compared with its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.models.detector import Detector, LossTerm, Target, zero_loss
from sightline.models.graph import IMAGES, Graph
from sightline.models.inference import check_sides
from sightline.models.yolo_boxes import decode_predictions
from sightline.models.yolo_inference import GRAPH, YoloInference
from sightline.models.yolo_package import fit_width, loss_sums, loss_weights, make_network


class YoloDetector(Detector):
    """See the module docstring.

    Args:
        num_classes: Classes to tell apart.
        name: Such as yolov8n or yolo11s.
        size: Longest side of the images it is given, in pixels.
    """

    stride = 32

    def __init__(self, num_classes: int, *, name: str, size: int = 640) -> None:
        super().__init__()
        self.name, self.size = name, size
        self.network = make_network(name, num_classes).to(memory_format=torch.channels_last)
        self.branch = f"network.model.{len(self.network.model) - 1}.cv3."  # type: ignore[arg-type]
        self.heads = tuple(f"{self.branch}{scale}.2." for scale in range(3))

    @property
    def inference(self) -> YoloInference:
        """See `Detector.inference`."""
        return YoloInference(self.size, stride=self.stride)

    def fit(self, weights: Mapping[str, Tensor]) -> None:
        """Make the branch that tells classes apart as wide as in the weights.

        How wide it is depends on the classes of the network that training once started from, not on those of today.
        """
        last = weights.get(f"{self.branch}0.2.weight")
        if last is not None and last.dim() > 1:
            fit_width(self.network, self.name, last.shape[1])

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take the weights and their shape."""
        self.fit(state_dict)
        return super().load_state_dict(state_dict, strict, assign)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Decoded predictions of every place, B x (4 + C) x P: centre, width and height in pixels, and scores.

        Args:
            images: B x 3 x H x W uint8, H and W multiples of 32.
        """
        said = self._say(images)
        height, width = images.shape[-2:]
        return (decode_predictions(said["boxes"], said["scores"], height=height, width=width),)

    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """See `Detector.loss`; nothing here is random."""
        weights = loss_weights()
        if len(images) == 0:
            nothing = zero_loss(self)
            return [LossTerm(name, nothing, nothing.detach(), weight) for name, weight in weights.items()]
        check_sides(images, self.stride)
        said = self._say(images)
        sums, divisor = loss_sums(self.network, said, _padded(targets, said["scores"]))
        return [LossTerm(name, total, divisor, weights[name]) for name, total in sums.items()]

    def graphs(self) -> dict[str, Graph]:
        """One: decoded predictions, as Ultralytics exports them but for the 8-bit images."""
        return {GRAPH: Graph(self, (IMAGES,), (GRAPH,))}

    def _say(self, images: Tensor) -> dict[str, Any]:
        """What the head says, in single precision at least: half has no room for coordinates."""
        dtype = next(self.parameters()).dtype
        said = self.network(images.to(dtype=dtype, memory_format=torch.channels_last) / 255)
        precise = torch.promote_types(said["scores"].dtype, torch.float32)
        # Of the maps only sizes are asked for.
        maps = [features.new_empty(features.shape, dtype=precise) for features in said["feats"]]
        return {"boxes": said["boxes"].to(precise), "scores": said["scores"].to(precise), "feats": maps}


def _padded(targets: list[Target], like: Tensor) -> Tensor:
    """B x N x 5, label and box of each object, filled up with zeros; the package knows nothing to be ignored."""
    counted = [~target.ignore for target in targets]
    padded = like.new_zeros(len(targets), max(int(kept.sum()) for kept in counted), 5)
    for own, target, kept in zip(padded, targets, counted, strict=True):
        objects = torch.cat([target.labels[kept, None].to(like), target.boxes[kept].to(like)], 1)
        own[: len(objects)] = objects
    return padded
