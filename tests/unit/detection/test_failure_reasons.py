"""The table of docs/promises.md has every reason for which `detect` rejects an image, with its stage."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sightline
from sightline import errors
from sightline.errors import ImageError, SightlineError

PACKAGE = Path(sightline.__file__).parent
PROMISES = Path(__file__).parents[3] / "docs" / "promises.md"
FILES = [
    *sorted((PACKAGE / "detection").rglob("*.py")),
    *(PACKAGE / "data" / name for name in ("storage.py", "decode.py", "magic.py")),
]
OTHERS = {"again.py", "pictures.py"}
"""Look at a job's images again; they write no rows."""
SHARED = {("decode", "image text is not base64")}
"""Of formats/table.py, whose other reasons are those of `ingest`."""


SIDES = {"image", "entry", "source", "target", "worker", "machine"}


def table() -> list[tuple[str, str, str, str]]:
    """Reason, side, stage and outcome of every row, without headings."""
    lines = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) ?\| ([^|]+) \|$", PROMISES.read_text(), re.M)
    start = next(number for number, line in enumerate(lines) if line[:3] == ("reason", "side", "stage "))
    return [(reason, side, stage.strip(), end) for reason, side, stage, end in lines[start + 2 :]]


def reasons(file: Path) -> Iterator[tuple[str, str]]:
    """Stage and reason of every ImageError that a file makes, and of the members that an archive refuses."""
    tree = ast.parse(file.read_text())
    constants = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target, value in pairs(node):
                if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                    constants[target.id] = value.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ImageError":
            stages = [word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)]
            for reason in texts(node.args[0], constants):
                yield next(iter(stages), ImageError("").stage), reason
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"!\w", node.value):
            yield "path", node.value[1:]


def pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    target = node.targets[-1]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        yield from zip(target.elts, node.value.elts, strict=False)
    else:
        yield target, node.value


def texts(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """The values that an expression may have; none of one that passes a reason on."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name):
            yield constants[name]
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts(body, constants)
            yield from texts(orelse, constants)


def test_every_reason_is_on_the_page_with_its_stage() -> None:
    found = SHARED | {pair for file in FILES if file.name not in OTHERS for pair in reasons(file)}
    rejected = [(stage, re.sub(r" \(.*\)$", "", reason)) for reason, _, stage, end in table() if end == "rejected"]
    assert set(rejected) == found
    assert len(found) > 30
    assert {stage for stage, _ in found} == {"path", "read", "decode", "detect"}


def test_every_failure_is_attributed_to_one_of_six_sides() -> None:
    """What is rejected is an image's fault, or its entry's; all else ends the run with an error that exists."""
    for reason, side, stage, end in table():
        words = side.split(",")[0]
        assert words in SIDES, f"{reason!r} is on the side {side!r}"
        assert (end == "rejected") == (words in ("image", "entry")) == bool(stage), reason
        if end != "rejected":
            named = re.match(r"`(\w+)`", reason)
            assert named, f"{reason!r} names no error"
            assert issubclass(getattr(errors, named[1], object), SightlineError), f"there is no {named[1]}"
    assert {side.split(",")[0] for _, side, _, _ in table()} == SIDES
