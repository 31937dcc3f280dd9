"""One decoder: upright 8-bit RGB or a named error, whatever the bytes."""

import io
import struct
import zlib
from functools import cache

import numpy as np
import pytest
from builders import encode, jpeg, picture, png, run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from sightline.data.decode import check_image, decode, decode_reduced, encode_jpeg, read_header
from sightline.errors import ImageError


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, *, depth: int = 8, color: int = 2, data: bytes = b"", extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WEBP" + b"".join(k + struct.pack("<I", len(d)) + d + b"\0" * (len(d) % 2) for k, d in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif_bomb(*, screen: tuple[int, int], frame: tuple[int, int], prefix: bytes = b"") -> bytes:
    """One frame whose disposal makes Pillow fill a canvas as soon as the file is opened."""
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    control = b"!\xf9\x04" + bytes([2 << 2 | 1, 0, 0, 0]) + b"\0"
    image = b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x44\x01\x00;"
    return head + prefix + control + image


def tiff_bomb(width: int, height: int, *, tile: int = 0) -> bytes:
    """Deflated; with `tile`, a small image in one huge tile."""
    data = zlib.compress(bytes(tile * tile), 9) if tile else b"x"
    tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1}
    tags |= {322: tile, 323: tile, 324: 8, 325: len(data)} if tile else {273: 8, 278: height, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    offset = 8 + len(data)
    return b"II*\0" + struct.pack("<I", offset) + data + struct.pack("<H", len(tags)) + entries + b"\0\0\0\0"


def resized_jpeg(width: int, height: int, **options: bool) -> bytes:
    data = bytearray(jpeg(**options))
    for marker in (b"\xff\xc0", b"\xff\xc2"):
        if (at := data.find(marker)) > 0:
            data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def resized_bmp(width: int, height: int) -> bytes:
    data = bytearray(encode(picture(), "BMP"))
    data[18:26] = struct.pack("<ii", width, height)
    return bytes(data)


def vp8x(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return riff((b"VP8X", b"\0\0\0\0" + sides), (b"VP8L", b"\x2f" + struct.pack("<I", 16383 | 16383 << 14)))


def vp8(width: int, height: int) -> bytes:
    return riff((b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + bytes(100)))


def vp8l(width: int, height: int) -> bytes:
    return riff((b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(100)))


BOMBS = {
    "png": raw_png(60_000, 60_000, data=zlib.compress(bytes(10_000_000), 9)),
    "png-just-over": raw_png(10_001, 10_000, data=zlib.compress(bytes(10_000_000), 9)),
    "jpeg": resized_jpeg(65_000, 65_000),
    "jpeg-progressive": resized_jpeg(65_000, 65_000, progressive=True),
    "webp-vp8x": vp8x(16_000, 16_000),
    "webp-vp8": vp8(16_000, 16_000),
    "webp-vp8l": vp8l(16_000, 16_000),
    "gif-screen": gif_bomb(screen=(13_000, 13_000), frame=(1, 1)),
    "gif-frame": gif_bomb(screen=(1, 1), frame=(13_000, 13_000)),
    "gif-frame-after-comment": gif_bomb(screen=(1, 1), frame=(13_000, 13_000), prefix=b"!\xfe\x03abc\x02de\0xx"),
    "tiff": tiff_bomb(60_000, 60_000),
    "tiff-tile": tiff_bomb(16, 16, tile=16_384),
    "bmp": resized_bmp(60_000, 60_000),
    "bmp-upside-down": resized_bmp(60_000, -60_000),
}

MEASURE = """
import resource, sys
from sightline.data.decode import check_image, decode, read_header
from sightline.errors import ImageError
data = open(sys.argv[1], "rb").read()
for small in sys.argv[2:]:
    decode(open(small, "rb").read())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for function in (read_header, check_image, decode):
    try:
        function(data)
    except ImageError as error:
        print(error.reason)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_from_its_header_under_50_mb(name, tmp_path):
    (tmp_path / "bomb").write_bytes(BOMBS[name])
    small = []
    for format in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"):
        small.append(tmp_path / format)
        small[-1].write_bytes(encode(picture(), format))
    *reasons, megabytes = run_python(MEASURE, tmp_path / "bomb", *small).split("\n")[:-1]
    assert reasons == ["too many pixels"] * 3
    assert int(megabytes) < 50


def test_limit_is_a_setting():
    data = png(20, 10)
    assert read_header(data, max_pixels=200).width == 20
    for function in (read_header, check_image, decode):
        with pytest.raises(ImageError, match=r"20 x 10; the limit is 199 pixels \(setting decode.max_pixels\)"):
            function(data, max_pixels=199)


def noisy(mode: str, size: tuple[int, int] = (33, 21)) -> Image.Image:
    return picture(*size).convert(mode)


@cache
def corpus() -> dict[str, bytes]:
    """A valid file of every kind."""
    rng = np.random.default_rng(1)
    wide = rng.integers(0, 65536, (21, 33), dtype=np.uint16)
    frames = [picture(33, 21, seed=seed) for seed in range(3)]
    palette, clear = noisy("P"), noisy("P")
    clear.info["transparency"] = 5
    rgba = picture(33, 21).convert("RGBA")
    rgba.putalpha(Image.fromarray(rng.integers(0, 256, (21, 33), dtype=np.uint8)))
    animated = {"save_all": True, "append_images": frames[1:]}
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = rng.integers(0, 256, (21, 33 * 6 + 1), dtype=np.uint8)
    deep[:, 0] = 0
    return {
        "jpeg": jpeg(33, 21),
        "jpeg-progressive": jpeg(33, 21, progressive=True),
        "jpeg-444": jpeg(33, 21, subsampling=0),
        "jpeg-optimised": jpeg(33, 21, optimize=True, quality=30),
        "jpeg-gray": encode(noisy("L"), "JPEG"),
        "jpeg-cmyk": encode(noisy("CMYK"), "JPEG"),
        "jpeg-rgb": encode(picture(33, 21), "JPEG", keep_rgb=True),
        "jpeg-exif": jpeg(33, 21, exif=exif),
        "jpeg-restart": jpeg(33, 21, restart_marker_blocks=1),
        "png": png(33, 21),
        "png-1": encode(noisy("1"), "PNG"),
        "png-gray": encode(noisy("L"), "PNG"),
        "png-la": encode(noisy("LA"), "PNG"),
        "png-rgba": encode(rgba, "PNG"),
        "png-palette": encode(palette, "PNG"),
        "png-palette-clear": encode(clear, "PNG"),
        "png-16": encode(Image.fromarray(wide), "PNG"),
        "png-16-rgb": raw_png(33, 21, depth=16, color=2, data=zlib.compress(deep.tobytes())),
        "png-rgb-clear": encode(picture(33, 21), "PNG", transparency=(0, 0, 0)),
        "png-animated": encode(frames[0], "PNG", **animated),
        "png-exif": encode(picture(33, 21), "PNG", exif=exif),
        "webp": encode(picture(33, 21), "WEBP"),
        "webp-lossless": encode(rgba, "WEBP", lossless=True),
        "webp-animated": encode(frames[0], "WEBP", **animated),
        "webp-exif": encode(picture(33, 21), "WEBP", exif=exif),
        "gif": encode(noisy("P"), "GIF"),
        "gif-clear": encode(clear, "GIF", transparency=5),
        "gif-animated": encode(frames[0], "GIF", disposal=2, **animated),
        "tiff": encode(picture(33, 21), "TIFF"),
        "tiff-deflate": encode(picture(33, 21), "TIFF", compression="tiff_adobe_deflate"),
        "tiff-lzw": encode(noisy("L"), "TIFF", compression="tiff_lzw"),
        "tiff-1": encode(noisy("1"), "TIFF", compression="group4"),
        "tiff-16": encode(Image.fromarray(wide), "TIFF"),
        "tiff-cmyk": encode(noisy("CMYK"), "TIFF"),
        "tiff-rgba": encode(rgba, "TIFF"),
        "tiff-jpeg": encode(picture(33, 21), "TIFF", compression="jpeg"),
        "tiff-exif": encode(picture(33, 21), "TIFF", exif=exif),
        "bmp": encode(picture(33, 21), "BMP"),
        "bmp-palette": encode(palette, "BMP"),
        "bmp-1": encode(noisy("1"), "BMP"),
    }


KINDS = sorted(corpus())
TURNED = {"jpeg-exif", "png-exif", "webp-exif", "tiff-exif"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_becomes_upright_8_bit_rgb(kind):
    data = corpus()[kind]
    pixels = decode(data)
    header = read_header(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (header.height, header.width, 3)
    assert (header.width, header.height) == ((21, 33) if kind in TURNED else (33, 21))
    assert header.stored_size == (33, 21)
    assert header.format == kind.partition("-")[0].upper()
    assert check_image(data) == header
    view = memoryview(bytearray(b"..") + data)[2:]
    assert np.array_equal(decode(view), pixels)
    assert check_image(view) == read_header(view) == header


def reference(data: bytes) -> np.ndarray:
    """What Pillow makes of it, on white."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode.startswith("I"):
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, 2)
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return np.asarray(Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB"))
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_pillow(kind):
    assert np.array_equal(decode(corpus()[kind]), reference(corpus()[kind]))


@pytest.mark.parametrize("kind", ["gif-animated", "webp-animated", "png-animated"])
def test_animation_gives_its_first_frame(kind):
    pixels = decode(corpus()[kind]).astype(int)
    distances = [np.abs(pixels - np.asarray(picture(33, 21, seed=seed))).mean() for seed in range(3)]
    assert distances[0] * 1.2 < min(distances[1:])


def test_sixteen_bits_keep_the_upper_eight():
    values = np.array([[0, 255, 256, 0x80FF, 0xFFFF]], np.uint16)
    for format in ("PNG", "TIFF"):
        assert decode(encode(Image.fromarray(values), format))[0, :, 0].tolist() == [0, 0, 1, 0x80, 0xFF]
    row = b"\0" + np.array([0x12FF, 0xABFF, 0x00FF], ">u2").tobytes()
    assert decode(raw_png(1, 1, depth=16, data=zlib.compress(row))).tolist() == [[[0x12, 0xAB, 0]]]


def test_full_transparency_is_white():
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    assert (decode(encode(clear, "PNG")) == 255).all()
    assert (decode(encode(clear, "WEBP", lossless=True)) == 255).all()
    for image, color in ((Image.new("RGB", (4, 4), (1, 2, 3)), (1, 2, 3)), (Image.new("L", (4, 4), 9), 9)):
        assert (decode(encode(image, "PNG", transparency=color)) == 255).all()


@pytest.mark.parametrize("inverted", [False, True])
def test_cmyk_and_ycck(inverted):
    """Adobe's inverted CMYK and YCCK, as Photoshop writes them, come out in the colours that were meant."""
    colors = Image.new("RGB", (16, 16), (200, 40, 90))
    data = bytearray(encode(colors.convert("CMYK"), "JPEG", quality=98))
    marker = data.find(b"Adobe")
    assert marker > 0
    if inverted:
        data[marker + 11] = 2  # the transform flag: the same numbers now mean YCCK
    assert decode(bytes(data)).shape == (16, 16, 3)
    assert np.array_equal(decode(bytes(data)), reference(bytes(data)))
    if not inverted:
        assert np.abs(decode(bytes(data)).astype(int) - np.array([200, 40, 90])).max() < 8


ORIENTED = {"JPEG": {"quality": 95}, "PNG": {}, "WEBP": {"lossless": True}, "TIFF": {}}


MODES = [(format, mode) for format in ORIENTED for mode in ("RGB", "L", "RGBA", "P")]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("format", "mode"), [pair for pair in MODES if pair[0] != "JPEG" or pair[1] in ("RGB", "L")])
def test_exif_orientation(format, orientation, mode):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(17, 9).convert(mode), format, exif=exif, **ORIENTED[format])
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(decode(data), np.asarray(upright.convert("RGB")))
    header = read_header(data)
    assert (header.width, header.height) == upright.size == ((9, 17) if orientation > 4 else (17, 9))
    assert header.orientation == orientation
    assert header.stored_size == (17, 9)
    assert check_image(data) == header


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_with_exif_is_decoded_at_reduced_scale(orientation, mode):
    """The pixels equal those of the same JPEG without metadata at the same scale, rotated afterwards."""
    image = picture(96, 64).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    sides = (24, 16) if orientation <= 4 else (16, 24)
    pixels, size = decode_reduced(encode(image, "JPEG", exif=exif), lambda width, height: sides)
    stored, _ = decode_reduced(encode(image, "JPEG"), lambda width, height: (24, 16))
    tagged = Image.fromarray(stored)
    tagged.getexif()[0x0112] = orientation
    assert stored.shape == (16, 24, 3)
    assert size == ((96, 64) if orientation <= 4 else (64, 96))
    assert np.array_equal(pixels, np.asarray(ImageOps.exif_transpose(tagged)))


def test_a_jpeg_with_xmp_is_decoded_at_reduced_scale():
    plain, tagged = jpeg(96, 64), jpeg(96, 64, xmp=b"<x:xmpmeta/>")
    assert b"\xff\xe1" in tagged
    pixels, size = decode_reduced(tagged, lambda width, height: (24, 16))
    assert pixels.shape == (16, 24, 3)
    assert size == (96, 64)
    assert np.array_equal(pixels, decode_reduced(plain, lambda width, height: (24, 16))[0])


def test_a_cmyk_jpeg_with_exif_is_decoded_whole():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(noisy("CMYK", (96, 64)), "JPEG", exif=exif)
    pixels, size = decode_reduced(data, lambda width, height: (16, 24))
    assert size == (64, 96)
    assert np.array_equal(pixels, decode(data))


def test_png_exif_behind_the_pixels():
    exif = Image.Exif()
    exif[0x0112] = 8
    data = png(17, 9)
    end = data.rfind(b"IEND") - 4
    data = data[:end] + chunk(b"eXIf", exif.tobytes()[6:]) + data[end:]
    assert read_header(data).orientation == 8
    assert np.array_equal(decode(data), np.rot90(np.asarray(picture(17, 9))))


BROKEN_EXIF = {
    "empty": b"",
    "text": b"Exif\0\0garbage",
    "no-header": b"Exif\0\0II*\0\xff\xff\xff\x7f",
    "cut": b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01",
    "loop": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\x08\0\0\0",
    "orientation-0": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\0\0\0\0\0\0\0\0",
    "orientation-9": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0\0\0\0\0",
    "orientation-text": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0\x36\0\0\0\0\0\0\0",
    "orientation-fraction": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x05\0\x01\0\0\0\x1a" + bytes(7) + b"\6" + bytes(7),
}


@pytest.mark.filterwarnings("ignore")  # Pillow's, about the EXIF
@pytest.mark.parametrize("name", BROKEN_EXIF)
@pytest.mark.parametrize("format", ["JPEG", "WEBP", "PNG"])
def test_broken_exif_says_nothing_of_the_pixels(format, name):
    data = encode(picture(17, 9), format, exif=BROKEN_EXIF[name] or b"\0")
    expected = 6 if name == "loop" else 1
    assert check_image(data).orientation == expected
    assert decode(data).shape == ((17, 9, 3) if expected == 6 else (9, 17, 3))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
    st.integers(5, 100),
    st.booleans(),
    st.booleans(),
)
def test_short_way_of_jpegs_gives_the_pixels_of_pillow(width, height, subsampling, quality, progressive, gray):
    image = picture(width, height).convert("L" if gray else "RGB")
    options = {} if gray else {"subsampling": subsampling}
    data = encode(image, "JPEG", quality=quality, progressive=progressive, **options)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"hello, world", "not an image"),
        (b"\0" * 1000, "not an image"),
        (b"<svg/>", "not an image"),
        (b"\x89PNG\r\n\x1a\n", "unreadable image header"),
        (b"\xff\xd8\xff", "unreadable image header"),
        (b"RIFF\0\0\0\0WEBP", "image without pixels"),
        (b"GIF89a", "image without pixels"),
        (b"BM", "unreadable image header"),
        (b"II*\0", "unreadable image header"),
        (raw_png(0, 5), "unreadable image header"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ],
)
@pytest.mark.parametrize("function", [read_header, check_image, decode])
def test_what_is_no_image_is_named(function, data, reason):
    for form in (data, memoryview(data)):
        with pytest.raises(ImageError) as caught:
            function(form)
        assert caught.value.reason == reason
        assert caught.value.detail


@pytest.mark.parametrize("mode", ["F", "I", "LAB"])
def test_unsupported_pixels_are_named(mode):
    data = encode(Image.new(mode, (4, 4)), "TIFF")
    for function in (check_image, decode):
        with pytest.raises(ImageError, match=f"unsupported pixel format: mode '{mode}' of a TIFF"):
            function(data)


def verdict(function, data: bytes) -> str:
    """ "ok" or the reason; anything but an ImageError is a bug and gets through."""
    try:
        function(data)
    except ImageError as error:
        return error.reason
    return "ok"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_truncated_at_many_offsets(kind):
    """Ingest accepts exactly what training can decode, and a file cut in its pixels is refused."""
    data = corpus()[kind]
    for cut in sorted({*range(0, len(data), max(1, len(data) // 60)), *range(max(0, len(data) - 12), len(data))}):
        checked, decoded = verdict(check_image, data[:cut]), verdict(decode, data[:cut])
        assert checked == decoded, cut
        if cut < len(data) * 0.8 and not kind.endswith("animated"):
            assert decoded != "ok", cut


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.floats(0, 1) | st.just(1.0),
    st.booleans(),
)
def test_fuzzed_files_decode_or_raise_image_error(kind, changes, keep, early):
    data = bytearray(corpus()[kind])
    span = min(len(data), 120) if early else len(data)
    for place, value in changes:
        data[int(place * span)] = value
    data = bytes(data[: int(len(data) * keep)])
    checked = verdict(lambda data: check_image(data, max_pixels=1_000_000), data)
    decoded = verdict(lambda data: decode(data, max_pixels=1_000_000), data)
    assert (checked == "ok") == (decoded == "ok")
    if decoded == "ok":
        header = read_header(data)
        assert decode(data).shape == (header.height, header.width, 3)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=100, deadline=None)
@given(st.sampled_from([data[:12] for data in corpus().values()]), st.binary(max_size=200))
def test_garbage_behind_magic_bytes(magic, rest):
    verdict(lambda data: decode(data, max_pixels=1_000_000), magic + rest)


@pytest.mark.parametrize("shape", [(9, 17), (9, 17, 3), (1, 1), (1, 1, 3)])
def test_encode_jpeg_round_trip(shape):
    pixels = np.full(shape, 100, np.uint8)
    decoded = decode(encode_jpeg(pixels, quality=95))
    assert decoded.shape == (*shape[:2], 3)
    assert np.abs(decoded.astype(int) - 100).max() <= 2


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("orientation", [None, 1, 6])
@pytest.mark.parametrize("progressive", [False, True])
def test_short_way_to_a_jpeg_header_says_what_pillow_says(
    mode: str, orientation: int | None, progressive: bool
) -> None:
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    stream = io.BytesIO()
    options = {"exif": exif} if orientation else {}
    Image.new(mode, (37, 21)).save(stream, "JPEG", progressive=progressive, **options)
    header = read_header(stream.getvalue())
    assert header == check_image(stream.getvalue())
    assert (header.width, header.height) == ((21, 37) if orientation == 6 else (37, 21))
