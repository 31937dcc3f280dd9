"""What a file says of itself is read as data, whoever wrote it."""

from pathlib import Path

import pytest
from yolo_files import NAMES, make_yolo

from sightline.errors import FormatError
from sightline.models.yolo_metadata import YoloMetadata, numbered_names, read_metadata


def test_what_ultralytics_writes() -> None:
    said = read_metadata(make_yolo())
    assert said == YoloMetadata(classes=NAMES, licence="AGPL-3.0", stride=32, size=128)


def test_a_file_that_says_nothing() -> None:
    assert read_metadata(make_yolo(noted={})) == YoloMetadata()


@pytest.mark.parametrize(
    ("noted", "licence"),
    [
        ({"author": "Ultralytics"}, "AGPL-3.0"),
        ({"author": "somebody"}, None),
        ({"license": "Apache-2.0", "author": "Ultralytics"}, "Apache-2.0"),
        ({"license": " two \n lines "}, "two lines"),
        ({"license": "x" * 5000}, "x" * 200),
    ],
)
def test_licences(noted: dict[str, str], licence: str | None) -> None:
    assert read_metadata(make_yolo(noted=noted)).licence == licence


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "__import__('pathlib').Path('MARK').touch()", "{0: open('MARK', 'w')}", "1" * 9999, "x"],
)
def test_nothing_in_it_is_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = read_metadata(make_yolo(noted={"names": text, "stride": text, "imgsz": text}))
    assert said == YoloMetadata()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["0", "-32", "True", "1e9", "100000", "'32'"])
def test_senseless_strides_and_sizes_are_not_taken(value: str) -> None:
    said = read_metadata(make_yolo(noted={"stride": value, "imgsz": f"[{value}]"}))
    assert (said.stride, said.size) == (32, None)


@pytest.mark.parametrize(
    "names", [["a", "b"], {0: "a", 1: "b"}, {"1": "b", "0": "a"}], ids=["list", "numbers", "texts"]
)
def test_names(names: object) -> None:
    assert numbered_names(names) == ("a", "b")


@pytest.mark.parametrize("names", [[], {1: "a"}, {0: "a", 2: "b"}, {"x": "a"}, [None], ["a", ["b"]], {None: "a"}])
def test_names_that_are_none(names: object) -> None:
    with pytest.raises(FormatError, match="must be numbered from 0"):
        numbered_names(names)
