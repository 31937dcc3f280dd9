"""The app in a real browser: main paths of every page, names that mean harm, ports and tokens."""

import csv
import io
import json
import math
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from app_browser import browsing, choose, open_options, open_page, serving, settle, shows
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import sightline
from sightline.config import load_config
from sightline.data.decode import encode_jpeg
from sightline.detection.browse import Selection
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model
from sightline.report.colors import color_of
from sightline.report.drawing import draw_boxes

HOSTILE = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "quote\"'`&**bold**", "two\nlines", "e" * 300)
BOARDS = ("open", "short", "mousebite", "spur", "copper", "pin-hole")


def save_model(to: Path, classes: tuple[str, ...], *, seed: int, threshold: float = 0.3) -> Path:
    """A detector that sees things everywhere."""
    torch.manual_seed(seed)
    model = make_model("nano", num_classes=len(classes), size=160)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)
        model.get_parameter("net.class_map.weight").mul_(500)  # Or else it would be equally sure of everything.
    save_bundle(to, model.state_dict(), describe(model, name="nano", classes=classes, score_threshold=threshold), {})
    return to


def few_on(image: bytes, to: Path, *, seed: int) -> Path:
    """One that is sure of some things only in this image."""
    every = sightline.load_model(save_model(to / "every", BOARDS, seed=seed), engine="torch", workspace=to).predict(
        image, threshold=0.05
    )
    assert isinstance(every[0], sightline.Detections)
    scores = every[0].scores
    return save_model(
        to / "few", BOARDS, seed=seed, threshold=math.floor(float(scores[min(6, len(scores) - 1)]) * 100) / 100
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boards, a run, two versions of a model, a job; and a job and a model full of hostile names."""
    root, made = tmp_path_factory.mktemp("workspace"), tmp_path_factory.mktemp("made")
    sightline.synth("boards", to="boards", images=40, size=160, seed=1, workspace=root)
    train = {"model": "nano", "epochs": 1, "size": 160, "batch": 8, "threads": 1}
    sightline.train("boards", name="first", workspace=root, config=load_config(flags={"train": train}))
    image = bytes(sightline.open_dataset("boards", workspace=root).select("test")[0].image)
    for seed in (1, 2):
        sightline.register(few_on(image, made / str(seed), seed=seed), "boards", workspace=root)
    settings = {"engine": "torch", "threads": 1, "workspace": root, "max_rejected": 1.0}
    sightline.detect("boards/1", "boards", "today", where="split='test'", **settings)
    photos = made / "photos"
    photos.mkdir()
    for number, name in enumerate(HOSTILE):
        pixels = np.random.default_rng(number).integers(0, 255, (60, 80, 3), np.uint8)
        (photos / f"{name.replace('/', '')[:200]}.jpg").write_bytes(encode_jpeg(pixels))
    (photos / "broken.jpg").write_bytes(b"nothing")
    hostile = save_model(made / "hostile", HOSTILE, seed=3)
    sightline.register(hostile, "hostile", workspace=root)
    sightline.detect(str(hostile), photos, "hostile", threshold=0.3, **settings)
    return root


@pytest.fixture(scope="module")
def address(workspace: Path) -> Iterator[str]:
    with serving(workspace, "--no-token") as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with browsing(chromium) as browser:
        yield browser


def picture(page: Page, number: int = 0) -> Image.Image:
    """A picture of the page as it was sent."""
    source = page.locator("[data-testid=stImage] img").nth(number).get_attribute("src")
    assert source
    return Image.open(io.BytesIO(page.request.get(source if "://" in source else page.url + source).body())).convert(
        "RGB"
    )


def test_detect_draws_boxes_where_the_model_finds_them(address: str, browser: Browser, workspace: Path) -> None:
    page = open_page(browser, address)
    choose(page, "Model", "boards/1")
    test = sightline.open_dataset("boards", workspace=workspace).select("test")
    model = sightline.load_model("boards/1", workspace=workspace)
    sample = test[0]
    (found,) = model.predict(bytes(sample.image))
    assert isinstance(found, sightline.Detections)
    assert len(found) > 0
    expect(page.get_by_text(f"{sample.file_name}: {len(found)} found")).to_be_visible()
    decoded = Image.open(io.BytesIO(bytes(sample.image))).convert("RGB")
    expected = draw_boxes(decoded, found.boxes, found.labels, classes=model.classes, scores=found.scores)
    sent = picture(page)
    assert sent.size == decoded.size
    assert (np.asarray(sent) == np.asarray(expected)).mean() > 0.99  # Another engine may move an edge by a pixel.
    # The smallest box is drawn last: its left edge is seen on the screen in its class's colour.
    areas = (found.boxes[:, 2] - found.boxes[:, 0]) * (found.boxes[:, 3] - found.boxes[:, 1])
    smallest = int(areas.argmin())
    shot = Image.open(io.BytesIO(page.locator("[data-testid=stImage] img").first.screenshot())).convert("RGB")
    scale = shot.width / decoded.width
    left, top, _, bottom = found.boxes[smallest].tolist()
    edge = [
        shot.getpixel((round((round(left) + 0.5) * scale), round(y * scale)))
        for y in np.linspace(top + 2, bottom - 2, 9)
    ]
    color = np.array(color_of(int(found.labels[smallest])))
    assert min(np.abs(np.array(pixel) - color).max() for pixel in edge) < 60
    truth = draw_boxes(decoded, sample.annotation.boxes, sample.annotation.labels, classes=test.classes)
    assert np.array_equal(np.asarray(picture(page, 1)), np.asarray(truth))


def test_filters_choose_among_what_was_found(address: str, browser: Browser, workspace: Path) -> None:
    page = open_page(browser, address)
    choose(page, "Model", "boards/1")
    test = sightline.open_dataset("boards", workspace=workspace).select("test")
    model = sightline.load_model("boards/1", workspace=workspace)
    (every,) = model.predict(bytes(test[0].image), threshold=0.05)
    assert isinstance(every, sightline.Detections)
    assert model.bundle.info.score_threshold is not None
    slider = page.get_by_role("slider", name="Lowest score")
    slider.focus()
    for _ in range(3):
        slider.press("ArrowRight")
    settle(page)
    lowest = model.bundle.info.score_threshold + 0.03 - 1e-6
    left = int((every.scores >= lowest).sum())
    expect(page.get_by_text(f"{left} found").first).to_be_visible()
    kept = every.names[0]
    choose(page, "Classes", kept)
    of_class = sum(name == kept and score >= lowest for name, score in zip(every.names, every.scores, strict=True))
    expect(page.get_by_text(f"{of_class} found").first).to_be_visible()


def test_several_images_and_downloads(address: str, browser: Browser, workspace: Path) -> None:
    page = open_page(browser, address)
    choose(page, "Model", "boards/1")
    count = page.get_by_label("How many")
    count.fill("2")
    count.press("Enter")
    settle(page)
    expect(page.locator("[data-testid=stImage] img")).to_have_count(4)
    with page.expect_download() as download:
        page.get_by_role("button", name="Rows").first.click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    test = sightline.open_dataset("boards", workspace=workspace).select("test")
    model = sightline.load_model("boards/1", workspace=workspace)
    found = model.predict([bytes(test[place].image) for place in range(2)])
    assert len(rows) == sum(len(list(one.rows())) for one in found)
    with page.expect_download() as download:
        page.get_by_role("button", name="Pictures").first.click()
    assert download.value.suggested_filename == "found.zip"


def test_an_upload_is_looked_at(address: str, browser: Browser, workspace: Path) -> None:
    page = open_page(browser, address)
    choose(page, "Model", "boards/1")
    page.get_by_role("radio", name="Upload").or_(page.get_by_role("button", name="Upload", exact=True)).first.click()
    settle(page)
    data = bytes(sightline.open_dataset("boards", workspace=workspace)[0].image)
    files = [
        {"name": "<b>mine</b>.jpg", "mimeType": "image/jpeg", "buffer": data},
        {"name": "broken.jpg", "mimeType": "image/jpeg", "buffer": b"nothing"},
    ]
    page.locator("input[type=file]").set_input_files(files)  # type: ignore[arg-type]
    expect(page.get_by_text("This did not work")).to_be_visible()
    expect(page.get_by_text("<b>mine</b>.jpg").last).to_be_visible()


def test_a_job_is_browsed_filtered_and_exported(address: str, browser: Browser, workspace: Path) -> None:
    page = open_page(browser, address + "detections")
    choose(page, "Job", "today")
    job = sightline.browse("today", workspace=workspace)
    totals = job.totals()
    shows(page, "Images", f"{totals.images:,}")
    shows(page, "Detections", f"{totals.detections:,}")
    expect(page.locator("[data-testid=stVegaLiteChart]")).to_have_count(2)
    name = job.classes()[0].name
    choose(page, "Classes", name)
    page.keyboard.press("Escape")
    settle(page)
    selection = Selection(labels=(name,))
    shows(page, "Detections", f"{job.totals(selection).detections:,}")
    with page.expect_download() as download:
        page.get_by_role("button", name="Selection as CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert {row["label"] for row in rows} <= {name, ""}
    assert sum(bool(row["label"]) for row in rows) == job.totals(selection).detections


def test_two_models_are_compared_and_picks_exported(address: str, browser: Browser, workspace: Path) -> None:
    page = open_page(browser, address + "compare")
    choose(page, "First model", "boards/1")
    choose(page, "Second model", "boards/2")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("[data-testid=stMetric]")
    settle(page)
    compared = sightline.compare_images("boards/1", "boards/2", "boards", where="split='test'", workspace=workspace)
    differing = [one for one in compared.found if one.weight > 0]
    shows(page, "They disagree on", f"{len(differing):,}")
    expect(page.get_by_text(differing[0].uri.rpartition("/")[2]).last).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Relabelling list").click()
    listed = json.loads(download.value.path().read_text())
    assert len(listed["images"]) == len(differing)
    assert {category["name"] for category in listed["categories"]} == set(BOARDS)


def test_runs_and_data_are_shown(address: str, browser: Browser) -> None:
    page = open_page(browser, address + "runs")
    expect(page.get_by_text("first · nano on boards")).to_be_visible()
    expect(page.locator("[data-testid=stVegaLiteChart]").first).to_be_visible()
    page.get_by_role("link", name="Data").click()
    page.wait_for_selector("[data-testid=stMetric]")
    settle(page)
    shows(page, "Images", "40")
    expect(page.locator("[data-testid=stImage] img").nth(2)).to_be_visible()


def test_hostile_names_are_text(address: str, browser: Browser) -> None:
    page = open_page(browser, address + "detections")
    choose(page, "Job", "hostile")
    open_options(page, "Classes", "<script>alert(1)</script>")
    page.keyboard.press("Escape")
    expect(page.get_by_text("<img src=x onerror=alert(1)>.jpg").first).to_be_visible()
    expect(page.get_by_text("quote\"'`&**bold**.jpg").first).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("strong").count() == 0
    assert not [text for text in page.locator("script").all_inner_texts() if "alert(1)" in text]
    page.goto(address)
    settle(page)
    choose(page, "Model", "hostile/1")
    open_options(page, "Classes", "<img src=x onerror=alert(1)>")
    assert page.locator("img[src=x]").count() == 0


def test_an_empty_workspace_says_what_to_do(tmp_path: Path, browser: Browser) -> None:
    with serving(tmp_path / "new", "--no-token") as (url, _):
        page = open_page(browser, url)
        expect(page.get_by_text("train a model first")).to_be_visible()
        expect(page.get_by_role("button", name="Run the demo")).to_be_visible()
        for place in ("detections", "compare", "runs", "data"):
            page.goto(url + place)
            settle(page)
            expect(page.get_by_text("There is nothing here yet")).to_be_visible()
    assert not list(tmp_path.iterdir()), "looking has made something"


def listening(pid: int) -> set[str]:
    """Addresses on which a process listens, as the kernel writes them."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        target = str(file.readlink()) if file.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            part = line.split()
            if part[3] == "0A" and part[9] in inodes:
                found.add(part[1].partition(":")[0])
    return found


def handshake(port: int, host: str) -> str:
    """The status with which the websocket answers to a page of this name, which may lead to this machine."""
    lines = [
        "GET /_stcore/stream HTTP/1.1",
        f"Host: {host}:{port}",
        f"Origin: http://{host}:{port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        "",
        "",
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return connection.recv(200).decode("latin-1").split()[1]


def test_only_loopback_listens(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-token") as (url, pid):
        urllib.request.urlopen(url).close()
        assert url.startswith("http://127.0.0.1:")
        assert listening(pid) == {"0100007F"}
        port = int(url.rstrip("/").rpartition(":")[2])
        assert handshake(port, "127.0.0.1") == "101"
        assert handshake(port, "evil.example") == "403"


def test_folders_below_the_root_are_shown_and_no_others(workspace: Path, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "root/photos").mkdir(parents=True)
    pixels = np.random.default_rng(1).integers(0, 255, (60, 80, 3), np.uint8)
    for place in ("root/photos/inside.jpg", "outside.jpg"):
        (tmp_path / place).write_bytes(encode_jpeg(pixels))
    with serving(workspace, "--no-token", "--browse", str(tmp_path / "root")) as (url, _):
        page = open_page(browser, url)
        choose(page, "Model", "boards/1")
        page.get_by_role("radio", name="Folder").or_(
            page.get_by_role("button", name="Folder", exact=True)
        ).first.click()
        settle(page)
        for text, said in (("photos", "inside.jpg: "), ("..", "'..' is not below"), (str(tmp_path), "is not below")):
            page.get_by_label("Folder", exact=True).fill(text)
            page.get_by_label("Folder", exact=True).press("Enter")
            settle(page)
            expect(page.get_by_text(said).first).to_be_visible()
            expect(page.get_by_text("outside.jpg")).to_have_count(0)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_every_request_is_asked_for_the_token(workspace: Path, browser: Browser, address: str) -> None:
    with serving(workspace, "--address", address) as (url, pid):
        assert listening(pid) == {"0100007F" if address == "127.0.0.1" else "00000000"}
        home, _, token = url.replace("0.0.0.0", "127.0.0.1").partition("?token=")
        for path in ("", "_stcore/health", "_stcore/host-config", "media/abc.png", "static/js/index.js", "detections"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(home + path)
        stranger = browser.new_context().new_page()
        answer = stranger.goto(home)
        assert answer is not None
        assert answer.status == 401
        closed = stranger.evaluate(
            "address => new Promise(done => { const socket = new WebSocket(address);"
            " socket.onopen = () => done('open'); socket.onerror = () => done('refused'); })",
            home.replace("http", "ws") + "_stcore/stream",
        )
        assert closed == "refused"
        page = open_page(browser, f"{home}?token={token}")
        assert token not in page.url
        expect(page.get_by_text("found").first).to_be_visible()
        media = page.locator("[data-testid=stImage] img").first.get_attribute("src")
        assert media
        assert page.request.get(home + media.lstrip("/")).status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(home + media.lstrip("/"))
