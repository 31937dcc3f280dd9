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
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from sightline.config import DecodeConfig
from sightline.errors import ImageError

EncodedImage = bytes | memoryview
MAX_PIXELS = DecodeConfig().max_pixels
SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})

_ORIENTATION_TAG = 0x0112
_SWAPS_SIDES = frozenset({5, 6, 7, 8})


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
    return _header_of(_open(data, max_pixels))


def check_image(data: EncodedImage, *, max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Read the header and decode every byte of the image, to know that training will be able to.

    A JPEG is decoded at an eighth of its size: the whole bit stream is read, and only the inverse transform, which
    cannot fail, is shortened.
    """
    image = _open(data, max_pixels)
    header = _header_of(image)
    if isinstance(image, JpegImageFile):
        image.draft(None, (max(image.width // 8, 1), max(image.height // 8, 1)))
        _load(image)
    else:
        _to_rgb(_load(image))
    return header


def decode(data: EncodedImage, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode to H x W x 3 uint8 RGB, upright."""
    image = _open(data, max_pixels)
    if isinstance(image, JpegImageFile) and image.mode in ("L", "RGB") and _orientation(image) == 1:
        try:
            return simplejpeg.decode_jpeg(data)  # type: ignore[no-any-return]
        except ValueError:
            pass  # Warnings count as errors there: let Pillow decide whether the pixels are whole.
    loaded = _load(image)
    return np.asarray(_upright(_to_rgb(loaded), loaded))


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


def _open(data: EncodedImage, max_pixels: int) -> ImageFile.ImageFile:
    """Open by magic bytes, so that no other parser sees the bytes, and check the size before any is decoded."""
    if not data:
        raise ImageError("empty file", "0 bytes")
    head = bytes(data[:32])
    plugin = _plugin_of(head)
    if plugin is WebPImageFile:
        # Pillow's WebP plugin takes memory for the whole canvas when it opens the file.
        _check_pixels(_webp_size(head), max_pixels)
    try:
        image = plugin(io.BytesIO(data))
    except Exception as error:
        raise ImageError("unreadable image header", _describe(error)) from None
    _check_pixels(image.size, max_pixels)
    return image


def _plugin_of(head: bytes) -> Callable[[io.BytesIO], ImageFile.ImageFile]:
    match head:
        case _ if head.startswith(b"\xff\xd8\xff"):
            return JpegImageFile
        case _ if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return PngImageFile
        case _ if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return WebPImageFile
        case _ if head.startswith((b"GIF87a", b"GIF89a")):
            return GifImageFile
        case _ if head.startswith((b"II*\0", b"MM\0*")):
            return TiffImageFile
        case _ if head.startswith(b"BM"):
            return BmpImageFile
        case _:
            raise ImageError("not an image", f"begins with {head[:12]!r}; JPEG, PNG, WebP, GIF, TIFF and BMP are read")


def _webp_size(head: bytes) -> tuple[int, int]:
    """Canvas size from the first chunk of a WebP file (RFC 9649)."""
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
        case _:
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


def _check_pixels(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width <= 0 or height <= 0:
        raise ImageError("image without pixels", f"{width} x {height}")
    if width * height > max_pixels:
        raise ImageError(
            "too many pixels", f"{width} x {height}; the limit is {max_pixels} pixels (setting decode.max_pixels)"
        )


def _header_of(image: ImageFile.ImageFile) -> ImageHeader:
    orientation = _orientation(image)
    width, height = image.size
    if orientation in _SWAPS_SIDES:
        width, height = height, width
    return ImageHeader(str(image.format), width, height, orientation)


def _orientation(image: ImageFile.ImageFile) -> int:
    if isinstance(image, JpegImageFile) and "exif" not in image.info:
        return 1
    try:
        value: Any = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # Broken EXIF is common and says nothing of the pixels.
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _load(image: ImageFile.ImageFile) -> ImageFile.ImageFile:
    try:
        image.load()
    except (UnidentifiedImageError, OSError, EOFError) as error:
        truncated = "truncated" in str(error).lower() or isinstance(error, EOFError)
        raise ImageError("truncated image" if truncated else "broken image", _describe(error)) from None
    except Exception as error:
        raise ImageError("broken image", _describe(error)) from None
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    match image.mode:
        case "RGB":
            return image
        case "1" | "L" | "CMYK" | "YCbCr" | "LAB" | "HSV" | "RGBX":
            return image.convert("RGB")
        case "P" if "transparency" not in image.info:
            return image.convert("RGB")
        case "P" | "PA" | "LA" | "La" | "RGBA" | "RGBa":
            # Colours below full transparency mean nothing; white is what every viewer shows there.
            layer = image.convert("RGBA")
            white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
            return Image.alpha_composite(white, layer).convert("RGB")
        case "I;16" | "I;16L" | "I;16B" | "I;16N":
            return _from_16_bit(np.asarray(image))
        case "I" if image.format == "PNG":
            return _from_16_bit(np.asarray(image))
        case mode:
            raise ImageError("unsupported pixel format", f"mode {mode!r} of a {image.format}; save it as 8 or 16 bit")


def _from_16_bit(values: NDArray[Any]) -> Image.Image:
    return Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")


def _upright(image: Image.Image, source: ImageFile.ImageFile) -> Image.Image:
    if _orientation(source) == 1:
        return image
    if image is not source:
        image.info.setdefault("exif", source.info.get("exif", b""))
        image.getexif()[_ORIENTATION_TAG] = _orientation(source)
    return ImageOps.exif_transpose(image)


def _describe(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
