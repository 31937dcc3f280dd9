"""A name holds the old content or the new one, whole, whatever happens to its writers."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sightline.data import atomic
from sightline.data.atomic import partial_directory, publish_directory, recover_directory, replacing_file


def write(final: Path, text: str) -> None:
    with partial_directory(final) as partial:
        for name in "ab":
            (partial / name).write_text(text)
        publish_directory(partial, final)


def test_a_directory_is_never_absent_while_it_is_replaced(tmp_path: Path) -> None:
    final, ended, missing = tmp_path / "final", threading.Event(), []
    write(final, "0")

    def watch() -> None:
        while not ended.is_set():
            if not (final / "a").exists():
                missing.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(100):
        write(final, str(number))
    ended.set()
    watcher.join()
    assert not missing
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize("exchange", [True, False])
def test_many_writers_of_one_name_do_not_mix(tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:  # As on a file system that cannot exchange two names.
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    final = tmp_path / "final"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write(final, str(number)), range(40)))
    assert (final / "a").read_text() == (final / "b").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_the_old_content_comes_back_if_its_writer_died_between_two_renames(tmp_path: Path) -> None:
    final = tmp_path / "final"
    write(final, "old")
    final.rename(tmp_path / f".final.{'0' * 16}.old")
    recover_directory(final)
    assert (final / "a").read_text() == "old"
    recover_directory(final)
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")

    def fail() -> None:
        with replacing_file(file) as partial:
            partial.write_text("ne")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert file.read_text() == "old"
    with replacing_file(file) as partial:
        partial.write_text("new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "new")]


def test_what_a_killed_writer_left_is_removed_after_a_day(tmp_path: Path) -> None:
    young, stale, other = (tmp_path / f".{name}.tmp" for name in ("final." + "0" * 16, "final." + "1" * 16, "final.x"))
    for path in (young, stale, other):
        path.mkdir()
    long_ago = time.time() - 2 * 24 * 3600
    for path in (stale, other):
        os.utime(path, (long_ago, long_ago))
    write(tmp_path / "final", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, other.name, "final"])
