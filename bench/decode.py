"""Decoding camera photos (12 megapixels, EXIF) at reduced scale and at full size. Run by `make bench-decode`."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import numpy as np
from harness import load_text, machine, markdown_table, paired_ratio, take_turns, write_page
from PIL import Image

from sightline.data.decode import decode, decode_reduced, encode_jpeg
from sightline.data.magic import EncodedImage

WIDTH, HEIGHT, INPUT_SIDE = 4000, 3000, 640
PHOTOS, REPEATS = 4, 5
_ROTATED_BY_90 = 6


def make_photos(orientation: int | None) -> list[bytes]:
    """Synthetic photos: smooth color with sensor noise, with an EXIF segment unless `orientation` is None."""
    return [_with_exif(_photo(seed), orientation) for seed in range(PHOTOS)]


def _photo(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = smooth + rng.integers(-8, 9, smooth.shape, dtype=np.int16)
    return encode_jpeg(noisy.clip(0, 255).astype(np.uint8))


def _with_exif(data: bytes, orientation: int | None) -> bytes:
    """Insert an APP1 segment behind the start marker, as a camera does."""
    if orientation is None:
        return data
    exif = Image.Exif()
    exif[0x0112] = orientation
    body = exif.tobytes()
    return data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + data[2:]


def smallest_sides(width: int, height: int) -> tuple[int, int]:
    """The sides of the image when it is letterboxed into the model's input."""
    scale = INPUT_SIDE / max(width, height)
    return round(width * scale), round(height * scale)


def run(photos: list[bytes], decoder: Callable[[EncodedImage], object]) -> int:
    """Decode every photo once, in one thread."""
    for data in photos:
        decoder(data)
    return len(photos)


def main() -> None:
    """Measure and write the page."""
    plain, upright, rotated = (make_photos(orientation) for orientation in (None, 1, _ROTATED_BY_90))
    reduced = partial(decode_reduced, wanted=smallest_sides)
    contenders = {
        "EXIF, full size": partial(run, upright, decode),
        "no metadata, reduced scale": partial(run, plain, reduced),
        "EXIF, reduced scale": partial(run, upright, reduced),
        "EXIF with rotation by 90 degrees, reduced scale": partial(run, rotated, reduced),
    }
    found = take_turns(contenders, repeats=REPEATS)
    full = found["EXIF, full size"]
    rows = [[m.name, f"{m.median:.1f}", m.spread, f"{paired_ratio(m, full):.2f}"] for m in found.values()]
    table = markdown_table(["photos", "images/s (median)", "lowest to highest", "ratio to full size"], rows)
    write_page(
        "decode.md",
        f"# Decoding camera photos\n\n`make bench-decode`, {datetime.now(UTC):%Y-%m-%d}, {machine()}, {load_text()}. "
        f"{PHOTOS} synthetic photos of {WIDTH} x {HEIGHT} in one thread, {REPEATS} turns, for a model input of "
        f"{INPUT_SIDE} pixels. Before this release, a JPEG with EXIF or XMP was always decoded at full size.\n\n"
        f"{table}",
    )


if __name__ == "__main__":
    main()
