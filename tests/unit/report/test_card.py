"""Names in a model card are shown as they are, and never become Markdown or HTML."""

import pytest
from markdown_it import MarkdownIt

from sightline.models.info import DatasetNote, ModelInfo, Preprocessing, RunNote
from sightline.models.letterbox import Letterbox
from sightline.report.card import model_card

HOSTILE = [
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "![x](http://evil.example/x.png)",
    "a | b | c",
    "`code`",
    "# heading\n# another",
    "**bold**",
    "- list",
    "http://evil.example",
    "&lt;b&gt;",
    "\x1b[31mred",
    "\u202egnp.exe",
    "```\nfence",
    "x\n\n<img src=x onerror=alert(1)>",
]


def info(name: str) -> ModelInfo:
    return ModelInfo(
        model="nano",
        task="detection",
        classes=(name, "plain"),
        preprocessing=Preprocessing.of(Letterbox(64)),
        metrics={"map": 0.25, "map33": 0.5},
        per_class=({"ap": 0.1, "count": 3.0}, {"ap": 0.2}),
        dataset=DatasetNote(name=name, content_hash="ab"),
        run=RunNote(name=name, run_id=name),
        licence=name,
        versions={name: name},
    )


def kinds(text: str) -> list[str]:
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    return [inner.type for token in tokens for inner in (token, *(token.children or []))]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_change_nothing_but_the_words(name: str) -> None:
    card, harmless = (model_card(info(text), ["picture-00.jpg"]) for text in (name, "harmless"))
    assert kinds(card) == kinds(harmless)
    assert not {"html_block", "html_inline", "link_open"} & set(kinds(card))
    assert kinds(card).count("image") == 1
    assert "\x1b" not in card
    assert "\u202e" not in card
    assert "://" not in card


def test_it_shows_figures_classes_and_pictures() -> None:
    card = model_card(info("bad solder"), ["picture-00.jpg"])
    page = MarkdownIt("commonmark").enable("table").render(card)
    assert "<td>bad solder</td>" in page
    assert "mAP at IoU 0.33" in page
    assert "| 0.100 |" in card
    assert '<img src="picture-00.jpg"' in page
    assert "sightline.load_model" in page
