"""How names from other people's files are shown: on one line, with nothing that acts on the reader's screen."""

_JOINERS = "\u200c\u200d"
"""Some scripts and emoji need these two to read right; they are harmless."""


def one_line(name: str, *, limit: int | None = None) -> str:
    r"""A name that is safe to show anywhere.

    Line breaks, terminal escapes and characters that reverse the text are spelled out (`\n`, `\x1b`, `\u202e`).

    Args:
        limit: Longest result in characters; the middle of a longer name is left out, for its end tells files apart.

    >>> one_line("a\nb")
    'a\\nb'
    >>> one_line("IMG_2024_06_01_front.jpg", limit=12)
    'IMG_20…t.jpg'
    """
    shown = "".join(character if _is_plain(character) else _spell(character) for character in name)
    if limit is None or len(shown) <= limit:
        return shown
    head = limit // 2
    tail = limit - head - 1
    return f"{shown[:head]}…{shown[len(shown) - tail :]}"


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in _JOINERS


def _spell(character: str) -> str:
    if character.isspace() and character not in "\t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029":
        return " "
    return character.encode("unicode_escape").decode("ascii")
