"""Random changes to training images, decided by seed, epoch and position alone.

What happens to an image never depends on the rank, process or thread that loads it: all chances of one image are drawn
at once from a generator keyed by its place in the epoch's order.
"""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from sightline.config import AugmentConfig
from sightline.data.geometry import Pixels, Scene, crop, hflip, rotate90, scale_translate, vflip
from sightline.data.mosaic import mosaic
from sightline.structures import Annotation

Fetch = Callable[[int], tuple[Pixels, Annotation]]
"""Gives the decoded image at an index of the dataset, and what is known of it."""

_MASK = (1 << 64) - 1
_MID_GRAY = 127.5
_LUMA = np.array([0.299, 0.587, 0.114])
# New decisions go at the end, so that the draws of the others stay as they were.
_DECISIONS = ("mosaic", "crop", "scale", "rotate90", "hflip", "vflip", "photometric")
_DRAWS_EACH = 6

Draws = Sequence[float]


def keyed_generator(seed: int, epoch: int, position: int, *, stream: int = 0) -> np.random.Generator:
    """Random numbers for one place in one epoch's order: the same on every rank, process and thread.

    Args:
        seed: Any integer; only its lowest 64 bits count, as for the other numbers.
        epoch: Number of the epoch.
        position: Place of the image in the epoch's order.
        stream: What the numbers are for, when several parts need their own at one place; augmentation is 0.
    """
    # Seed and epoch are the key; place and purpose the high words of the counter, so streams never meet.
    key = np.array([seed & _MASK, epoch & _MASK], np.uint64)
    counter = np.array([0, 0, stream & _MASK, position & _MASK], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def augment(
    image: Pixels,
    annotation: Annotation,
    *,
    config: AugmentConfig,
    rng: np.random.Generator,
    fetch: Fetch | None = None,
    num_images: int = 0,
) -> tuple[Pixels, Annotation]:
    """Change an image at random; its boxes follow the pixels.

    Args:
        image: H x W x 3 uint8; never written to.
        annotation: What is known of it.
        config: What may happen, and how often.
        rng: Usually from `keyed_generator`.
        fetch: Gives the partners of a mosaic; without it there are none.
        num_images: Indices that `fetch` knows.

    Returns:
        H x W x 3 uint8 pixels in order in memory, and the boxes of which at least `config.min_visible` is left.
    """
    # Only `random` is used: it is the bit stream itself, which numpy promises not to change.
    draws = dict(zip(_DECISIONS, rng.random((len(_DECISIONS), _DRAWS_EACH)).tolist(), strict=True))
    scene = Scene.of(image, annotation)
    if fetch is not None and annotation.label is None and draws["mosaic"][0] < config.mosaic:
        scene = _random_mosaic(scene, draws["mosaic"], fetch, num_images)
    scene = _random_geometry(scene, config, draws)
    pixels = scene.pixels()
    if config.brightness or config.contrast or config.saturation:
        pixels = _random_colours(pixels, config, draws["photometric"])
    return pixels, scene.visible_annotation(config.min_visible)


def photometric(image: Pixels, *, brightness: float = 1.0, contrast: float = 1.0, saturation: float = 1.0) -> Pixels:
    """Change the colours: each number is a factor, and 1 leaves things as they are.

    Brightness is about black, contrast about mid-gray, saturation about each pixel's own gray; values are cut to 0 to
    255 once, at the end.

    Args:
        image: H x W x 3 uint8, pixels in order in memory.
        brightness: Factor on all values.
        contrast: Factor on the distance to mid-gray.
        saturation: Factor on the distance to gray; 0 gives a gray image.
    """
    gain, offset = brightness * contrast, _MID_GRAY * (1 - contrast)
    if saturation == 1:
        table = np.rint(np.arange(256) * gain + offset).clip(0, 255).astype(np.uint8)
        # Twice as fast as indexing with numpy, and a bytearray stays writable.
        return np.frombuffer(bytearray(image.data).translate(table.tobytes()), np.uint8).reshape(image.shape)
    weights = gain * (saturation * np.eye(3) + (1 - saturation) * _LUMA)
    matrix = np.column_stack([weights, np.full(3, offset)])
    return np.array(Image.fromarray(image).convert("RGB", tuple(matrix.ravel().tolist())))


def _random_geometry(scene: Scene, config: AugmentConfig, draws: dict[str, list[float]]) -> Scene:
    if draws["crop"][0] < config.crop:
        scene = _random_crop(scene, draws["crop"], config.crop_min)
    if config.scale or config.translate:
        scene = _random_scale(scene, draws["scale"], config)
    if draws["rotate90"][0] < config.rotate90:
        scene = rotate90(scene, 1 + int(draws["rotate90"][1] * 3))
    if draws["hflip"][0] < config.hflip:
        scene = hflip(scene)
    if draws["vflip"][0] < config.vflip:
        scene = vflip(scene)
    return scene


def _random_mosaic(scene: Scene, draws: Draws, fetch: Fetch, num_images: int) -> Scene:
    height, width = scene.image.shape[:2]
    if min(height, width) < 2:
        return scene
    x, y = max(1, int(width * (0.25 + draws[1] / 2))), max(1, int(height * (0.25 + draws[2] / 2)))
    partners = [Scene.of(*fetch(int(draw * num_images))) for draw in draws[3:6]]
    return mosaic([scene, *partners], centre=(x, y), size=(width, height))


def _random_crop(scene: Scene, draws: Draws, smallest: float) -> Scene:
    (left, width), (top, height) = (
        _random_span(side, draw, place, smallest)
        for side, draw, place in zip(scene.image.shape[1::-1], draws[1:3], draws[3:5], strict=True)
    )
    return crop(scene, left=left, top=top, width=width, height=height)


def _random_span(side: int, draw: float, place: float, smallest: float) -> tuple[int, int]:
    """Where a random part of a side begins, and how many pixels long it is."""
    length = max(1, round(side * (smallest + (1 - smallest) * draw)))
    return int((side - length + 1) * place), length


def _random_scale(scene: Scene, draws: Draws, config: AugmentConfig) -> Scene:
    height, width = scene.image.shape[:2]
    shift = width * config.translate * _signed(draws[1]), height * config.translate * _signed(draws[2])
    return scale_translate(scene, scale=1 + config.scale * _signed(draws[0]), shift=shift)


def _random_colours(image: Pixels, config: AugmentConfig, draws: Draws) -> Pixels:
    ranges = (config.brightness, config.contrast, config.saturation)
    brightness, contrast, saturation = (1 + most * _signed(draw) for most, draw in zip(ranges, draws[:3], strict=True))
    return photometric(image, brightness=brightness, contrast=contrast, saturation=saturation)


def _signed(draw: float) -> float:
    return 2 * draw - 1
