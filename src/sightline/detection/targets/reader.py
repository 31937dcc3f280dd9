"""How the results of a job are read back, with DuckDB; every kind of target has a reader of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sightline.detection.schema import IMAGES

if TYPE_CHECKING:
    import duckdb

    from sightline.workspace import Workspace

SCALARS = [field.name for field in IMAGES if field.name != "boxes"]


@dataclass(frozen=True)
class Views:
    """The rows of one job as SELECT statements.

    Attributes:
        images: One row per image, without its boxes.
        detections: One row per box.
        rows: One row per image with its boxes in a list, and `filename`, the file that holds it, or an empty text.
    """

    images: str
    detections: str
    rows: str


@dataclass(frozen=True)
class ResultsOf:
    """Which results are read.

    Attributes:
        name: Of the job in its workspace.
        job: Its id.
        target: Where its rows are.
        prefix: What the names of its tables begin with, in a database.
    """

    name: str
    job: str
    target: str
    prefix: str = ""


class Reader(Protocol):
    """Reads the committed rows of one job."""

    @property
    def is_shared(self) -> bool:
        """Whether a connection may stay open while others write."""
        ...

    def obstacle(self, workspace: "Workspace") -> str:
        """Why these rows cannot be queried from here, and what to do instead; empty if they can."""
        ...

    def has_rows(self) -> bool:
        """Whether there is anything to read."""
        ...

    def attach(self, database: "duckdb.DuckDBPyConnection", *, restricted: bool) -> Views:
        """Make the rows readable in a connection.

        Args:
            restricted: Without access of the connection to files, for SQL that the user did not write.
        """
        ...

    def rows_in(self, files: Sequence[str]) -> str | None:
        """The relation `rows` of some files only, by the paths in `filename`; None where it makes no difference."""
        ...


def sql_text(text: str) -> str:
    """A text as SQL writes it, for where values cannot be bound.

    >>> sql_text("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def sql_name(name: str) -> str:
    """An identifier as SQL writes it.

    >>> sql_name("a b")
    '"a b"'
    """
    return '"' + name.replace('"', '""') + '"'
