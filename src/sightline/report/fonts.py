"""Which font to write a name with: Pillow's own, or one of this machine's when that lacks the letters."""

from functools import lru_cache

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_NO_CHARACTER = "\U0010fffe"
"""No font has a glyph for it, so it shows what a font draws instead of a missing one."""

_SYSTEM_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "Arial Unicode.ttf",
    "arial.ttf",
    "msyh.ttc",
    "PingFang.ttc",
    "Hiragino Sans GB.ttc",
)


@lru_cache(maxsize=1024)
def font_for(text: str, size: int) -> Font:
    """The first font that has every letter of a text, else the one that lacks fewest; Pillow's own comes first."""
    best, fewest = _default(size), _num_missing(_default(size), text)
    for name in _SYSTEM_FONTS:
        if fewest == 0:
            break
        font = _system(name, size)
        missing = _num_missing(font, text) if font else fewest
        if font and missing < fewest:
            best, fewest = font, missing
    return best


def _num_missing(font: Font, text: str) -> int:
    return sum(not _has(font, character) for character in set(text))


@lru_cache(maxsize=64)
def _default(size: int) -> Font:
    return ImageFont.load_default(size)


@lru_cache(maxsize=256)
def _system(name: str, size: int) -> Font | None:
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


@lru_cache(maxsize=8192)
def _has(font: Font, character: str) -> bool:
    return character.isspace() or _look(font, character) != _look(font, _NO_CHARACTER)


def _look(font: Font, character: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)
