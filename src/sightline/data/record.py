"""What readers of annotation formats give to ingest: entries, loaded images, and what could not be used."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sightline.data.storage import Folder

Task = Literal["detection", "classification"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One image that a reader listed; small, because it travels to a worker.

    Attributes:
        name: Unique within the source; hashes to the image's id.
        size: Bytes of the image if known, to plan shards of equal size.
        split: The split that the source gives, if it gives one.
        payload: Whatever the reader needs to load it.
    """

    name: str
    size: int = 0
    split: str | None = None
    payload: Any = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Something that could not be used as it was.

    Attributes:
        name: The image or file.
        stage: "list", "path", "read", "decode", "annotation" or "box".
        reason: A short, stable phrase that can be counted.
        detail: What was seen, with line or value.
        action: "image rejected", "box rejected", "box repaired" or "skipped".
    """

    name: str
    stage: str
    reason: str
    detail: str = ""
    action: str = "image rejected"


@dataclass(frozen=True, slots=True)
class RawBox:
    """A box as the source has it, in pixels unless the annotations say they are normalised.

    Attributes:
        where: Where it stands, for messages: "line 3", "object 2", "annotation 17".
        area: Square pixels of the object, if the source says so.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    label: int
    ignore: bool = False
    where: str = ""
    area: float | None = None


@dataclass(slots=True)
class Loaded:
    """One image with its annotations, before anything was checked.

    Attributes:
        declared_size: Width and height that the annotation claims, if it does.
        normalised: Whether box coordinates are shares of the sides rather than pixels.
        rejects: Annotation lines that could not be read.
    """

    image: bytes
    boxes: list[RawBox] = field(default_factory=list)
    label: int | None = None
    declared_size: tuple[int, int] | None = None
    normalised: bool = False
    rejects: list[Reject] = field(default_factory=list)


class Reader(Protocol):
    """A source of annotated images in one format. Pickled to the workers that load."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them. The same on every machine."""
        ...

    @property
    def task(self) -> Task:
        """Whether images carry boxes or one label each."""
        ...

    @property
    def folders(self) -> tuple[Folder, ...]:
        """Where entries are loaded from: what is missing while one of these is out of reach is not missing there."""
        ...

    def entries(self) -> Iterator[Entry | Reject]:
        """List the images in an order that depends on the source only, without holding all of them."""
        ...

    def load(self, entry: Entry) -> Loaded:
        """Read one image and its annotation; raises ImageError if it cannot be used."""
        ...
