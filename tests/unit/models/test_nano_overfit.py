"""That `nano` learns: a handful of synthetic boards by heart, within seconds."""

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from sightline.data.synth.boards import CLASSES, render_board
from sightline.models.detector import Target, total_loss
from sightline.models.nano import NanoDetector
from sightline.structures import Detections

SIZE = 192
STEPS = 150


def make_boards(count: int) -> tuple[Tensor, list[Target]]:
    boards = [render_board(seed=3, index=index, size=SIZE) for index in range(count)]
    images = torch.from_numpy(np.stack([board.image for board in boards]))
    targets = [
        Target(
            torch.from_numpy(board.boxes),
            torch.from_numpy(board.labels.astype(np.int64)),
            torch.zeros(len(board.labels), dtype=torch.bool),
        )
        for board in boards
    ]
    return images[:, None].expand(-1, 3, -1, -1), targets


def learn(model: NanoDetector, images: Tensor, targets: list[Target]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total_loss(model.loss(images, targets, [0] * len(targets))).backward()
        optimizer.step()
        schedule.step()


def average_precision(found: list[Detections], targets: list[Target], label: int) -> float:
    """Area under precision over recall at an IoU of 0.5, each object matched once."""
    hits: list[tuple[float, bool]] = []
    for one, target in zip(found, targets, strict=True):
        free = target.boxes[target.labels == label]
        of_class = one[one.labels == label]
        for box, score in zip(of_class.boxes, of_class.scores.tolist(), strict=True):
            overlap = box_iou(torch.from_numpy(box)[None], free)[0]
            hit = bool(len(free)) and overlap.max().item() >= 0.5
            if hit:
                free = free[torch.arange(len(free)) != overlap.argmax()]
            hits.append((score, hit))
    right = torch.tensor([hit for _, hit in sorted(hits, reverse=True)], dtype=torch.float64)
    precision = right.cumsum(0) / torch.arange(1, len(right) + 1)
    return float((precision * right).sum() / sum((target.labels == label).sum() for target in targets))


def test_four_boards_are_learned_by_heart() -> None:
    torch.manual_seed(0)
    images, targets = make_boards(4)
    model = NanoDetector(len(CLASSES), size=SIZE, width=32)
    learn(model, images, targets)
    found = model.eval().detect(images.permute(0, 2, 3, 1).numpy())
    present = torch.cat([target.labels for target in targets]).unique().tolist()
    scores = [average_precision(found, targets, label) for label in present]
    assert sum(scores) / len(scores) >= 0.9
