"""What is read from a source, after checking what is true of every one."""

from pathlib import Path

from source_builders import contents

from sightline.detection.item import Source
from sightline.errors import ImageError


def everything(source: Source, root: Path | str = "") -> dict[str, bytes | ImageError]:
    """What each image reads as, in the order of the source, by its URI or what of it follows the root."""
    found = contents(source)
    ids = [item.image_id for item in source.items()]
    assert len(set(ids)) == len(ids) == len(found)
    begin = f"{root}/" if root else ""
    assert all(uri.startswith(begin) for uri in found)
    return {uri.removeprefix(begin): data for uri, data in found.items()}
