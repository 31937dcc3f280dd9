"""The app as a process, and a browser that looks at it."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MS = 120_000  # Other work may take most of the machine.
QUIET_S = 1.0
"""Nothing to do for so long counts as being at rest: a script may be about to run when the last one ends."""
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def serving(workspace: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Run `sightline app`; gives the address that it printed, and its process."""
    command = [sys.executable, "-u", "-m", "sightline", "app", "--workspace", str(workspace), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found, said + process.stdout.read()
        yield found[0], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode in (0, -signal.SIGINT, 130), rest
    assert "Traceback" not in rest, rest
    assert "nanobind" not in rest, rest


@contextmanager
def browsing(chromium: str) -> Iterator[Browser]:
    """A real browser without a screen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        yield browser
        browser.close()


def open_page(browser: Browser, url: str, **options: object) -> Page:
    """A page of the app in a window of its own; a dialogue that a hostile name opens fails the test."""
    page = browser.new_context(viewport={"width": 1400, "height": 1000}, **options).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    page.on("dialog", lambda dialog: (_ for _ in ()).throw(AssertionError(f"a dialogue opened: {dialog.message}")))
    page.goto(url)
    settle(page)
    return page


def settle(page: Page) -> None:
    """Wait until the app has had nothing to do for `QUIET_S`."""
    page.wait_for_selector("[data-testid=stMain]")
    page.evaluate("() => { window.quietSince = undefined; }")
    page.wait_for_function(
        "quietMs => { const app = document.querySelector('[data-testid=stApp]');"
        " const busy = app?.getAttribute('data-test-script-state') !== 'notRunning'"
        " || document.querySelector('[data-testid=stSpinner], [data-testid=stSkeleton], [data-stale=true]')"
        " || ![...document.images].every(image => image.complete);"
        " if (busy) { window.quietSince = undefined; return false; }"
        " window.quietSince ??= performance.now(); return performance.now() - window.quietSince > quietMs; }",
        arg=1000 * QUIET_S,
        polling=50,
    )


def choose(page: Page, label: str, option: str) -> None:
    """Choose an option of a select box."""
    open_options(page, label, option)
    page.get_by_role("option", name=option, exact=True).click()
    settle(page)


def open_options(page: Page, label: str, option: str) -> None:
    """Open a select box until it shows an option; it closes when the page is drawn anew."""
    wanted = page.get_by_role("option", name=option, exact=True)
    for _ in range(10):
        page.get_by_label(label, exact=True).first.click()
        with suppress(AssertionError):
            expect(wanted).to_be_visible(timeout=PATIENCE_MS / 10)
            return
        page.keyboard.press("Escape")
    expect(wanted).to_be_visible()


def shows(page: Page, label: str, value: str) -> None:
    """Wait until a number of the page shows this value."""
    metric = page.locator("[data-testid=stMetric]").filter(has=page.get_by_text(label, exact=True))
    expect(metric.locator("[data-testid=stMetricValue]")).to_have_text(value)
