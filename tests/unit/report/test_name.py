import pytest

from sightline.report.name import one_line


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain.jpg", "plain.jpg"),
        ("größe 日本", "größe 日本"),
        ("a\tb\r\n", "a\\tb\\r\\n"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("wide\u00a0space", "wide space"),
        ("family \U0001f468\u200d\U0001f469", "family \U0001f468\u200d\U0001f469"),
    ],
)
def test_only_what_acts_on_the_screen_is_spelled_out(name: str, shown: str) -> None:
    assert one_line(name) == shown


@pytest.mark.parametrize("limit", [1, 2, 5, 40])
def test_long_names_keep_their_ends(limit: int) -> None:
    shown = one_line("begin" + "x" * 300 + "end", limit=limit)
    assert len(shown) == limit
    assert shown.startswith("begin"[: limit // 2])
    assert shown.endswith("end"[-((limit - 1) // 2) :] if limit > 2 else "…")
