"""A verdict on every box; the good ones stay."""

import io
import math

import numpy as np
import pytest
from builders import boxes_of, encode, jpeg, png, rejects_of, voc_xml, write_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sightline.data.decode import ImageHeader, decode, read_header
from sightline.data.record import Loaded, RawBox
from sightline.data.verdict import judge_boxes

SIDE = st.integers(1, 5000)
WILD = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-100, 6000) | st.integers(-10, 5010).map(float)


def judge(boxes, *, width=100, height=80, declared=None, normalised=False, orientation=1):
    raw = [RawBox(*box, label=number, where=f"box {number}") for number, box in enumerate(boxes)]
    loaded = Loaded(b"", raw, declared_size=declared, normalised=normalised)
    return judge_boxes("x", loaded, ImageHeader("PNG", width, height, orientation))


@pytest.mark.parametrize(
    ("box", "kept", "reason", "action"),
    [
        ((1, 2, 30, 40), (1, 2, 30, 40), None, None),
        ((0, 0, 100, 80), (0, 0, 100, 80), None, None),
        ((-1, -1, 101, 81), (0, 0, 100, 80), None, None),  # within a pixel: tools round
        ((1, 2, 130, 40), (1, 2, 100, 40), "box clipped to the image", "box repaired"),
        ((-50, 2, 30, 40), (0, 2, 30, 40), "box clipped to the image", "box repaired"),
        ((30, 40, 1, 2), (1, 2, 30, 40), "corners swapped", "box repaired"),
        ((30, 2, 1, 40), (1, 2, 30, 40), "corners swapped", "box repaired"),
        ((130, 2, 1, 40), (1, 2, 100, 40), "corners swapped", "box repaired"),
        ((5, 5, 5, 9), None, "box without area", "box rejected"),
        ((5, 5, 5, 5), None, "box without area", "box rejected"),
        ((16777216.0, 5, 16777217.0, 9), None, "box outside the image", "box rejected"),
        ((5, 5, 5.0000000001, 9), None, "box without area", "box rejected"),
        ((100, 5, 130, 9), None, "box outside the image", "box rejected"),
        ((-30, 5, 0, 9), None, "box outside the image", "box rejected"),
        ((math.nan, 5, 30, 9), None, "box is not finite", "box rejected"),
        ((1, 5, math.inf, 9), None, "box is not finite", "box rejected"),
        ((1, -math.inf, 5, 9), None, "box is not finite", "box rejected"),
    ],
)
def test_each_fault(box, kept, reason, action):
    good = (10, 10, 20, 20)
    annotation, rejects = judge([good, box, good])
    middle = annotation.boxes.tolist()[1:-1]
    assert annotation.boxes.tolist()[0] == annotation.boxes.tolist()[-1] == list(good)
    assert middle == ([list(kept)] if kept else [])
    assert [(reject.reason, reject.action) for reject in rejects] == ([(reason, action)] if reason else [])
    assert all(reject.detail.startswith("box 1: ") for reject in rejects)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(WILD, WILD, WILD, WILD), max_size=8), SIDE, SIDE, st.booleans(), st.integers(1, 8), st.booleans()
)
def test_one_verdict_a_box_and_kept_ones_are_inside(boxes, width, height, normalised, orientation, declare):
    declared = None
    if declare:
        declared = (height, width) if orientation > 4 else (width, height)
    annotation, rejects = judge(
        boxes, width=width, height=height, declared=declared, normalised=normalised, orientation=orientation
    )
    rejected = [int(r.detail.split(":")[0].split()[1]) for r in rejects if r.action == "box rejected"]
    repaired = [int(r.detail.split(":")[0].split()[1]) for r in rejects if r.action == "box repaired"]
    kept = annotation.labels.tolist()
    assert sorted(kept + rejected) == list(range(len(boxes)))
    assert len(set(repaired)) == len(repaired)
    assert set(repaired) <= set(kept)
    found = annotation.boxes
    assert found.dtype == np.float32
    assert (found[:, :2] >= 0).all()
    assert (found[:, 2:] <= np.array([width, height])).all()
    assert (found[:, :2] < found[:, 2:]).all()


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 2000), st.integers(2, 2000))
def test_good_boxes_stay_as_they_are(data, width, height):
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (x0, y0, data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height)))
    annotation, rejects = judge([box], width=width, height=height)
    assert annotation.boxes.tolist() == [list(box)]
    assert rejects == []
    shares = (box[0] / width, box[1] / height, box[2] / width, box[3] / height)
    annotation, rejects = judge([shares], width=width, height=height, normalised=True)
    assert np.abs(annotation.boxes - box).max() < 0.01


def test_wrong_declared_size_is_noted_and_boxes_kept():
    annotation, (reject,) = judge([(1, 2, 30, 40)], declared=(640, 480))
    assert annotation.boxes.tolist() == [[1, 2, 30, 40]]
    assert (reject.reason, reject.action) == ("declared size is wrong", "noted")
    assert "declared 640 x 480, is 100 x 80" in reject.detail


STORED, BOX = (60, 40), (8, 4, 28, 20)


# Below 5 the sides do not tell: such boxes are taken to be drawn on the upright image.
@pytest.mark.parametrize(
    ("orientation", "drawn_on"), [*((n, "upright") for n in range(1, 9)), *((n, "stored") for n in range(5, 9))]
)
def test_boxes_of_rotated_images_follow_the_declared_size(orientation, drawn_on, tmp_path, ingest):
    """The box lies on the painted rectangle, whichever way its author saw the image."""
    pixels = np.zeros((STORED[1], STORED[0], 3), np.uint8)
    pixels[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(Image.fromarray(pixels), "PNG", exif=exif)
    upright = decode(data)
    ys, xs = np.nonzero(upright[..., 0])
    truth = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
    size = STORED if drawn_on == "stored" else (upright.shape[1], upright.shape[0])
    box = BOX if drawn_on == "stored" else truth
    files = {"1.png": data, "1.xml": voc_xml([("a", *box)], size=size)}
    dataset = ingest(write_tree(tmp_path / "s", files))
    assert boxes_of(dataset) == {"1.png": [("a", *truth, False)]}
    assert (dataset[0].width, dataset[0].height) == (upright.shape[1], upright.shape[0])
    assert rejects_of(dataset) == []


def test_verify_header_finds_sizes_without_decoding(tmp_path, ingest):
    whole = jpeg(64, 48)
    files = {"a/whole.jpg": whole, "a/cut.jpg": whole[:-200], "a/cut.png": png(64, 48)[:-300]}
    source = write_tree(tmp_path / "s", files)
    assert {row[1] for row in rejects_of(ingest(source))} == {"truncated image"}
    dataset = ingest(source, verify="header")
    assert [(sample.width, sample.height) for sample in dataset] == [(64, 48)] * 3
    assert Image.open(io.BytesIO(dataset[0].image)).size == read_header(dataset[0].image).stored_size
