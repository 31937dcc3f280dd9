"""The inspect page in a real browser."""

import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

import sightline


def browse(chromium: str, page: Path, tmp_path: Path, *options: str) -> str:
    flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-sync"
    quiet = "--disable-background-networking --disable-component-update --disable-quic"
    command = [
        chromium,
        *flags.split(),
        *quiet.split(),
        f"--user-data-dir={tmp_path / 'profile'}",
        *options,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_page_renders_offline(chromium: str, tmp_path: Path) -> None:
    sightline.synth("boards", "boards", images=24, seed=4, size=256, workspace=tmp_path)
    page = tmp_path / "boards.html"
    sightline.inspect("boards", html=page, workspace=tmp_path)
    document = browse(chromium, page, tmp_path, "--dump-dom")
    assert "mousebite" in document
    assert document.count("data:image/jpeg;base64,") >= 12
    assert document.count("<svg") >= 3

    browse(chromium, page, tmp_path, f"--screenshot={tmp_path / 'page.png'}", "--window-size=1200,1600")
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("L"))
    assert pixels.shape == (1600, 1200)
    assert pixels.std() > 10, "the page is blank"
