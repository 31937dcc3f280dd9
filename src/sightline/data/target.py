"""Where a dataset is written: complete or absent, whether on a disk or in a bucket."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs as pafs

from sightline.data.disk import make_directory, sync
from sightline.data.schema import MANIFEST
from sightline.data.storage import Folder
from sightline.errors import ExistsError, StorageError
from sightline.process_identity import is_abandoned, unique_name


class DatasetTarget:
    """The place of one dataset.

    On a disk everything is written into a hidden directory beside it, which is renamed at the end. In a bucket, where
    nothing can be renamed, files are uploaded as they are finished, or all at the end when they replace others; the
    manifest, without which there is no dataset, comes last.
    """

    def __init__(self, location: str, *, replace: bool = False) -> None:
        self.folder = Folder.open(location)
        self.name = self.folder.path.rstrip("/").rsplit("/", 1)[-1]
        self._replace = replace
        self._directory = Path()
        self._waiting: list[str] | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="sightline-sync")
        self._syncing: list[Future[None]] = []

    @contextmanager
    def open(self) -> Iterator[Path]:
        """A local directory to write into; what was published is kept if the block succeeds."""
        self.refuse_existing()
        try:
            if self.folder.is_local:
                yield from self._open_local()
            else:
                yield from self._open_bucket()
        except OSError as error:
            raise StorageError(f"cannot write dataset {self.folder.location!r}: {error}") from error

    def publish(self, file: str, *, keep: bool = True) -> None:
        """Say that a file is finished: it goes to its place, or away if it holds nothing."""
        path = self._directory / file
        if not keep:
            path.unlink()
        elif self._waiting is not None:
            self._waiting.append(file)
        elif self.folder.is_local:
            self._syncing.append(self._disk.submit(sync, path))  # While the workers go on with the next shards.
        else:
            self._upload(file)

    def _upload(self, file: str) -> None:
        path = self._directory / file
        pafs.copy_files(str(path), self.folder.full_path(file), pafs.LocalFileSystem(), self.folder.filesystem)
        path.unlink()

    def refuse_existing(self) -> None:
        """Raise if something would be overwritten; asked first, before any long work."""
        if self.folder.is_file(MANIFEST):
            if not self._replace:
                raise ExistsError(f"dataset {self.folder.location!r} exists: take another name, or --replace it")
        elif self.folder.is_file("") or (self.folder.is_local and any(Path(self.folder.path).glob("*"))):
            raise ExistsError(f"{self.folder.location!r} exists and is not a dataset: take another name or path")

    def _open_local(self) -> Iterator[Path]:
        final = Path(self.folder.path)
        make_directory(final.parent)
        _remove_abandoned(final)
        self._directory = final.parent / f".{final.name}.{unique_name()}.tmp"
        self._directory.mkdir()
        try:
            yield self._directory
            for done in self._syncing:
                done.result()
            sync(self._directory)
            self._swap_in(final)
        finally:
            self._disk.shutdown(cancel_futures=True)
            shutil.rmtree(self._directory, ignore_errors=True)

    def _swap_in(self, final: Path) -> None:
        old = self._directory.with_suffix(".old.tmp")
        self.refuse_existing()  # Asked again: somebody else may have been faster.
        if final.exists():
            final.rename(old)
        self._directory.rename(final)
        sync(final.parent)
        shutil.rmtree(old, ignore_errors=True)

    def _open_bucket(self) -> Iterator[Path]:
        # What is to be replaced stays until all that takes its place lies on this machine's disk.
        self._waiting = [] if self.folder.is_file(MANIFEST) else None
        self.folder.filesystem.create_dir(self.folder.path, recursive=True)
        with tempfile.TemporaryDirectory(prefix="sightline-") as directory:
            self._directory = Path(directory)
            yield self._directory
            if self._waiting is not None:
                self.folder.filesystem.delete_dir_contents(self.folder.path)
                for file in self._waiting:
                    self._upload(file)


def _remove_abandoned(final: Path) -> None:
    """Remove what killed runs left; a directory whose process may live is somebody's work.

    A run that ended between its two renames left the old dataset under another name: it goes back, whoever that was. If
    it is only just between them, its second rename fails, and nothing is lost.
    """
    ours = re.compile(rf"\.{re.escape(final.name)}\.([\w-]+)(\.old)?\.tmp")
    for directory in sorted(final.parent.iterdir()):
        found = ours.fullmatch(directory.name)
        if found and found[2] and (directory / MANIFEST).exists() and not final.exists():
            directory.rename(final)
        elif found and is_abandoned(found[1]):
            shutil.rmtree(directory, ignore_errors=True)
