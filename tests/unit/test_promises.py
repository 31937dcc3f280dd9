"""Every test that docs/promises.md names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "promises.md").read_text("utf-8")


def test_paths_on_the_page_exist() -> None:
    paths = set(re.findall(r"`((?:unit|integration)/[\w./*]+)", PAGE))
    assert len(paths) > 30
    assert not [path for path in sorted(paths) if not list(TESTS.glob(path))]


def test_functions_on_the_page_exist() -> None:
    names = set(re.findall(r"\b(test_\w+)\b(?!\.py)", PAGE))
    texts = [file.read_text("utf-8") for file in TESTS.rglob("test_*.py")]
    functions = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.M)}
    assert len(names) > 15
    assert not names - functions
