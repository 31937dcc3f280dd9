"""What the bytes of an image say before any decoder sees them: which format, how large, which way up."""

import io
import struct
from collections.abc import Callable

from PIL import ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from sightline.errors import ImageError

EncodedImage = bytes | memoryview


def plugin_of(head: bytes) -> Callable[[io.BytesIO], ImageFile.ImageFile]:
    """The reader of the format that the first bytes name."""
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


def webp_size(head: bytes) -> tuple[int, int]:
    """Canvas size from the first chunk of a WebP file (RFC 9649)."""
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
        case _:
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


def gif_size(data: EncodedImage) -> tuple[int, int]:
    """The screen, or what the first frame makes of it when it is larger."""
    stream = io.BytesIO(data)
    width, height, flags = struct.unpack("<6xHHBxx", stream.read(13).ljust(13, b"\0"))
    if flags & 0x80:
        stream.seek(3 << (flags & 7) + 1, io.SEEK_CUR)
    while (kind := stream.read(1)) not in (b"", b";", b","):
        if kind == b"!":
            stream.read(1)
            while size := stream.read(1).strip(b"\0"):
                stream.seek(size[0], io.SEEK_CUR)
    left, top, frame_width, frame_height = struct.unpack("<4H", stream.read(8).ljust(8, b"\0"))
    return max(width, left + frame_width), max(height, top + frame_height)


def png_exif(data: EncodedImage) -> bytes | None:
    """The eXIf chunk, which may stand behind the pixels, where Pillow finds it only after it decoded them."""
    position = 8
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"eXIf":
            return bytes(data[position + 8 : position + 8 + length])
        position += 12 + length
    return None
