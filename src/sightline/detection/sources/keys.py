"""That no two rows have the same key, checked on disk rather than in memory: there may be a hundred million of them."""

import sqlite3

from sightline.errors import FormatError

_CACHE_KB = 32 << 10


class UniqueKeys:
    """The keys of a listing so far, in a temporary SQLite database: a file without a name, gone when it is closed.

    Args:
        where: The table or query, for messages.
        column: That holds the keys.
        remedy: What to do if two rows have the same key.
    """

    def __init__(self, *, where: str, column: str, remedy: str) -> None:
        self._where, self._column, self._remedy = where, column, remedy
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.executescript(
            f"pragma journal_mode=off; pragma synchronous=off; pragma cache_size=-{_CACHE_KB};"
            "create table keys (key blob primary key, place text) without rowid;"
        )

    def add(self, key: str, place: str) -> None:
        """One more row.

        Args:
            place: Where it is, for messages.

        Raises:
            FormatError: Another row has the same key.
        """
        row = (key.encode("utf-8", "surrogatepass"), place)
        if self._db.execute("insert or ignore into keys values (?, ?)", row).rowcount:
            return
        (other,) = self._db.execute("select place from keys where key = ?", row[:1]).fetchone()
        raise FormatError(
            f"two rows of {self._where} have the key {key[:200]!r} in column {self._column!r}: {other} and {place}. "
            f"Images are told apart by it, and each gets one row of results: {self._remedy}"
        )

    def close(self) -> None:
        """Forget everything."""
        self._db.close()
