"""Images of a dataset as the model is given them, to see what numbers run through it."""

import numpy as np
import torch
from torch import Tensor

from sightline.data.dataset import Dataset
from sightline.data.loader import Loader, LoadOptions
from sightline.models.detector import Detector
from sightline.models.info import Preprocessing
from sightline.models.preprocessor import make_preprocessor

_IMAGES = 64


def calibration_images(
    model: Detector,
    dataset: Dataset,
    options: LoadOptions,
    preprocessing: Preprocessing | None = None,
    *,
    count: int = _IMAGES,
) -> list[Tensor]:
    """Images spread evenly over the training split, or over everything without one; 1 x 3 x H x W uint8 each.

    Args:
        preprocessing: What the model's bundle says; None for a model that has none.
    """
    if "train" in dataset.info.splits:
        dataset = dataset.select("train")
    chosen = np.unique(np.linspace(0, len(dataset) - 1, num=min(count, len(dataset))).astype(int)).tolist()
    preprocessor = make_preprocessor(model, preprocessing, max_pixels=options.max_pixels)
    loader = Loader(dataset.take(chosen), options, shuffle=False, decode=preprocessor.canvas)
    return [
        torch.from_numpy(np.stack([image])).permute(0, 3, 1, 2)
        for batch in loader.batches(epoch=0, rank=0, world_size=1)
        for image in batch.images
    ]
