"""Folders that visitors of the app may open: those below the directory of `sightline app --browse`, and no others.

Visitors act with the permissions of the server. Only folders of images are opened: a list, a table, an archive or a URL
could name any other place.
"""

import os
from pathlib import Path

from sightline.detection.sources.folder import FolderSource
from sightline.errors import ConfigError, NotFoundError

BROWSE_VARIABLE = "SIGHTLINE_APP_BROWSE"


def browse_root() -> Path | None:
    """The directory that may be browsed, with links resolved; None if there is none."""
    root = os.environ.get(BROWSE_VARIABLE)
    return Path(root) if root else None


def folder_below(root: Path, text: str) -> str:
    """The folder that a visitor asks for, as a path without links.

    Args:
        text: A path relative to the root, or an absolute path below it.

    Raises:
        ConfigError: It is a URL, or lies outside the root.
        NotFoundError: It is not a folder.
    """
    if "://" in text or "\0" in text:
        raise ConfigError(f"{text!r} is not a folder below {str(root)!r}: URLs are not opened by the app")
    folder = (root / text).resolve()
    if not folder.is_relative_to(root):
        raise ConfigError(f"{text!r} is not below {str(root)!r}, the only directory that the app was told to browse")
    if not folder.is_dir():
        raise NotFoundError(f"{text!r} is not a folder below {str(root)!r}: name a folder, not a file")
    return str(folder)


def open_below(path: str) -> FolderSource:
    """The images below a folder that `folder_below` gave; links out of the root are not followed."""
    root = browse_root()
    if root is None:
        raise ConfigError("the app was not told to browse folders: start it with --browse ROOT")
    return FolderSource(folder_below(root, path))
