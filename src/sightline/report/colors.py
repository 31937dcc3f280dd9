"""The one palette: a class has the same colour in every drawing, chart and page.

It begins with the colours of Okabe and Ito, which people with any colour vision can tell apart. More classes get
colours as far as possible from all before them, for normal and for red-green blind eyes.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Rgb = tuple[int, int, int]

PALETTE_SIZE = 128
"""Labels beyond this begin again; nobody tells so many colours apart."""

# Yellow stands last of the seven, for it is hard to see on white.
_OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")

_RGB_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LMS_TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
# Deuteranopia in linear RGB, Machado, Oliveira and Fernandes (2009), severity 1.
_RED_GREEN_BLIND = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)

Colors = NDArray[np.float64]


def color_of(label: int) -> Rgb:
    """Red, green and blue of a class, 0 to 255.

    >>> color_of(0)
    (0, 114, 178)
    """
    return _palette()[label % PALETTE_SIZE]


def hex_color_of(label: int) -> str:
    """The colour of a class as CSS writes it.

    >>> hex_color_of(0)
    '#0072b2'
    """
    return "#{:02x}{:02x}{:02x}".format(*color_of(label))


def text_color_on(background: Rgb) -> Rgb:
    """Black or white, whichever reads better on a colour (WCAG relative luminance)."""
    luminance = float(_linear(np.array(background, np.float64)) @ [0.2126, 0.7152, 0.0722])
    return (0, 0, 0) if (luminance + 0.05) ** 2 > 1.05 * 0.05 else (255, 255, 255)


@cache
def _palette() -> tuple[Rgb, ...]:
    chosen = [tuple(bytes.fromhex(text[1:])) for text in _OKABE_ITO]
    candidates = _candidates()
    places = _perceived(candidates)
    nearest = _distances(places, _perceived(np.array(chosen, np.float64))).min(axis=1)
    while len(chosen) < PALETTE_SIZE:
        best = int(nearest.argmax())
        chosen.append(tuple(int(value) for value in candidates[best]))
        nearest = np.minimum(nearest, _distances(places, places[best : best + 1])[:, 0])
    return tuple((red, green, blue) for red, green, blue in chosen)


def _candidates() -> Colors:
    """Colours on a grid that are neither too dark, too pale nor too grey to be seen on a photograph."""
    steps = np.arange(0, 256, 17, dtype=np.float64)
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = _oklab(_linear(grid))
    lightness, chroma = lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])
    return grid[(lightness > 0.4) & (lightness < 0.88) & (chroma > 0.07)]


def _perceived(rgb: Colors) -> Colors:
    """N x 6: where a colour lies in OKLab for normal eyes, and for red-green blind ones."""
    linear = _linear(rgb)
    return np.concatenate([_oklab(linear), _oklab(np.clip(linear @ _RED_GREEN_BLIND.T, 0, 1))], axis=1)


def _distances(a: Colors, b: Colors) -> Colors:
    """N x M; half the weight to each kind of eyes, so that no pair is alike for both."""
    difference = a[:, None, :] - b[None, :, :]
    distance: Colors = np.sqrt((difference[..., :3] ** 2).sum(-1)) + np.sqrt((difference[..., 3:] ** 2).sum(-1))
    return distance


def _linear(rgb: Colors) -> Colors:
    share = rgb / 255
    linear: Colors = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear


def _oklab(linear: Colors) -> Colors:
    lab: Colors = np.cbrt(linear @ _RGB_TO_LMS.T) @ _LMS_TO_OKLAB.T
    return lab
