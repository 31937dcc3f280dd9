"""Leases in files: who works on a chunk, and since when nothing was heard of it.

leases/CHUNK.N      attempt N at a chunk; made if it is absent, and never by two
leases/run-TOKEN    the sign of life of a run: only the run itself touches it

The holder of a chunk is the owner of its last attempt. Whoever finds that one over makes the next, so of several that
see the same lease expire one gets the chunk. A lease that is given back after another took over is marked, not removed,
so that the numbers of attempts never begin anew while somebody holds one; all are removed when the chunk is done.

Times are those of the file system, which a network disk takes from its server, never those of this machine.
"""

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sightline.detection.targets.atomic_files import AtomicFiles
from sightline.detection.targets.target import Owner
from sightline.process_identity import is_dead, this_host

LEASES = "leases"
_RUN = "run-"
_RELEASED = b"released"
_LONG_GONE_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class _Lease:
    """What the file says."""

    owner: Owner
    lease_s: float

    def to_bytes(self) -> bytes:
        said = {"token": self.owner.token, "host": self.owner.host, "pid": self.owner.pid, "lease_s": self.lease_s}
        return json.dumps(said).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> "_Lease | None":
        """None if it was given back, or torn by a crash of the machine: nobody holds it."""
        try:
            said = json.loads(text)
            return cls(Owner(said["token"], said["host"], said["pid"]), said["lease_s"])
        except (ValueError, KeyError, TypeError):
            return None


class FileLeases:
    """The leases in a directory."""

    def __init__(self, files: AtomicFiles) -> None:
        self._files = files
        self._own: set[Owner] = set()

    def claim(self, chunk: str, owner: Owner, lease_s: float) -> int:
        """The number of attempts with this one, or 0 if somebody else holds the chunk."""
        now, lease = self.touch(owner), _Lease(owner, lease_s)
        attempts, is_own = 1, False
        for number in count(1):
            while (text := self._files.read(_name(chunk, number))) is None:
                if is_own:
                    return attempts - 1  # The answer to an earlier claim was lost.
                if self._files.create(_name(chunk, number), lease.to_bytes(), durable=False):
                    return attempts
            found = _Lease.from_bytes(text)
            is_own = found is not None and found.owner.token == owner.token
            if found and not is_own and not self._is_over(found, now):
                return 0
            attempts += not text.startswith(_RELEASED)
        raise AssertionError("unreachable")

    def touch(self, owner: Owner) -> float:
        """Give a sign of life; when that was, by the clock of the file system."""
        self._own.add(owner)
        name = _run(owner.token)
        while (touched := self._files.retried("renew leases", lambda: _touch(self._place(name)))) is None:
            self._files.create(name, _Lease(owner, 0).to_bytes(), durable=False)
        return touched

    def release(self, chunk: str, owner: Owner) -> None:
        """Remove the own lease if it is the last one, else mark it as given back."""
        for number in count(1):
            text = self._files.read(_name(chunk, number))
            if text is None:
                return
            found = _Lease.from_bytes(text)
            if found and found.owner.token == owner.token:
                self._give_back(chunk, number)

    def _give_back(self, chunk: str, number: int) -> None:
        if self._files.read(_name(chunk, number + 1)) is None:
            self._files.unlink(_name(chunk, number))
            return
        place = self._place(_name(chunk, number))
        self._files.retried("give back a lease", lambda: _mark(place))

    def end(self, chunk: str) -> None:
        """Remove all leases of a chunk that is done, the first one first: whoever looks meanwhile begins anew."""
        for number in count(1):
            if not self._files.unlink(_name(chunk, number)):
                return

    def end_own(self, chunk: str, owner: Owner) -> None:
        """Remove all leases of a chunk that its holder has done; of a run that lost it to another, only its own."""
        holder = None
        for number in count(1):
            text = self._files.read(_name(chunk, number))
            if text is None:
                break
            holder = _Lease.from_bytes(text)
        if holder and holder.owner.token == owner.token:
            self.end(chunk)
        else:
            self.release(chunk, owner)

    def close(self) -> None:
        """Remove the signs of life of this process, and of others that are gone."""
        with suppress(OSError):  # They are in nobody's way.
            self._remove_runs()

    def _remove_runs(self) -> None:
        own = [self._place(_run(owner.token)) for owner in self._own]
        now = max(filter(None, map(_touch, own)), default=0.0)
        for place in own:
            place.unlink(missing_ok=True)
        self._own.clear()
        for place in (self._files.directory / LEASES).glob(f"{_RUN}*"):
            found, heard = _Lease.from_bytes(place.read_bytes()), _time(place)
            is_gone = found is not None and is_dead(found.owner.host, found.owner.pid)
            if is_gone or now - (heard or now) > _LONG_GONE_S:
                place.unlink(missing_ok=True)

    def _is_over(self, lease: _Lease, now: float) -> bool:
        if is_dead(lease.owner.host, lease.owner.pid):
            return True
        heard = self._heard(_run(lease.owner.token))
        return heard is None or now - heard > lease.lease_s

    def _heard(self, name: str) -> float | None:
        return self._files.retried("read leases", lambda: _time(self._place(name)))

    def _place(self, name: str) -> Path:
        return self._files.directory / name


def _name(chunk: str, number: int) -> str:
    return f"{LEASES}/{chunk}.{number}"


def _run(token: str) -> str:
    return f"{LEASES}/{_RUN}{token}"


def _touch(file: Path) -> float | None:
    try:
        os.utime(file)  # Without a time: the file server's, where there is one.
    except FileNotFoundError:
        return None
    return _time(file)


def _time(file: Path) -> float | None:
    """Of an open file: a network disk asks its server when it opens one, and may answer from memory otherwise."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def _mark(file: Path) -> None:
    """In place, for a file that is gone must not come back: its chunk is done."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.pwrite(descriptor, _RELEASED, 0)
    finally:
        os.close(descriptor)


def this_run() -> Owner:
    """A run of this process, as leases name it."""
    return Owner(secrets.token_hex(8), this_host(), os.getpid())
