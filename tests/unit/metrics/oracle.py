"""What the figures should be: pycocotools for what it knows, plain loops for the rest."""

import contextlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scenes import Scene

STATS = (
    "map", "map50", "map75", "map_small", "map_medium", "map_large",
    "ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large",
)  # fmt: skip


def evaluate(scene: Scene, num_classes: int, iou_thresholds: Any = None) -> COCOeval:
    """pycocotools' own evaluation; -1 in its figures means that there was nothing to find."""
    true, found = _annotations(scene)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(_coco(scene, num_classes, true), _coco(scene, num_classes, found), "bbox")
        if iou_thresholds is not None:
            evaluation.params.iouThrs = np.array(iou_thresholds)
        evaluation.evaluate()
        evaluation.accumulate()
        if iou_thresholds is None:
            evaluation.summarize()
    return evaluation


def stats(evaluation: COCOeval | None) -> dict[str, float]:
    """The twelve figures by our names; without an evaluation, as if there were no images, which pycocotools refuses."""
    values = evaluation.stats if evaluation else [-1.0] * len(STATS)
    return {name: np.nan if value == -1 else float(value) for name, value in zip(STATS, values, strict=True)}


def class_ap(evaluation: COCOeval, area: int = 0) -> NDArray[np.float64]:
    """Thresholds x classes, for all sizes (0), or small, medium and large ones (1 to 3)."""
    precision = evaluation.eval["precision"][:, :, :, area, -1].mean(axis=1)
    return np.where(precision < 0, np.nan, precision)


def counts(scene: Scene, num_classes: int, *, iou: float, score: float) -> NDArray[np.int64]:
    """Right, found and true boxes of each class at a score, from what pycocotools matched."""
    evaluation = evaluate(scene, num_classes, [iou])
    result = np.zeros((3, num_classes), np.int64)
    for image in evaluation.evalImgs:
        if image is None or image["aRng"] != [0, 1e10]:
            continue
        counted = (np.array(image["dtScores"]) >= score) & ~image["dtIgnore"][0].astype(bool)
        result[0, image["category_id"]] += np.count_nonzero(counted & (image["dtMatches"][0] > 0))
        result[1, image["category_id"]] += np.count_nonzero(counted)
        result[2, image["category_id"]] += np.count_nonzero(np.array(image["gtIgnore"]) == 0)
    return result


def confusion(scene: Scene, num_classes: int, *, iou: float, score: float) -> NDArray[np.int64]:
    """The two rounds of the confusion matrix, box by box; for scenes without crowds and with 100 boxes at most."""
    matrix = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for true, found in scene:
        order = [i for i in np.argsort(-found.scores, kind="stable") if found.scores[i] >= score]
        free = set(range(len(true)))
        for same in (True, False):
            for i in list(order):
                overlaps = {
                    g: _iou(found.boxes[i], true.boxes[g]) for g in free if (true.labels[g] == found.labels[i]) == same
                }
                best = max(overlaps, key=lambda g: (overlaps[g], g), default=None)
                if best is not None and overlaps[best] >= iou:
                    matrix[true.labels[best], found.labels[i]] += 1
                    free.remove(best)
                    order.remove(i)
        for i in order:
            matrix[-1, found.labels[i]] += 1
        for g in free:
            matrix[true.labels[g], -1] += 1
    return matrix


def _iou(a: NDArray[Any], b: NDArray[Any]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return float(width * height / (sum(areas) - width * height))


def _annotations(scene: Scene) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows_true, rows_found = [], []
    for image, (true, found) in enumerate(scene):
        rows_true += [_row(image, true, i, iscrowd=int(true.ignore[i])) for i in range(len(true.labels))]
        rows_found += [_row(image, found, i, iscrowd=0, score=float(found.scores[i])) for i in range(len(found.labels))]
    for rows in (rows_true, rows_found):
        for number, row in enumerate(rows):
            row["id"] = number + 1  # pycocotools takes a match with id 0 for none.
    return rows_true, rows_found


def _row(image: int, boxes: Any, i: int, **more: Any) -> dict[str, Any]:
    x0, y0, x1, y1 = (float(value) for value in boxes.boxes[i])
    bbox = [x0, y0, x1 - x0, y1 - y0]
    areas = getattr(boxes, "areas", None)
    area = bbox[2] * bbox[3] if areas is None else float(areas[i])
    return {"image_id": image, "category_id": int(boxes.labels[i]), "bbox": bbox, "area": area, **more}


def _coco(scene: Scene, num_classes: int, annotations: list[dict[str, Any]]) -> COCO:
    coco = COCO()
    coco.dataset = {
        "images": [{"id": image} for image in range(len(scene))],
        "categories": [{"id": label} for label in range(num_classes)],
        "annotations": annotations,
    }
    coco.createIndex()
    return coco
