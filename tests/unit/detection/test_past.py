"""SQL over past jobs: which rows it sees, which jobs are left out, and what SQL by others may not do."""

import json
import stat
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fakes import MODEL, item

import sightline
from sightline.detection.past import make_room, record
from sightline.detection.rows import rejected_rows
from sightline.detection.targets.factory import open_target
from sightline.detection.targets.lease import this_run
from sightline.detection.trust import is_trusted, trust
from sightline.errors import ConfigError, ImageError, SightlineError, StorageError
from sightline.workspace import Workspace

JOBS = "select distinct job from images order by 1"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace of a user who has not confirmed any database."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Workspace(tmp_path / "ws")


def write_job(workspace: Workspace, name: str, to: str) -> None:
    """A job of one row, as `detect` leaves it."""
    job = {"id": f"id-of-{name}", "source": "photos", "model": "boards", "model_version": "1"}
    target = open_target(to, workspace)
    target.open(job)
    rows = rejected_rows((item("a"),), "000000-00000", MODEL, ImageError("truncated image"))
    target.commit("000000-00000", rows, this_run())
    manifest = {"job": job, "target": target.location, "finished": "2026-01-01", "summary": {"images": 1}}
    target.write_manifest(manifest)
    if to != name:
        record(workspace, name, manifest, prefix="")
    target.close()


def ask(workspace: Workspace, sql: str = JOBS, **given: Any) -> list[Any]:
    rows = sightline.query(sql, workspace=workspace.root, **given).to_pylist()
    return [next(iter(row.values())) for row in rows]


def test_a_query_over_all_jobs_names_those_it_leaves_out(workspace: Workspace, tmp_path: Path) -> None:
    write_job(workspace, "here", "here")
    write_job(workspace, "there", f"sqlite:///{tmp_path}/there.sqlite")
    notes: list[str] = []
    assert ask(workspace, on_note=notes.append) == ["here"]
    (note,) = notes
    assert note.startswith("left out: the rows of 'there' are in sqlite:///")
    assert "query that database directly, in its tables images and detections (job = 'id-of-there')" in note
    with pytest.warns(UserWarning, match="left out: the rows of 'there'"):
        assert ask(workspace) == ["here"]
    assert ask(workspace, job="here", on_note=notes.append) == ["here"]
    assert len(notes) == 1


def names_and_targets(workspace: Workspace) -> dict[str, str]:
    return {job.name: job.target for job in sightline.list_detections(workspace=workspace.root)}


def test_a_name_that_an_earlier_version_gave_to_two_targets(workspace: Workspace, tmp_path: Path) -> None:
    """It had the rows of one, and the manifest of the other; both are listed, also when the first is run again."""
    write_job(workspace, "job", "job")
    write_job(workspace, "job", str(workspace.root / "out.duckdb"))
    expected = {"job": f"{workspace.detections}/job", "job-out-duckdb": f"{workspace.root}/out.duckdb"}
    assert names_and_targets(workspace) == expected
    assert ask(workspace) == ["job", "job-out-duckdb"]
    make_room(workspace, "job")
    assert names_and_targets(workspace) == expected
    make_room(workspace, "job")
    assert names_and_targets(workspace) == expected


def test_a_name_that_is_wanted_for_rows_in_the_workspace(workspace: Workspace, tmp_path: Path) -> None:
    write_job(workspace, "today", str(workspace.root / "out.duckdb"))
    make_room(workspace, "today")
    assert names_and_targets(workspace) == {"today-out-duckdb": f"{workspace.root}/out.duckdb"}
    write_job(workspace, "today", "today")
    assert ask(workspace) == ["today", "today-out-duckdb"]


def test_a_workspace_that_was_moved(workspace: Workspace, tmp_path: Path) -> None:
    write_job(workspace, "job", "job")
    moved = Workspace(workspace.root.rename(tmp_path / "moved"))
    assert names_and_targets(moved) == {"job": f"{tmp_path}/moved/detections/job"}
    assert ask(moved) == ["job"]


def test_a_query_names_jobs_whose_rows_are_gone(workspace: Workspace, tmp_path: Path) -> None:
    write_job(workspace, "here", "here")
    write_job(workspace, "gone", f"{tmp_path}/gone")
    next((tmp_path / "gone/images").iterdir()).unlink()
    notes: list[str] = []
    assert ask(workspace, on_note=notes.append) == ["here"]
    assert notes == [
        f"left out: the rows of 'gone' are no longer in '{tmp_path}/gone': restore them, or run the job again"
    ]
    with pytest.raises(ConfigError, match="no longer in"):
        ask(workspace, job="gone")


def test_a_database_that_only_a_manifest_names_is_not_attached(workspace: Workspace, tmp_path: Path) -> None:
    write_job(workspace, "here", "here")
    write_job(workspace, "foreign", f"{tmp_path}/private.duckdb")
    notes: list[str] = []
    assert ask(workspace, on_note=notes.append) == ["here"]
    assert "a database outside the workspace that you have not confirmed" in notes[0]
    for open_job in (
        lambda: ask(workspace, job="foreign"),
        lambda: sightline.browse("foreign", workspace=workspace.root).totals(),
        lambda: sightline.write_report("foreign", tmp_path / "page.html", workspace=workspace.root),
    ):
        with pytest.raises(ConfigError, match=r"run `sightline query SQL --job foreign --trust` once"):
            open_job()
    assert ask(workspace, job="foreign", trust=True) == ["foreign"]
    assert ask(workspace) == ["foreign", "here"]
    assert sightline.browse("foreign", workspace=workspace.root).totals().images == 1


def test_a_link_in_the_workspace_does_not_make_a_database_its_own(workspace: Workspace, tmp_path: Path) -> None:
    write_job(workspace, "own", str(workspace.root / "own.duckdb"))
    assert ask(workspace) == ["own"]
    (workspace.root / "own.duckdb").rename(tmp_path / "outside.duckdb")
    (workspace.root / "own.duckdb").symlink_to(tmp_path / "outside.duckdb")
    with pytest.raises(ConfigError, match="outside the workspace"):
        ask(workspace)


def test_the_list_of_confirmed_databases(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a.duckdb", tmp_path / "line\nbreak.duckdb"]
    for file in [*files, *files]:
        trust(file)
    assert [is_trusted(file, workspace) for file in (*files, tmp_path / "b.duckdb")] == [True, True, False]
    listed = tmp_path / "state/sightline/trusted-databases"
    assert [json.loads(line) for line in listed.read_text().splitlines()] == [str(file) for file in files]
    assert stat.S_IMODE(listed.stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(listed))
    with pytest.raises(StorageError, match="set XDG_STATE_HOME to a directory"):
        trust(files[0])


REFUSED = [
    "select * from read_text('{file}')",
    "select * from '{parquet}'",
    "select * from glob('/*')",
    "copy images to '{out}'",
    "attach '{out}'",
    "set threads = 3",
]


@pytest.fixture
def two_jobs(workspace: Workspace) -> Workspace:
    write_job(workspace, "parquet", "parquet")
    write_job(workspace, "duckdb", str(workspace.root / "rows.duckdb"))
    return workspace


@pytest.mark.parametrize("sql", REFUSED)
def test_restricted_sql_reaches_nothing_but_the_views(two_jobs: Workspace, tmp_path: Path, sql: str) -> None:
    file, out = tmp_path / "private.txt", tmp_path / "out"
    file.write_text("private")
    parquet = next((two_jobs.detections / "parquet/images").iterdir())
    with pytest.raises(SightlineError, match="the query failed"):
        ask(two_jobs, sql.format(file=file, parquet=parquet, out=out), restricted=True)
    assert not out.exists()


def test_restricted_sql_loads_no_extensions_and_its_settings_are_locked(two_jobs: Workspace) -> None:
    names = (
        "enable_external_access",
        "autoload_known_extensions",
        "autoinstall_known_extensions",
        "lock_configuration",
    )
    sql = "select unnest([" + ", ".join(f"current_setting('{name}')" for name in names) + "])"
    assert ask(two_jobs, sql, restricted=True) == [False, False, False, True]


def test_restricted_sql_sees_the_same_rows(two_jobs: Workspace) -> None:
    for sql in ("select * from images order by job", "select count(*) from detections", "select job, boxes from rows"):
        free = sightline.query(sql, workspace=two_jobs.root)
        assert sightline.query(sql, workspace=two_jobs.root, restricted=True).to_pylist() == free.to_pylist()
    assert ask(two_jobs, restricted=True) == ["duckdb", "parquet"]


def test_the_users_own_sql_is_not_restricted(two_jobs: Workspace, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("name\nboards\n")
    assert ask(two_jobs, f"select name from '{tmp_path}/more.csv'") == ["boards"]
    ask(two_jobs, f"copy images to '{tmp_path}/out.parquet'")
    assert duckdb.sql(f"select count(*) from '{tmp_path}/out.parquet'").fetchall() == [(2,)]
