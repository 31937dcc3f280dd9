"""A real PostgreSQL as a target of detections; the same checks as of SQLite and DuckDB."""

import contextlib
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "detection" / "targets"))  # The checks lie there.

from database_checks import CHECKS
from database_lease_checks import LEASE_CHECKS
from database_place import ANN, BEN, Place, at_once, boxes_of, images, rows_of
from postgres_server import CutProxy, PostgresServer

from sightline.detection.targets import database, sqlalchemy_database
from sightline.detection.targets.database import DatabaseTarget
from sightline.detection.targets.sqlalchemy_database import SQLDatabase
from sightline.errors import StorageError
from sightline.retry import RetryPolicy


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


def test_only_the_clock_of_the_server_counts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the machine that asks is an hour fast; that of another, which renews, an hour slow."""
    ann, ben, now = place.target(), place.target(), time.time()
    ann.claim(["a"], ANN, lease_s=60)
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert ben.claim(["a"], BEN, lease_s=60) == {}
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    ann.renew(["a"], ANN, lease_s=60)
    monkeypatch.undo()
    assert ben.claim(["a"], BEN, lease_s=60) == {}


@pytest.fixture(scope="module")
def restarted() -> Iterator[PostgresServer]:
    """A server that only tests below use."""
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def proxy(restarted: PostgresServer) -> Iterator[CutProxy]:
    found = CutProxy(restarted)
    yield found
    found.close()


def opened(url: str, job: str) -> DatabaseTarget:
    target = DatabaseTarget(SQLDatabase(url))
    target.open({"id": job})
    return target


def test_every_operation_outlasts_a_restart(restarted: PostgresServer) -> None:
    target = opened(restarted.url(), "operations")
    target.commit("a", images("a", ["1", "2"]), ANN)
    operations: list[tuple[Callable[[], Any], Any]] = [
        (lambda: target.publish(0, b"plan"), True),
        (lambda: target.generation(0), b"plan"),
        (lambda: target.claim(["b"], ANN, lease_s=60), {"b": 1}),
        (lambda: target.renew(["b"], ANN, lease_s=60), None),
        (lambda: target.commit("b", images("b", ["3"]), ANN), True),
        (lambda: target.rewrite("a", images("a", ["2"], version="new"), ANN, revision=1), True),
        (lambda: target.read_chunk("a", ["version"])[1].num_rows, 2),
        (lambda: [chunk.revision for chunk in target.stored()], [2, 1]),
        (lambda: rows_of(target, "image_id"), [("1",), ("2",), ("3",)]),
        (lambda: target.summary().images, 3),
    ]
    for operation, expected in operations:
        restarted.stop()
        starting = threading.Timer(0.5, restarted.start)
        starting.start()
        try:
            assert operation() == expected
        finally:
            starting.join()
    target.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_chunks_are_committed_once_while_the_server_restarts(restarted: PostgresServer, how: signal.Signals) -> None:
    target = opened(restarted.url(), how.name)
    chunks = [str(number) for number in range(60)]
    over = threading.Event()

    def restart() -> bool:
        while not over.wait(0.2):
            restarted.stop(how)
            restarted.start()
        return True

    def commit() -> bool:
        try:
            done = [
                target.commit(chunk, images(chunk, [f"{chunk}-{number}" for number in range(50)]), ANN)
                for chunk in chunks
            ]
        finally:
            over.set()
        return all(done)

    assert at_once(commit, restart) == [True, True]
    assert Counter(rows_of(target, "chunk")) == {(chunk,): 50 for chunk in chunks}
    target.close()


@pytest.mark.parametrize("lost", ["answer", "request", "unnoticed"])
def test_an_acknowledgement_that_is_lost(
    restarted: PostgresServer, proxy: CutProxy, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut after the server has committed, or just before: the client cannot tell.

    Where the server does not notice, it holds the locks of the transaction until it ends it by itself.
    """
    monkeypatch.setattr(sqlalchemy_database, "_POSTGRESQL_IDLE_S", 1)
    target = opened(restarted.url(proxy.directory), f"lost {lost}")

    def cut(operation: Callable[[], Any]) -> Any:
        proxy.cuts = lost
        found = operation()
        assert proxy.cuts is None, "it was cut"
        return found

    assert cut(lambda: target.publish(0, b"plan"))
    assert cut(lambda: target.claim(["a"], ANN, lease_s=60)) == {"a": 1}
    assert cut(lambda: target.commit("a", images("a", ["1", "2"]), ANN))
    assert cut(lambda: target.commit("unclaimed", images("unclaimed", ["3"]), ANN))
    assert cut(lambda: target.rewrite("a", images("a", ["2"], version="new"), ANN, revision=1))
    cut(lambda: target.claim(["b"], BEN, lease_s=60))
    cut(lambda: target.release(["b"], BEN))
    assert target.claim(["b"], ANN, lease_s=60) == {"b": 1}
    assert rows_of(target, "image_id", "version") == [("1", "v"), ("2", "new"), ("3", "v")]
    assert len(boxes_of(target, "label")) == 6
    assert [chunk.revision for chunk in target.stored()] == [2, 1]
    target.close()


def test_a_server_that_was_never_reached_is_told_at_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    target = DatabaseTarget(SQLDatabase(f"postgresql://postgres@/postgres?host={tmp_path}"))
    with pytest.raises(StorageError, match=r"refused: .*check the URL"):
        target.open({"id": "one"})
    assert "tried again" not in caplog.text
    target.close()


def test_a_server_that_stays_away_ends_the_run(
    restarted: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "STORAGE_RETRY", RetryPolicy(give_up_after_s=0.5, max_wait_s=0.1))
    target = opened(restarted.url(), "away")
    restarted.stop()
    try:
        with pytest.raises(StorageError, match="then run the same command again"):
            target.commit("a", images("a", ["1"]), ANN)
    finally:
        restarted.start()
    assert "tried again" in caplog.text
    assert target.commit("a", images("a", ["1"]), ANN)
    target.close()
