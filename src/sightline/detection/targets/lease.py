"""A lease in a file: who works on a chunk, and since when nothing was heard of it."""

import json
import os
import platform
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from sightline.detection.targets.target import Owner


@dataclass(frozen=True, slots=True)
class Lease:
    """What the file says, and the time of the file."""

    token: str
    host: str
    pid: int
    attempts: int
    heard: float = 0.0

    @classmethod
    def of(cls, owner: Owner, attempts: int) -> "Lease":
        """A new one."""
        return cls(owner.token, owner.host, owner.pid, attempts)

    @classmethod
    def read(cls, file: Path) -> "Lease | None":
        """The lease in a file, or None if there is none."""
        try:
            heard = file.stat().st_mtime
            said = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:  # Not ours, or torn by a crash of the machine: nobody holds it.
            return cls("", "", 0, 1, 0.0)
        return cls(said["token"], said["host"], said["pid"], said["attempts"], heard)

    @staticmethod
    def unique_name() -> str:
        """A name for a file that only this process writes: its host and process, for those who tidy up."""
        return f"{platform.node()}-{os.getpid()}-{secrets.token_hex(8)}"

    def is_over(self, lease_s: float) -> bool:
        """Whether it has expired, or its owner is known to be dead."""
        return time.time() - self.heard > lease_s or is_dead(self.host, self.pid)

    def to_bytes(self) -> bytes:
        """As it is written."""
        said = asdict(self)
        del said["heard"]
        return json.dumps(said).encode()


def this_run() -> Owner:
    """This process, as leases name it."""
    return Owner(secrets.token_hex(8), platform.node(), os.getpid())


def is_dead(host: str, pid: int) -> bool:
    """Whether a process of this machine has ended; of other machines nothing is known."""
    if host != platform.node():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
