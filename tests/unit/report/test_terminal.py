import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from sightline.report.inspection import inspect_dataset
from sightline.report.terminal import print_inspection


def printed(dataset: Any) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    print_inspection(console, inspect_dataset(dataset))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_names_are_printed_as_they_are(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("[bold red]loud[/]", "esc\x1b[31m\nape", "x" * 300)
    source.add("train", "[link=file]a.png", [(0, 10, 10, 1, 1), (1, 50, 10, 20, 20), (2, 90, 10, 20, 20)])
    source.add_bytes("train", "[red]broken.png", b"nothing")
    text = printed(source.ingest(tmp_path / "set"))
    for name in ("[bold red]loud[/]", "esc\\x1b[31m\\nape", "[link=file]a.png", "[red]broken.png", "not an image"):
        assert name in text
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_counts_and_findings_are_printed(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat", "dog")
    source.add("train", "a.png", [(0, 10, 10, 20, 20), (0, 60, 10, 20, 20), (1, 100, 10, 1, 1)], seed=1)
    source.add("val", "b.png", [(0, 10, 10, 20, 20)], seed=1)
    lines = [line.split() for line in printed(source.ingest(tmp_path / "set")).splitlines()]
    assert ["■", "cat", "2", "1", "3"] in lines
    assert ["images", "1", "1", "2"] in lines
    assert any(line[:6] == ["problem", "images", "in", "more", "than", "one"] for line in lines)
    assert any(line[:3] == ["warning", "tiny", "boxes"] for line in lines)


def test_many_classes_are_summed_up(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source(*(f"class {number}" for number in range(30)))
    source.add("train", "a.png", [(label, 5 * label, 10, 20, 20) for label in range(30)])
    lines = [line.split() for line in printed(source.ingest(tmp_path / "set")).splitlines()]
    assert ["10", "more", "classes", "10", "10"] in lines


def test_classification_has_no_boxes(class_folder: Any) -> None:
    text = printed(class_folder)
    assert "box" not in text
    assert "■ cat" in text
