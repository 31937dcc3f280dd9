"""Databases without a server as targets: SQLite and DuckDB; `test_detect_postgres` does the same with PostgreSQL."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # The checks are shared with the test of PostgreSQL.

from database_checks import CHECKS
from database_lease_checks import LEASE_CHECKS
from database_place import ANN, Place, at_once, images, rows_of

from sightline.detection.targets.database import DatabaseTarget
from sightline.detection.targets.duckdb_file import DuckDBFile
from sightline.detection.targets.sqlalchemy_database import SQLDatabase
from sightline.errors import ConfigError, ExistsError, MissingExtraError, SightlineError, StorageError


@pytest.fixture(params=["sqlite", "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "not yet there"
    name = f"sqlite:///{folder}/found.db" if request.param == "sqlite" else str(folder / "found.duckdb")
    with contextlib.ExitStack() as stack:
        yield Place(name, stack)


@pytest.mark.parametrize("check", [*CHECKS, *LEASE_CHECKS], ids=lambda check: check.__name__.removeprefix("check_"))
def test_database(check: Callable[[Place], None], place: Place) -> None:
    check(place)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "found.duckdb"


READ = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); c.execute('from images').fetchall()"
HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.readline(); c.close()"


def test_duckdb_is_open_to_readers_between_commits(file: Path) -> None:
    target = DatabaseTarget(DuckDBFile(file))
    target.open({"id": "one"})
    target.commit("a", images("a", ["1"]), ANN)
    rows_of(target, "image_id")
    with pytest.raises(StorageError):
        target.commit("b", images("b", ["1"]), ANN)
    subprocess.run([sys.executable, "-c", READ, str(file)], check=True, capture_output=True)
    with duckdb.connect(str(file), read_only=True) as reader:
        assert reader.execute("select image_id from images").fetchall() == [("1",)]
    assert target.commit("c", images("c", ["2"]), ANN)
    assert list(file.parent.iterdir()) == [file], "no write-ahead log stays behind"


def test_duckdb_waits_for_others(file: Path) -> None:
    target = DatabaseTarget(DuckDBFile(file))
    target.open({"id": "one"})
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        impatient = DatabaseTarget(DuckDBFile(file, patience_s=0.2))
        with pytest.raises(StorageError, match=r"found\.duckdb' has been in use for 0\.2 s.*close the program"):
            impatient.open({"id": "one"})

        def let_go() -> bool:
            assert holder.stdin is not None
            holder.stdin.write("\n")
            holder.stdin.flush()
            return True

        assert at_once(lambda: target.commit("a", images("a", ["1"]), ANN), let_go) == [True, True]


def test_duckdb_waits_for_a_reader_of_the_same_process(file: Path) -> None:
    target = DatabaseTarget(DuckDBFile(file))
    target.open({"id": "one"})
    reader = duckdb.connect(str(file), read_only=True)
    with pytest.raises(StorageError, match="in use"):
        DatabaseTarget(DuckDBFile(file, patience_s=0.1)).open({"id": "one"})
    reader.close()
    assert target.commit("a", images("a", ["1"]), ANN)


def test_threads_renew_while_others_commit(place: Place) -> None:
    target = place.target()
    chunks = [str(number) for number in range(10)]
    target.claim(chunks, ANN, lease_s=60)

    def renew() -> bool:
        for _ in range(10):
            target.renew(chunks, ANN, lease_s=60)
        return True

    def commit() -> bool:
        return all(target.commit(chunk, images(chunk, [chunk]), ANN) for chunk in chunks)

    assert at_once(renew, commit, renew) == [True, True, True]
    assert target.committed() == set(chunks)


@pytest.mark.parametrize("name", ["sqlite:///{}", "{}"])
def test_files_of_others_are_left_alone(name: str, file: Path) -> None:
    file.write_text("a diary, not a database\n" * 1000)
    connector = SQLDatabase(name.format(file)) if "://" in name else DuckDBFile(file)
    with pytest.raises(ExistsError, match=r"found\.duckdb' is not a .* file: choose another"):
        DatabaseTarget(connector).open({"id": "one"})
    assert file.read_text().startswith("a diary")
    connector.close()


@pytest.mark.parametrize("name", ["sqlite:///{}/below.db", "{}/below.duckdb"])
def test_folders_that_cannot_be_made(name: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    name = name.format(blocked)
    connector = SQLDatabase(name) if "://" in name else DuckDBFile(Path(name))
    with pytest.raises(StorageError, match=r"refused"):
        DatabaseTarget(connector).open({"id": "one"})


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("sqlite://", ConfigError, "in memory"),
        ("sqlite:///:memory:", ConfigError, "in memory"),
        ("nonsense://host/db", ConfigError, "install the SQLAlchemy driver"),
        ("mysql+nonsense://ann:hunter2@host/db", ConfigError, "install the SQLAlchemy driver"),
        ("postgresql://ann:hunter2@host:port/db", ConfigError, "no URL of a database"),
    ],
)
def test_urls_that_mean_nothing(url: str, error: type[SightlineError], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        SQLDatabase(url)
    assert "hunter2" not in str(raised.value)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"sightline\[sql\]"):
        SQLDatabase("postgresql://host/db")


@pytest.mark.parametrize("url", ["postgresql://host/db", "postgres://host/db", "postgresql+psycopg://host/db"])
def test_postgresql_means_psycopg_3(url: str) -> None:
    assert SQLDatabase(url)._engine.dialect.driver == "psycopg"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hunter2@127.0.0.1:1/db",
        "postgresql://ann:hun%2Fter2%3F%40@127.0.0.1:1/db",
        "postgresql://ann:hunter2?@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=ann&password=hunter2",
    ],
)
def test_passwords_are_not_shown(url: str) -> None:
    target = DatabaseTarget(SQLDatabase(url))
    assert target.location == "postgresql://127.0.0.1:1/db"
    with pytest.raises(StorageError, match=r"refused: .*check the URL") as raised:
        target.open({"id": "one"})
    assert "hun" not in str(raised.value)
    assert "ter2" not in str(raised.value)
    target.close()
