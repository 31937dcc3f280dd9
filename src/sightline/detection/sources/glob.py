"""Images whose paths match a pattern such as `photos/**/*.jpg` or `s3://bucket/a*/x?.png`."""

import posixpath
import re
from fnmatch import translate

from sightline.data.formats.layout import is_image
from sightline.detection.sources.folder import FolderSource
from sightline.detection.sources.names import scheme_of, shown, split_query
from sightline.errors import ConfigError

_WILDCARD = re.compile(r"[*?\[]")


class GlobSource(FolderSource):
    """Files below the folder that the pattern begins with; `**` is any depth, hidden files are left out."""

    def __init__(self, pattern: str) -> None:
        root, self._parts = split_pattern(pattern)
        super().__init__(root)

    @property
    def name(self) -> str:
        """The pattern, from an absolute path or URL on."""
        return shown(posixpath.join(self._public, *self._parts))

    def _choice(self) -> "Matching":
        return Matching(self._parts)


def has_wildcard(location: str) -> bool:
    """Whether a location is a pattern; the query of a URL has no part in it."""
    path = split_query(location)[0] if scheme_of(location) else location
    return _WILDCARD.search(path) is not None


def split_pattern(pattern: str) -> tuple[str, tuple[str, ...]]:
    """The folder up to the first part with a wildcard, and the parts from there on.

    >>> split_pattern("photos/2024/**/*.jpg")
    ('photos/2024', ('**', '*.jpg'))
    """
    base, query = split_query(pattern) if scheme_of(pattern) else (pattern, "")
    parts = base.split("/")
    first = next(number for number, part in enumerate(parts) if _WILDCARD.search(part))
    rest = tuple(part for part in parts[first:] if part not in ("", "."))
    if ".." in rest:
        raise ConfigError(f"pattern {pattern!r} has '..' behind a wildcard: write the folder in front of the first one")
    root = "/".join(parts[:first])
    return (root or ("/" if base.startswith("/") else ".")) + query, rest


class Matching:
    """Paths that match a pattern; a state is the set of parts that may come next."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self._tests = [None if part == "**" else re.compile(translate(part)) for part in parts]
        suffix = posixpath.splitext(parts[-1])[1]
        # Who writes "*.dat" means it; with "*" they mean images.
        literal = not _WILDCARD.search(parts[-1]) or (suffix != "" and not _WILDCARD.search(suffix))
        self._any_suffix = literal
        self.start = self._with_skipped({0})

    def below(self, state: frozenset[int], name: str) -> frozenset[int] | None:
        """The parts that may come next within a folder of this name."""
        return self._advance(state, name) - {len(self._tests)} or None

    def wants(self, state: frozenset[int], name: str) -> bool:
        """Whether the whole pattern has been met with this file."""
        return (self._any_suffix or is_image(name)) and len(self._tests) in self._advance(state, name)

    def _advance(self, state: frozenset[int], name: str) -> frozenset[int]:
        found = set()
        for number in state:
            if number == len(self._tests):
                continue
            test = self._tests[number]
            if test is None:
                found.add(number)
            elif test.match(name):
                found.add(number + 1)
        return self._with_skipped(found)

    def _with_skipped(self, numbers: set[int]) -> frozenset[int]:
        """`**` also stands for no folder at all."""
        for number in sorted(numbers):
            while number < len(self._tests) and self._tests[number] is None:
                number += 1
                numbers.add(number)
        return frozenset(numbers)
