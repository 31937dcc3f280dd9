"""The one decoder of the whole product: encoded bytes in, upright 8-bit RGB or a named error out.

Pillow decides what is valid. Plain JPEGs take a shorter way through the same libjpeg-turbo (simplejpeg), which gives
the same pixels; whatever that refuses is asked of Pillow again.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from sightline.config import DecodeConfig
from sightline.data.magic import EncodedImage, gif_size, plugin_of, png_exif, webp_size
from sightline.errors import ImageError

MAX_PIXELS = DecodeConfig().max_pixels
SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})

_ORIENTATION_TAG = 0x0112
_SWAPS_SIDES = frozenset({5, 6, 7, 8})
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TILE_TAGS = (322, 323)


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the header says, without decoding.

    Attributes:
        format: "JPEG", "PNG", "WEBP", "BMP", "GIF" or "TIFF".
        width: Width in pixels of the upright image.
        height: Height in pixels of the upright image.
        orientation: EXIF orientation, 1 to 8; 5 to 8 swap the sides of what is stored.
    """

    format: str
    width: int
    height: int
    orientation: int

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height as stored, before the EXIF rotation."""
        return (self.height, self.width) if self.orientation in _SWAPS_SIDES else (self.width, self.height)


def read_header(data: EncodedImage, *, max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Read format, size and orientation; refuse what is no image or has too many pixels."""
    plain = _plain_jpeg_header(data)
    if plain is not None:
        _check_pixels((plain.width, plain.height), max_pixels)
        return plain
    return _header_of(_open(data, max_pixels), data)


def check_image(data: EncodedImage, *, max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Read the header and decode every byte of the image, to know that training will be able to.

    A JPEG is decoded at an eighth of its size: the whole bit stream is read, and only the inverse transform, which
    cannot fail, is shortened.
    """
    image = _open(data, max_pixels)
    header = _header_of(image, data)
    if isinstance(image, JpegImageFile):
        image.draft(None, (max(image.width // 8, 1), max(image.height // 8, 1)))
        _load(image)
    else:
        _to_rgb(_load(image), str(image.format))
    return header


def decode(data: EncodedImage, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode to H x W x 3 uint8 RGB, upright."""
    image = _open(data, max_pixels)
    orientation = _orientation(image, data)
    if isinstance(image, JpegImageFile) and image.mode in ("L", "RGB"):
        try:
            return _rotated(simplejpeg.decode_jpeg(data), orientation)
        except ValueError:
            pass  # Warnings count as errors there: let Pillow decide whether the pixels are whole.
    return _upright(image, orientation)


def decode_reduced(
    data: EncodedImage, wanted: Callable[[int, int], tuple[int, int]], *, max_pixels: int = MAX_PIXELS
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode an image that the caller is going to downscale.

    A JPEG of at least twice the wanted sides is decoded at reduced scale, which is faster (docs/benchmarks/decode.md).
    The EXIF rotation is applied to the reduced image.

    Args:
        wanted: Maps width and height of the upright image to the smallest width and height that are sufficient.

    Returns:
        The pixels, and the width and height of the full-size upright image.
    """
    header = _reducible_jpeg_header(data, max_pixels)
    if header is not None:
        least_width, least_height = wanted(header.width, header.height)
        if header.width >= 2 * least_width and header.height >= 2 * least_height:
            if header.orientation in _SWAPS_SIDES:
                least_width, least_height = least_height, least_width
            try:
                pixels = simplejpeg.decode_jpeg(data, min_width=least_width, min_height=least_height, min_factor=2)
                return _rotated(pixels, header.orientation), (header.width, header.height)
            except ValueError:
                pass  # As in `decode`.
    pixels = decode(data, max_pixels=max_pixels)
    return pixels, (pixels.shape[1], pixels.shape[0])


def decode_pil(image: Image.Image, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """An image that somebody has opened with Pillow, in the same form; it is left as it is."""
    _check_pixels(image.size, max_pixels)
    try:
        value: Any = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # As for bytes: broken EXIF says nothing of the pixels.
        value = 1
    return _upright(image, value if isinstance(value, int) else 1)


def _reducible_jpeg_header(data: EncodedImage, max_pixels: int) -> ImageHeader | None:
    """The header of a JPEG that can be decoded at reduced scale; None for other formats and for CMYK."""
    plain = _plain_jpeg_header(data)
    if plain is not None:
        _check_pixels((plain.width, plain.height), max_pixels)
        return plain
    image = _open(data, max_pixels)
    is_reducible = isinstance(image, JpegImageFile) and image.mode in ("L", "RGB")
    return _header_of(image, data) if is_reducible else None


def _rotated(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Apply an EXIF orientation to decoded pixels."""
    if orientation not in _TURNS:
        return pixels
    return np.array(Image.fromarray(pixels).transpose(_TURNS[orientation]))


def _upright(image: Image.Image, orientation: int) -> NDArray[np.uint8]:
    pixels = _to_rgb(_load(image), str(image.format))
    if orientation in _TURNS and not isinstance(image, TiffImageFile):  # Pillow turns TIFFs itself.
        pixels = pixels.transpose(_TURNS[orientation])
    return np.array(pixels)  # A copy that may be written to; asarray would give a view that may not.


def encode_jpeg(pixels: NDArray[np.uint8], *, quality: int = 90) -> bytes:
    """Encode H x W (gray) or H x W x 3 (RGB) uint8 pixels."""
    gray = pixels.ndim == 2
    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels[..., None] if gray else pixels),
        quality=quality,
        colorspace="GRAY" if gray else "RGB",
        colorsubsampling="Gray" if gray else "420",
    )
    return encoded


def _plain_jpeg_header(data: EncodedImage) -> ImageHeader | None:
    """The header of a JPEG that cannot be rotated, for it has no APP1 segment, in a tenth of Pillow's time.

    Within a JPEG's compressed pixels 0xff is never followed by 0xe1, so one search tells. None means: ask Pillow.
    """
    if bytes(data[:3]) != b"\xff\xd8\xff" or b"\xff\xe1" in bytes(data):
        return None
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return ImageHeader("JPEG", width, height, 1)


def _open(data: EncodedImage, max_pixels: int) -> ImageFile.ImageFile:
    """Open by magic bytes, so that no other parser sees the bytes, and check the size before any is decoded."""
    if not data:
        raise ImageError("empty file", "0 bytes")
    head = bytes(data[:32])
    plugin = plugin_of(head)
    # Pillow takes memory for the whole canvas already when it opens these.
    if plugin is WebPImageFile:
        _check_pixels(webp_size(head), max_pixels)
    if plugin is GifImageFile:
        _check_pixels(gif_size(data), max_pixels)
    try:
        image = plugin(io.BytesIO(data))
    except MemoryError:
        raise  # It says nothing of the image.
    except Exception as error:
        raise ImageError("unreadable image header", _describe(error)) from None
    _check_pixels(image.size, max_pixels)
    if isinstance(image, TiffImageFile):
        _check_tile(image, max_pixels)
    return image


def _check_tile(image: TiffImageFile, max_pixels: int) -> None:
    """A tile is decoded whole, however small the image is."""
    tile = [image.tag_v2.get(tag, 1) for tag in _TILE_TAGS]
    if not all(isinstance(side, int) and side > 0 for side in tile):
        raise ImageError("unreadable image header", f"TIFF tile of {tile[0]!r} x {tile[1]!r}"[:200])
    _check_pixels((tile[0], tile[1]), max_pixels)


def _check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width <= 0 or height <= 0:
        raise ImageError("image without pixels", f"{width} x {height}")
    if width * height > max_pixels:
        raise ImageError(
            "too many pixels", f"{width} x {height}; the limit is {max_pixels} pixels (setting decode.max_pixels)"
        )


def _header_of(image: ImageFile.ImageFile, data: EncodedImage) -> ImageHeader:
    orientation = _orientation(image, data)
    width, height = image.size
    if orientation in _SWAPS_SIDES and not isinstance(image, TiffImageFile):  # Pillow gives TIFFs' sides upright.
        width, height = height, width
    return ImageHeader(str(image.format), width, height, orientation)


def _orientation(image: ImageFile.ImageFile, data: EncodedImage) -> int:
    """EXIF orientation, 1 to 8; 1 if there is none. Known from the header alone, so that all callers agree."""
    try:
        if isinstance(image, TiffImageFile):
            value: Any = image.tag_v2.get(_ORIENTATION_TAG, 1)
        else:
            raw = png_exif(data) if isinstance(image, PngImageFile) else image.info.get("exif")
            exif = Image.Exif()
            exif.load(raw or b"")
            value = exif.get(_ORIENTATION_TAG, 1)
    except Exception:  # Broken EXIF is common and says nothing of the pixels.
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _load(image: Image.Image) -> Image.Image:
    try:
        image.load()
    except MemoryError:
        raise  # As in `_open`.
    except Exception as error:
        truncated = "truncated" in str(error).lower() or isinstance(error, EOFError)
        raise ImageError("truncated image" if truncated else "broken image", _describe(error)) from None
    return image


def _to_rgb(image: Image.Image, format_name: str) -> Image.Image:
    try:
        return _convert(image, format_name)
    except (ValueError, OSError, TypeError) as error:
        raise ImageError("broken image", _describe(error)) from None


def _convert(image: Image.Image, format_name: str) -> Image.Image:
    transparent = "transparency" in image.info
    match image.mode:
        case "RGB" if not transparent:
            return image
        case "1" | "L" | "P" | "CMYK" | "YCbCr" | "RGBX" if not transparent:
            return image.convert("RGB")
        case "1" | "L" | "P" | "RGB" | "PA" | "LA" | "La" | "RGBA" | "RGBa":
            # Colours below full transparency mean nothing; white is what every viewer shows there.
            layer = image.convert("RGBA")
            white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
            return Image.alpha_composite(white, layer).convert("RGB")
        case "I;16" | "I;16L" | "I;16B" | "I;16N":
            return _from_16_bit(np.asarray(image))
        case "I" if format_name == "PNG":
            return _from_16_bit(np.asarray(image))
        case mode:
            raise ImageError("unsupported pixel format", f"mode {mode!r} of a {format_name}; save it as 8 or 16 bit")


def _from_16_bit(values: NDArray[Any]) -> Image.Image:
    return Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")


def _describe(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
