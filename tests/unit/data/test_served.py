"""Datasets that are read through somebody else."""

import errno
import shutil
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError

import sightline
from sightline.data.dataset import Dataset
from sightline.data.served import DirectoryServer, within_reach
from sightline.errors import StorageError


class Counting(DirectoryServer):
    """Notes how many bytes it gave."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.given = 0

    def read(self, name: str, offset: int, length: int) -> bytes:
        found = super().read(name, offset, length)
        self.given += len(found)
        return found


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    sightline.synth("boards", "boards", images=30, size=320, seed=1, workspace=tmp_path)
    dataset = sightline.open_dataset("boards", workspace=tmp_path)
    own = [(sample.image_id, bytes(sample.image), sample.annotation.boxes.tolist()) for sample in dataset]
    assert within_reach(dataset, Counting(dataset.location)) is dataset, "what can be seen is read directly"
    moved = tmp_path / "elsewhere"
    shutil.move(dataset.location, moved)
    server = Counting(str(moved))
    served = within_reach(Dataset(dataset._folder, dataset.info), server)
    before = server.given
    samples = [served[index] for index in (3, 17)]
    assert [(s.image_id, bytes(s.image), s.annotation.boxes.tolist()) for s in samples] == [own[3], own[17]]
    everything = sum(len(image) for _, image, _ in own)
    assert server.given - before < everything / 2, "the index and the small columns, and no other images"
    assert [sample.image_id for sample in served] == [image_id for image_id, _, _ in own]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "deeper/file", ".."])
def test_nothing_else_is_served(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "dataset").mkdir()
    server = DirectoryServer(str(tmp_path / "dataset"))
    for ask in (lambda: server.size(name), lambda: server.read(name, 0, 10)):
        with pytest.raises((ValueError, IsADirectoryError)):
            ask()


class FailsOnRay(Counting):
    """Fails for a while as an actor of Ray does: what `ray.get` raises is a RayTaskError and an OSError at once."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.failures = 0

    def size(self, name: str) -> int:
        self._fail()
        return super().size(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        self._fail()
        return super().read(name, offset, length)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            error = OSError(errno.EIO, "Input/output error")
            raise RayTaskError("Post.read", "Traceback", error, "ray::Post", 1, "127.0.0.1").as_instanceof_cause()


def test_what_the_machine_of_the_driver_cannot_read_for_a_while_is_read_again(tmp_path: Path, impatient: None) -> None:
    sightline.synth("boards", "boards", images=5, size=320, seed=1, workspace=tmp_path)
    dataset = sightline.open_dataset("boards", workspace=tmp_path)
    own = [bytes(sample.image) for sample in dataset]
    moved = tmp_path / "elsewhere"
    shutil.move(dataset.location, moved)
    server = FailsOnRay(str(moved))
    server.failures = 3
    served = within_reach(Dataset(dataset._folder, dataset.info), server)
    found = []
    for index in range(len(own)):
        server.failures = 3
        found.append(bytes(served[index].image))
        assert not server.failures
    assert found == own
    server.failures = 1000
    with pytest.raises(StorageError, match="could not be read for 20 s"):
        served[0]
