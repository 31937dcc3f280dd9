import base64
import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sightline.errors import StorageError
from sightline.report.inspection import inspect_dataset
from sightline.report.page import write_inspection_page

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)> & 'quotes'",
    "</text></svg><script>alert(2)</script>",
    "new\nline \x1b[31m {{ 7 * 7 }} {% raw %}",
    "L" + "o" * 298 + "ng",
]


class Page(HTMLParser):
    """Elements, attributes and text of a page, as a browser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in_style = False
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.text += data

    def attributes(self, *names: str) -> list[str]:
        return [value or "" for _, attrs in self.tags for name, value in attrs.items() if name in names]


@pytest.fixture
def hostile_page(coco_source: Callable[..., Any], tmp_path: Path) -> Page:
    source = coco_source(*HOSTILE, "never <i>seen</i>")
    for number in range(12):
        name = ["<b>bold<script>{}.png", 'it\'s "quoted" {}.png', "x" * 200 + "{}.png"][number % 3].format(number)
        boxes = [(label, 20 * label, 10, 15, 30) for label in range(len(HOSTILE))]
        source.add("train" if number < 9 else "val", name, [*boxes, (0, 150, 10, 1, 1)], seed=number % 11)
    source.add_bytes("train", "<script>broken.png", b"<script>alert(3)</script>")
    dataset = source.ingest(tmp_path / "set")
    write_inspection_page(dataset, inspect_dataset(dataset), tmp_path / "page.html")
    return Page(tmp_path / "page.html")


def test_hostile_names_are_text_and_nothing_else(hostile_page: Page) -> None:
    tags = {tag for tag, _ in hostile_page.tags}
    assert not tags & {"script", "b", "i", "iframe", "object", "link"}
    assert not [name for _, attrs in hostile_page.tags for name in attrs if name.startswith("on")]
    assert all(value.startswith("data:image/jpeg;base64,") for value in hostile_page.attributes("src"))
    for name in (
        "<script>alert(1)</script>",
        "new\\nline \\x1b[31m {{ 7 * 7 }}",
        "<b>bold<script>0.png",
        "never <i>seen</i>",
    ):
        assert name in hostile_page.text


def test_the_charts_show_hostile_names_as_text_too(hostile_page: Page) -> None:
    chart = hostile_page.source[hostile_page.source.index("<svg") :]
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", chart[: chart.index("</svg>")])
    assert any(label.startswith("&lt;script&gt;alert(1)") for label in labels)
    assert any(label.startswith("&lt;/text&gt;&lt;/svg&gt;") for label in labels)


def test_the_page_needs_nothing_else(hostile_page: Page) -> None:
    assert not [link for link in hostile_page.attributes("src", "href", "xlink:href") if not link.startswith("data:")]
    assert "url(" not in hostile_page.source
    assert "@import" not in hostile_page.source
    policies = [attrs["content"] for tag, attrs in hostile_page.tags if tag == "meta" and "http-equiv" in attrs]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_the_page_shows_pictures_findings_and_rejects(hostile_page: Page) -> None:
    pictures = [attrs["src"] or "" for tag, attrs in hostile_page.tags if tag == "img"]
    assert len(pictures) >= 12
    for picture in pictures:
        image = Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2])))
        assert max(image.size) <= 360
    for text in ("Tiny boxes", "Images in more than one split", "not an image", "<script>broken.png"):
        assert text in hostile_page.text
    assert len(hostile_page.source) < 3_000_000


def test_a_classification_dataset_has_a_page(class_folder: Any, tmp_path: Path) -> None:
    write_inspection_page(class_folder, inspect_dataset(class_folder), tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert "Dataset for classification" in page.text
    assert [attrs for tag, attrs in page.tags if tag == "b"] == [{"class": "name label"}] * 18
    assert "Boxes" not in page.text


def test_an_image_that_cannot_be_decoded_does_not_spoil_the_page(
    coco_source: Callable[..., Any], tmp_path: Path
) -> None:
    source = coco_source("cat")
    source.add("train", "good.png", [(0, 10, 10, 40, 40)])
    whole = (tmp_path / "source" / "train" / "good.png").read_bytes()
    source.add_bytes("train", "cut.png", whole[: len(whole) // 2])
    dataset = source.ingest(tmp_path / "set", verify="header")
    assert len(dataset) == 2
    write_inspection_page(dataset, inspect_dataset(dataset), tmp_path / "page.html")
    assert "truncated image" in Page(tmp_path / "page.html").text or "broken image" in Page(tmp_path / "page.html").text


def test_pages_are_the_same_each_time_and_replaced_whole(class_folder: Any, tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_inspection_page(class_folder, inspect_dataset(class_folder), path)
    first = path.read_bytes()
    path.write_text("old")
    write_inspection_page(class_folder, inspect_dataset(class_folder), path)
    assert path.read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["page.html"]


def test_a_place_that_cannot_be_written_is_named(class_folder: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(StorageError, match=r"page\.html"):
        write_inspection_page(class_folder, inspect_dataset(class_folder), tmp_path / "page.html")
    assert not [entry for entry in tmp_path.iterdir() if entry.suffix == ".part"]
