from itertools import combinations

import pytest

from sightline.report.colors import PALETTE_SIZE, color_of, hex_color_of, text_color_on


def test_all_colors_of_the_palette_differ() -> None:
    colors = [color_of(label) for label in range(PALETTE_SIZE)]
    assert len(set(colors)) == PALETTE_SIZE
    assert color_of(PALETTE_SIZE) == color_of(0)


@pytest.mark.parametrize(("count", "distance"), [(7, 60), (20, 40), (80, 15)])
def test_colors_are_apart(count: int, distance: float) -> None:
    pairs = combinations([color_of(label) for label in range(count)], 2)
    assert min(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 for a, b in pairs) > distance


def test_hex_is_the_same_color() -> None:
    assert bytes.fromhex(hex_color_of(9)[1:]) == bytes(color_of(9))


def contrast(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    def luminance(rgb: tuple[int, int, int]) -> float:
        shares = [value / 255 for value in rgb]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_on_every_color() -> None:
    for label in range(PALETTE_SIZE):
        assert contrast(color_of(label), text_color_on(color_of(label))) >= 4.5
