"""Images of a dataset as the model is given them, to see what numbers run through it."""

import numpy as np
from numpy.typing import NDArray

from sightline.data.dataset import Dataset
from sightline.data.loader import Loader, LoadOptions
from sightline.models.inference import InferenceModel
from sightline.models.info import Preprocessing
from sightline.models.preprocessor import make_preprocessor

_IMAGES = 64


def calibration_images(
    model: InferenceModel,
    dataset: Dataset,
    options: LoadOptions,
    preprocessing: Preprocessing | None = None,
    *,
    count: int = _IMAGES,
) -> list[NDArray[np.uint8]]:
    """Images spread evenly over the training split, or over everything without one; a canvas of H x W x 3 each.

    Args:
        preprocessing: What the model's bundle says; None for a model that has none.
    """
    if "train" in dataset.info.splits:
        dataset = dataset.select("train")
    chosen = np.unique(np.linspace(0, len(dataset) - 1, num=min(count, len(dataset))).astype(int)).tolist()
    preprocessor = make_preprocessor(model, preprocessing, max_pixels=options.max_pixels)
    loader = Loader(dataset.take(chosen), options, shuffle=False, decode=preprocessor.canvas)
    return [image for batch in loader.batches(epoch=0, rank=0, world_size=1) for image in batch.images]
