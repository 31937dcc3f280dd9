"""Database files outside the workspace that this user has confirmed.

A manifest in a workspace that came from someone else may name any file of this machine. The list of confirmed files is
therefore stored in the user's own state directory, not in the workspace.
"""

import json
import os
from pathlib import Path

from sightline.errors import StorageError
from sightline.workspace import Workspace


def is_trusted(file: str | Path, workspace: Workspace) -> bool:
    """Whether a database file lies in the workspace, without links out of it, or was confirmed by the user."""
    real = Path(file).resolve()
    return real.is_relative_to(workspace.root.resolve()) or str(real) in _confirmed()


def trust(file: str | Path) -> None:
    """Confirm a database file, for this user and from now on.

    Raises:
        StorageError: The list of confirmed files cannot be written.
    """
    real, listed = str(Path(file).resolve()), _list_file()
    try:
        if real in _confirmed():
            return
        listed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # One write in append mode: several processes may confirm files at the same time.
        descriptor = os.open(listed, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=0) as file_object:
            file_object.write(json.dumps(real).encode() + b"\n")
    except OSError as error:
        raise StorageError(
            f"cannot write {str(listed)!r}, the list of databases that you have confirmed: {error}; set XDG_STATE_HOME "
            "to a directory that you may write to"
        ) from None


def _confirmed() -> set[str]:
    try:
        return {json.loads(line) for line in _list_file().read_text("utf-8").splitlines() if line}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {str(_list_file())!r}: {error}; repair it or remove it") from None


def _list_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "sightline" / "trusted-databases"
