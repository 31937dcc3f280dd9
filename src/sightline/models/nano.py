"""`nano`: our own small one-stage detector, made to learn from scratch on a CPU in minutes.

Anchor-free, one map of predictions at stride 8 into which coarser features were added, any input size. Put together
from published ideas: residual networks (He 2016), feature pyramids (Lin 2017), decoupled heads (Ge 2021), task-aligned
assignment (Feng 2021), scores that estimate the overlap (Zhang 2021), generalised IoU (Rezatofighi 2019). Whether there
is an object and which one it is are asked apart: a single score for both has to learn where objects are before it can
begin to tell them apart, and took many times as long.
"""

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from sightline.models.detector import Detector, Found, LossTerm, Target
from sightline.models.graph import IMAGES, Graph, Run
from sightline.models.letterbox import Letterbox
from sightline.models.nano_boxes import decode_boxes, decode_scores, flatten_map, grid_points
from sightline.models.nano_loss import nano_loss
from sightline.models.nano_net import COARSEST, STRIDE, NanoNet

_BEFORE_NMS = 1000  # Candidates an image; suppression is quadratic in them.


class NanoDetector(Detector):
    """See the module docstring.

    Args:
        num_classes: Classes to tell apart.
        size: Longest side of the images it is given, in pixels.
        width: Channels at stride 8; time and parameters grow with its square.
        score_threshold: Detections below it are not reported.
        nms_iou: Of two boxes of a class that overlap more than this, the surer one stays.
        max_detections: Reported in one image at most.

    Example:
        >>> model = NanoDetector(6).eval()
        >>> [len(found.boxes.shape) for found in model.detect(torch.zeros(1, 3, 64, 96, dtype=torch.uint8))]
        [2]
    """

    heads = ("net.class_map.",)
    rectangular = True

    def __init__(
        self,
        num_classes: int,
        *,
        size: int = 640,
        width: int = 48,
        score_threshold: float = 0.01,
        nms_iou: float = 0.5,
        max_detections: int = 300,
    ) -> None:
        super().__init__()
        self.size = size
        self.score_threshold = score_threshold
        self.nms_iou = nms_iou
        self.max_detections = max_detections
        self.net = NanoNet(num_classes, width=width).to(memory_format=torch.channels_last)

    def preprocess(self) -> Letterbox:
        """Fit images into a square of `size`."""
        return Letterbox(self.size, multiple=COARSEST)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Raw maps, without anything that depends on the data: the part to trace or export.

        Args:
            images: B x 3 x H x W uint8, H and W multiples of 32.

        Returns:
            Logits of objectness and classes, B x (1 + C) x H/8 x W/8, and raw boxes, B x 4 x H/8 x W/8.
        """
        dtype = self.net.class_map.weight.dtype
        pixels = images.to(dtype=dtype, memory_format=torch.channels_last)
        maps: tuple[Tensor, Tensor] = self.net(pixels / 127.5 - 1)
        return maps

    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """See `Detector.loss`; nothing here is random."""
        logits, boxes, points = self._decode(*self(self._checked(images)))
        return nano_loss(logits, boxes, points, targets, stride=STRIDE)

    def graphs(self) -> dict[str, Graph]:
        """One: the raw maps."""
        return {"maps": Graph(self, (IMAGES,), ("logits", "boxes"), bfloat16=True)}

    @torch.no_grad()
    def detect_with(self, run: Run, images: Tensor) -> list[Found]:
        """See `Detector.detect_with`."""
        logits, boxes, _ = self._decode(*run("maps", self._checked(images)))
        height, width = images.shape[-2:]
        edges = boxes.new_tensor([width, height, width, height])
        boxes = torch.minimum(boxes.clamp(min=0), edges)
        return [self._best(*image) for image in zip(decode_scores(logits), boxes, strict=True)]

    def _checked(self, images: Tensor) -> Tensor:
        if images.shape[-2] % COARSEST or images.shape[-1] % COARSEST:
            raise ValueError(f"images are {tuple(images.shape)}; expected sides that are multiples of {COARSEST}")
        return images

    def _decode(self, logits: Tensor, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits B x P x (1 + C), boxes B x P x 4 and points P x 2, in single precision at least."""
        # Half precision has no room for pixel coordinates, nor for the small scores of the background.
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logits, raw = logits.to(dtype), raw.to(dtype)
        points = grid_points(*raw.shape[-2:], stride=STRIDE, like=raw)
        return flatten_map(logits), decode_boxes(flatten_map(raw), points, stride=STRIDE), points

    def _best(self, scores: Tensor, boxes: Tensor) -> Found:
        """Detections of one image from scores P x C and boxes P x 4."""
        flat = scores.flatten()
        values, places = flat.topk(min(_BEFORE_NMS, len(flat)))
        values, places = values[values >= self.score_threshold], places[values >= self.score_threshold]
        labels, boxes = places % scores.shape[1], boxes[places // scores.shape[1]]
        kept = batched_nms(boxes, values, labels, self.nms_iou)[: self.max_detections]
        return Found(boxes[kept], values[kept], labels[kept])
