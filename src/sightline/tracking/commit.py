"""The commit that the work of a directory stands on."""

import subprocess
from pathlib import Path

_PATIENCE_S = 5.0


def git_commit(directory: Path) -> str | None:
    """The hash of the commit, with `-dirty` behind it if files differ; None where git knows nothing."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
