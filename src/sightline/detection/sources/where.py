"""A condition in SQL over the small columns of a dataset or table, asked of DuckDB a batch of rows at a time."""

from typing import Any

import numpy as np
import pyarrow as pa

from sightline.errors import ConfigError

_ROW = "__sightline_row"


class Condition:
    """Which rows meet a condition.

    Args:
        text: What would follow `where`.
        schema: The columns that it may name.

    Raises:
        ConfigError: DuckDB does not understand it.
    """

    def __init__(self, text: str, schema: pa.Schema) -> None:
        import duckdb

        from sightline.detection.restricted import SETTINGS, restrict

        self._text, self._known = text, schema.names
        lower = text.lower()
        # A column that is named stands in the text; columns that are not need not be read.
        every = "columns" in lower
        self.columns = [name for name in schema.names if every or name.lower().replace('"', '""') in lower]
        self._duckdb: Any = duckdb.connect(":memory:", config={**SETTINGS, "threads": 1})
        restrict(self._duckdb)
        self.rows(pa.RecordBatch.from_pylist([], pa.schema([schema.field(name) for name in self.columns])))

    def rows(self, batch: pa.RecordBatch) -> list[int]:
        """Numbers of the rows that meet it, in order."""
        import duckdb

        columns = [*(batch.column(name) for name in self.columns), pa.array(np.arange(batch.num_rows))]
        numbered = pa.Table.from_arrays(columns, names=[*self.columns, _ROW])
        try:
            self._duckdb.register("batch", numbered)
            found = self._duckdb.execute(f"select {_ROW} from batch where (\n{self._text}\n)").fetchnumpy()
        except duckdb.Error as error:
            raise ConfigError(
                f"where = {self._text!r} cannot be used: {_brief(error)}; the columns are {', '.join(self._known)}"
            ) from None
        return sorted(found[_ROW].tolist())


def _brief(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nLINE")[0].split())[:400]
