"""Where YOLO keeps the label file of an image, and the image of a label file."""

import posixpath


def label_names(image: str, *, apart: bool = False) -> list[str]:
    """Where the label file of an image may be: `images` in the path becomes `labels`; else beside the image.

    Args:
        apart: The images lie in a folder of their own (`--images`), which has the structure of `labels`.
    """
    base = posixpath.splitext(image)[0] + ".txt"
    names = [base]
    if swapped := _swap_last(base, "images", "labels"):
        names.insert(0, swapped)
    if apart:
        folder, name = posixpath.split(base)
        names += [posixpath.join("labels", base), posixpath.join(folder, "labels", name)]
    return names


def image_stems(label_file: str) -> list[str]:
    """Where the image of a label file may be, without its suffix."""
    stem = posixpath.splitext(label_file)[0]
    swapped = _swap_last(stem, "labels", "images")
    return [stem, swapped, without_part(stem, "labels")] if swapped else [stem]


def without_part(path: str, part: str) -> str:
    """A path without the first folder of that name."""
    parts = path.split("/")
    if part in parts:
        parts.remove(part)
    return "/".join(parts)


def _swap_last(path: str, old: str, new: str) -> str | None:
    """The path with its last folder of one name called by another; None if there is none."""
    *folders, name = path.split("/")
    for index in reversed(range(len(folders))):
        if folders[index] == old:
            return "/".join([*folders[:index], new, *folders[index + 1 :], name])
    return None
