"""DuckDB connections for SQL that the user did not write: no files, no network, no extensions, no settings."""

import duckdb

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
}
"""For `duckdb.connect`."""


def restrict(connection: duckdb.DuckDBPyConnection) -> None:
    """Close a connection of these settings to everything but what is attached and registered; this cannot be undone."""
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
