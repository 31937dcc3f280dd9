"""A real PostgreSQL as a target of detections; the same checks as of SQLite and DuckDB."""

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "detection" / "targets"))  # The checks lie there.

from database_checks import CHECKS
from database_lease_checks import LEASE_CHECKS
from database_place import ANN, BEN, Place, at_once, images

from sightline.detection.targets.database import DatabaseTarget
from sightline.detection.targets.sqlalchemy_database import SQLDatabase
from sightline.errors import StorageError


@pytest.fixture
def place(postgres: str) -> Iterator[Place]:
    """An empty database."""
    name = f"found_{secrets.token_hex(4)}"
    server = sqlalchemy.create_engine(postgres, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sqlalchemy.text(f"create database {name}"))
    url = sqlalchemy.make_url(postgres).set(database=name, drivername="postgresql")
    with contextlib.ExitStack() as stack:
        yield Place(url.render_as_string(hide_password=False), stack)
    with server.connect() as connection:
        connection.execute(sqlalchemy.text(f"drop database {name} with (force)"))
    server.dispose()


@pytest.mark.parametrize("check", [*CHECKS, *LEASE_CHECKS], ids=lambda check: check.__name__.removeprefix("check_"))
def test_database(check: Callable[[Place], None], place: Place) -> None:
    check(place)


def test_readers_find_boxes_by_their_usual_names(place: Place) -> None:
    """PostgreSQL has an `xmin` of its own in every table; a view does not."""
    place.target().commit("a", images("a", ["1"], boxes=1), ANN)
    assert place.sql("select xmin, ymin, xmax, ymax from detections where xmin < 2") == [(1.5, 2.0, 3.25, 4.0)]


def test_tables_are_made_once(place: Place) -> None:
    targets = [place.target(is_open=False) for _ in range(4)]
    at_once(*[lambda target=target: target.open({"id": "one"}) for target in targets])  # type: ignore[misc]
    assert targets[0].commit("a", images("a", ["1"]), ANN)
    assert not targets[1].commit("a", images("a", ["1"]), BEN)


def test_strict_isolation_changes_nothing(place: Place) -> None:
    """Where a server's default is serializable, the loser of a race gets an error instead of an empty answer."""
    strict = Place(f"{place.name}&options=-cdefault_transaction_isolation%3Dserializable", place._stack)
    one, two = strict.target(), strict.target()
    for number in range(5):
        chunk = str(number)
        claims = at_once(
            lambda: one.claim([chunk], ANN, lease_s=0),  # noqa: B023
            lambda: two.claim([chunk], ANN, lease_s=0),  # noqa: B023
        )
        assert sorted(claim[chunk] for claim in claims) == [1, 2]
        commits = at_once(
            lambda: one.commit(chunk, images(chunk, [chunk]), ANN),  # noqa: B023
            lambda: two.commit(chunk, images(chunk, [chunk]), BEN),  # noqa: B023
        )
        assert sorted(commits) == [False, True]


def test_a_connection_that_was_cut_is_made_again(place: Place) -> None:
    target = place.target()
    others = "pid <> pg_backend_pid() and datname = current_database()"
    assert place.sql(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}") == [(True,)]
    assert target.commit("a", images("a", ["1"]), ANN)


def test_refusals_are_sentences(place: Place) -> None:
    url = place.name.replace("postgres@", "nobody:hunter2@")
    target = DatabaseTarget(SQLDatabase(url))
    with pytest.raises(StorageError, match="nobody") as raised:
        target.open({"id": "one"})
    assert "hunter2" not in str(raised.value)
    assert target.location.startswith("postgresql:///found_")
    assert "?" not in target.location
    target.close()
