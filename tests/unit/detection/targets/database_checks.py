"""What every database target must do with rows, whichever database it is; leases are in `database_lease_checks`."""

import contextlib
import json
import signal
import subprocess
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from database_place import (
    ANN,
    BEN,
    HOSTILE,
    HOSTILE_PREFIX,
    Place,
    at_once,
    boxes_of,
    connector,
    images,
    rows_of,
)

from sightline.detection.chunk_hash import hash_ids
from sightline.detection.schema import IMAGES
from sightline.detection.targets.database import DatabaseTarget
from sightline.detection.targets.duckdb_file import DuckDBFile
from sightline.detection.targets.sqlalchemy_database import SQLDatabase
from sightline.detection.targets.target import ClassCount, Owner, StoredChunk, Summary
from sightline.errors import ConfigError, DamagedError, ExistsError, StorageError


def check_a_job_is_found_again(place: Place) -> None:
    first = place.target()
    assert first.commit("c", images("c", ["a", "b"]), ANN)
    first.close()
    again = place.target()
    assert again.committed() == {"c"}
    assert rows_of(again, "image_id", "num_detections") == [("a", 2), ("b", 2)]


def check_every_column_comes_back(place: Place) -> None:
    target = place.target()
    rejected = {"stage": "decode", "reason": "truncated image", "detail": "at byte 7"}
    target.commit("c", images("c", ["a"], width=640, height=480), ANN)
    target.commit("d", images("d", ["b"], boxes=0, status="rejected", **rejected), ANN)
    names = [name for name in IMAGES.names if name != "boxes"]
    stored = pa.Table.from_batches(target.rows(names))
    expected = pa.concat_tables(
        [
            images("c", ["a"], width=640, height=480),
            images("d", ["b"], boxes=0, status="rejected", **rejected),
        ]
    )
    assert stored.equals(expected.select(names))
    box = (pytest.approx(0.1), 1.5, 2.0, 3.25, 4.0)
    columns = ("image_id", "label", "score", "xmin", "ymin", "xmax", "ymax", "chunk", "model", "model_version")
    assert boxes_of(target, *columns) == [("a", "bolt", *box, "c", "boards", "3")] * 2


def check_jobs_share_a_database(place: Place) -> None:
    one, two = place.target("one"), place.target("two")
    assert one.publish(0, b"plan of one")
    assert two.publish(0, b"plan of two")
    assert one.claim(["c"], ANN, lease_s=60) == two.claim(["c"], BEN, lease_s=60) == {"c": 1}
    assert one.commit("c", images("c", ["a"], boxes=1), ANN)
    assert two.commit("c", images("c", ["a"], boxes=3), ANN)
    two.rewrite("c", images("c", ["a"], boxes=2), ANN, revision=1)
    one.write_manifest({"images": 1})
    assert (one.generation(0), two.generation(0)) == (b"plan of one", b"plan of two")
    assert (one.read_manifest(), two.read_manifest()) == ({"images": 1}, None)
    assert (rows_of(one, "num_detections"), rows_of(two, "num_detections")) == ([(1,)], [(2,)])
    assert (len(boxes_of(one, "label")), len(boxes_of(two, "label"))) == (1, 2)


def check_the_first_plan_stays(place: Place) -> None:
    target = place.target()
    assert target.generation(0) is None
    assert target.publish(0, b"first \0\xff")
    assert not target.publish(0, b"second")
    assert target.generation(0) == b"first \0\xff"
    assert target.generation(1) is None


def check_plans_race(place: Place) -> None:
    targets = [place.target() for _ in range(3)]
    for number in range(5):
        plans = [f"plan {number} of {writer}".encode() for writer in range(3)]
        won = at_once(
            *[
                lambda target=target, plan=plan: target.publish(number, plan)  # type: ignore[misc]  # noqa: B023
                for target, plan in zip(targets, plans, strict=True)
            ]
        )
        assert sum(won) == 1
        assert {target.generation(number) for target in targets} == {plans[won.index(True)]}


def check_the_first_commit_wins(place: Place) -> None:
    ann, ben = place.target(), place.target()
    for number in range(5):
        chunk, ids = str(number), [f"{number}-{image}" for image in range(50)]
        if number % 2:
            ann.claim([chunk], ANN, lease_s=60)
        won = at_once(
            lambda: ann.commit(chunk, images(chunk, ids, label="ann"), ANN),  # noqa: B023
            lambda: ben.commit(chunk, images(chunk, ids, label="ben", boxes=3), BEN),  # noqa: B023
        )
        assert sorted(won) == [False, True]
        found = [label for image_id, label in boxes_of(ann, "image_id", "label") if image_id in ids]
        assert found == (["ann"] * 100 if won[0] else ["ben"] * 150)


def check_a_commit_that_fails_leaves_nothing(place: Place) -> None:
    target = place.target()
    target.commit("a", images("a", ["1"]), ANN)
    target.claim(["b"], ANN, lease_s=60)
    with pytest.raises(StorageError):
        target.commit("b", images("b", ["2", "3", "1"]), ANN)
    with pytest.raises(StorageError):
        target.commit("unclaimed", images("unclaimed", ["4", "4"]), ANN)
    assert target.committed() == {"a"}
    assert rows_of(target, "image_id") == [("1",)]
    assert boxes_of(target, "chunk") == [("a",)] * 2
    assert target.claim(["b"], BEN, lease_s=60) == {}, "the lease lasts"
    assert target.commit("b", images("b", ["2", "3"]), ANN)


def check_a_commit_that_fails_in_its_second_table_leaves_nothing(place: Place) -> None:
    target = place.target()
    place.sql(f"drop {'view' if place.name.startswith('postgresql') else 'table'} detections")
    with pytest.raises(StorageError, match="detections"):
        target.commit("a", images("a", ["1"]), ANN)
    assert target.committed() == set()
    assert rows_of(target, "image_id") == []


def check_rows_are_rewritten(place: Place) -> None:
    target = place.target()
    ids = [f"{number:04}" for number in range(1200)]
    target.commit("a", images("a", ids), ANN)
    assert target.rewrite("a", images("a", ids[:1100], boxes=1, version="new"), ANN, revision=1)
    versions = dict(rows_of(target, "image_id", "version"))
    assert Counter(versions.values()) == {"new": 1100, "v": 100}
    assert Counter(boxes_of(target, "image_id")) == {(image_id,): 1 + (image_id >= "1100") for image_id in ids}
    with pytest.raises(StorageError):
        target.rewrite("a", images("a", ["0000", "0001", "0001"], boxes=9), ANN, revision=2)
    assert len(boxes_of(target, "image_id")) == 1300


def check_an_answer_that_was_lost_is_asked_for_again(place: Place) -> None:
    target = place.target()
    for _ in range(2):
        assert target.publish(0, b"plan")
        assert target.claim(["a"], ANN, lease_s=60) == {"a": 1}
    for _ in range(2):
        assert target.commit("a", images("a", ["1"]), ANN)
    assert not target.commit("a", images("a", ["1"]), BEN)
    assert (rows_of(target, "image_id"), len(boxes_of(target, "label"))) == ([("1",)], 2)


def check_stale_rows_never_win(place: Place) -> None:
    """Two runs read the same rows; the one that was paused comes second."""
    ann, ben = place.target(), place.target()
    ann.commit("a", images("a", ["1", "2"]), ANN)
    revision, rows = ann.read_chunk("a", ["version", "image_id"])
    assert (revision, rows.to_pydict()) == (1, {"version": ["v", "v"], "image_id": ["1", "2"]})
    assert ben.rewrite("a", images("a", ["1"], version="new"), BEN, revision=revision)
    assert not ann.rewrite("a", images("a", ["1", "2"], version="stale"), ANN, revision=revision)
    assert rows_of(ann, "image_id", "version") == [("1", "new"), ("2", "v")]
    assert ann.read_chunk("a", ["version"])[0] == 2
    assert ann.rewrite("a", images("a", ["2"], version="newer"), ANN, revision=2)
    assert rows_of(ann, "image_id", "version") == [("1", "new"), ("2", "newer")]
    assert not ann.rewrite("nothing", images("nothing", ["3"]), ANN, revision=1)
    with pytest.raises(StorageError, match=r"chunk 'nothing'.*has no rows"):
        ann.read_chunk("nothing", ["version"])


def check_rewrites_race(place: Place) -> None:
    targets = [place.target() for _ in range(3)]
    targets[0].commit("a", images("a", ["1"], version="0"), ANN)

    def rewrite(target: DatabaseTarget) -> int:
        done = 0
        while done < 3:
            revision, rows = target.read_chunk("a", ["version"])
            version = str(int(rows.column("version")[0].as_py()) + 1)
            done += target.rewrite("a", images("a", ["1"], version=version), ANN, revision=revision)
        return done

    at_once(*[lambda target=target: rewrite(target) for target in targets])  # type: ignore[misc]
    assert rows_of(targets[0], "version") == [("9",)]


def check_chunks_are_told_with_their_identity(place: Place) -> None:
    target, other = place.target("one"), place.target("other")
    target.commit("a", images("a", ["1", "2"]), ANN)
    target.commit("b", images("b", ["3"]), ANN)
    target.claim(["c", "b.again"], ANN, lease_s=60)
    other.commit("c", images("c", ["4"]), ANN)
    target.rewrite("b", images("b", ["3"], version="new"), BEN, revision=1)
    a, b = StoredChunk("a", hash_ids(["2", "1"]), 1, 2), StoredChunk("b", hash_ids(["3"]), 2, 1)
    assert list(target.stored()) == [a, b]
    place.sql("delete from images where image_id = '1'")
    assert list(target.stored()) == [replace(a, num_images=1), b], "what was stored, and what is there"


def check_tables_of_the_first_format_go_on(place: Place) -> None:
    place.target().commit("a", images("a", ["1", "2"]), ANN)
    place.sql("drop index if exists images_by_chunk")
    for column in ("ids", "revision", "writer", "row_format"):
        place.sql(f"alter table sightline_chunks drop column {column}")
    target, again = place.target(), place.target()
    a = StoredChunk("a", hash_ids(["1", "2"]), 1, 2)
    assert list(target.stored()) == list(again.stored()) == [a]
    assert target.commit("b", images("b", ["3"]), ANN)
    assert not target.commit("a", images("a", ["1", "2"]), ANN)
    assert target.rewrite("a", images("a", ["2"], version="new"), BEN, revision=1)
    assert not again.rewrite("a", images("a", ["2"], version="stale"), ANN, revision=1)
    assert list(again.stored()) == [replace(a, revision=2), StoredChunk("b", hash_ids(["3"]), 1, 1)]


def check_rows_of_a_newer_format_are_refused(place: Place) -> None:
    target, other = place.target("one"), place.target("other")
    target.commit("a", images("a", ["1"]), ANN)
    other.commit("b", images("b", ["1"]), ANN)
    place.sql("update sightline_chunks set row_format = 3 where job = 'one'")
    with pytest.raises(DamagedError, match="has rows of format 3, this Sightline reads 1 to 2: install the version"):
        place.target("one")
    place.target("other")


def check_rows_are_streamed(place: Place) -> None:
    target = DatabaseTarget(small_pages(place))
    target.open({"id": "one"})
    expected = []
    for number in range(5):
        ids = [f"{number}-{image:02}" for image in range(10)]
        expected += ids
        status = "ok" if number else "rejected"
        target.commit(str(number), images(str(number), ids, boxes=number, status=status), ANN)
    batches = list(target.rows(["status", "image_id"]))
    assert [name for batch in batches for name in batch.column("image_id").to_pylist()] == expected
    assert [batch.schema.names for batch in batches] == [["status", "image_id"]] * len(batches)
    assert max(map(len, batches)) <= 7
    assert rows_of(target, "uri", status="rejected") == [("/photos/a.jpg",)] * 10
    assert rows_of(target, "image_id", status="nonsense") == []
    boxes = list(target.detections(["image_id"]))
    assert Counter(name for batch in boxes for name in batch.column(0).to_pylist()) == Counter(
        image_id for image_id in expected for _ in range(int(image_id[0]))
    )
    assert max(map(len, boxes)) <= 7 + 4
    target.close()


def check_reading_blocks_nobody(place: Place) -> None:
    target = DatabaseTarget(small_pages(place))
    target.open({"id": "one"})
    target.commit("a", images("a", [f"a{number:02}" for number in range(20)]), ANN)
    reading = target.rows(["image_id"])
    next(reading)
    assert place.target().commit("b", images("b", ["b"]), ANN)
    assert place.process("commit", "p", 1).wait(60) == 0
    assert len([row for batch in reading for row in batch.to_pylist()]) >= 13
    target.close()


def small_pages(place: Place) -> DuckDBFile | SQLDatabase:
    found = connector(place.name)
    found.page_rows = 7
    return found


def check_hostile_texts_stay_texts(place: Place) -> None:
    target = place.target(HOSTILE, prefix=HOSTILE_PREFIX)
    chunk = f"chunk {HOSTILE}"
    assert target.publish(0, b"plan")
    assert target.claim([chunk], Owner(HOSTILE, HOSTILE, 1), lease_s=60) == {chunk: 1}
    target.commit(chunk, images(chunk, [HOSTILE], label=HOSTILE, uri=HOSTILE, detail=HOSTILE), ANN)
    target.rewrite(chunk, images(chunk, [HOSTILE], label=HOSTILE, uri=HOSTILE, detail=HOSTILE), ANN, revision=1)
    target.write_manifest({"classes": [HOSTILE, "\0"]})
    assert target.committed() == {chunk}
    assert rows_of(target, "image_id", "uri", "detail") == [(HOSTILE, HOSTILE, HOSTILE)]
    assert boxes_of(target, "image_id", "label", "chunk") == [(HOSTILE, HOSTILE, chunk)] * 2
    assert target.read_manifest() == {"classes": [HOSTILE, "\0"]}
    assert place.target("plain").committed() == set(), "other tables"


def check_nul_is_made_visible(place: Place) -> None:
    target = place.target()
    target.commit("c", images("c", ["a"], label="bo\0lt", uri="/a\0.jpg", detail="\0\0"), ANN)
    assert rows_of(target, "uri", "detail") == [("/a␀.jpg", "␀␀")]
    assert boxes_of(target, "label", "uri") == [("bo␀lt", "/a␀.jpg")] * 2


def check_tables_of_others_are_left_alone(place: Place) -> None:
    place.sql("create table images (image_id integer, photo integer)")
    with pytest.raises(ExistsError, match=r"'images'.*no column 'job'.*detect\.table_prefix"):
        place.target()
    assert place.target(prefix="ours_").commit("a", images("a", ["1"]), ANN)
    assert place.sql("select * from images") == []
    with pytest.raises(StorageError):
        place.sql("select * from detections")


def check_prefixes_have_limits(place: Place) -> None:
    for prefix in ("x" * 60, "☃" * 20, "a\0b", "\udcff"):
        with pytest.raises(ConfigError, match="table_prefix"):
            place.target(prefix=prefix)
    assert place.target(prefix="x" * 40).commit("a", images("a", ["1"]), ANN)
    assert place.target(prefix="x" * 41).committed() == set()


def check_processes_write_at_once(place: Place) -> None:
    processes = [place.process("commit", name, 6) for name in "pqr"]
    outcomes = [(process.wait(120), process.communicate()[1]) for process in processes]
    assert outcomes == [(0, "")] * 3
    check_whole(place, {f"{name}{number}" for name in "pqr" for number in range(6)})


def check_killed_processes_leave_whole_chunks(place: Place) -> None:
    for number in range(4):
        process = place.process("forever", f"k{number}-", 0)
        assert process.stdout is not None
        for _ in range(2 + number):
            process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.03 * number)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    target = place.target()
    assert len(target.committed()) >= 8
    check_whole(place, target.committed())


def check_whole(place: Place, chunks: set[str]) -> None:
    target = place.target()
    assert target.committed() == chunks
    assert Counter(rows_of(target, "chunk")) == {(chunk,): 100 for chunk in chunks}
    assert Counter(boxes_of(target, "chunk")) == {(chunk,): 300 for chunk in chunks}


def check_credentials_are_not_kept(place: Place) -> None:
    target = place.target(is_open=False)
    source = "postgresql://ann:hunter2@db/photos?password=hunter2"
    target.open({"id": "one", "source": source, "api_key": "hunter2", "threshold": 0.3})
    target.write_manifest({"source": source, "settings": {"token": "hunter2", "images": 3}})
    kept = place.sql("select description, manifest from sightline_jobs")
    assert "hunter2" not in str(kept)
    assert json.loads(kept[0][0])["threshold"] == 0.3
    manifest = target.read_manifest()
    assert manifest is not None
    assert manifest["settings"]["images"] == 3


def check_a_summary_counts_this_job_alone(place: Place) -> None:
    target, other = place.target("one"), place.target("other")
    assert target.summary() == Summary(0, 0, 0, (), {})
    truncated = {"boxes": 0, "status": "rejected", "reason": "truncated image"}
    target.commit("a", images("a", ["1", "2", "3"], label="Nut", boxes=2), ANN)
    target.commit("b", images("b", ["4", "5"], label="bolt", boxes=3), ANN)
    target.commit("c", images("c", ["6"], label="screw", boxes=7), ANN)
    target.commit("d", images("d", ["7", "8"], **truncated), ANN)
    target.commit("e", images("e", ["9"], **{**truncated, "reason": "bomb"}), ANN)
    target.commit("f", images("f", ["10"], boxes=0), ANN)
    target.claim(["g", "000000-00001.again"], ANN, lease_s=60)
    other.commit("a", images("a", ["1"], label="Nut", boxes=100), ANN)
    other.commit("b", images("b", ["2"], **truncated), ANN)
    found = target.summary()
    assert (found.images, found.rejected, found.detections) == (10, 3, 19)
    assert [(one.label, one.detections, one.images) for one in found.classes] == [
        ("screw", 7, 1),
        ("Nut", 6, 3),
        ("bolt", 6, 2),
    ]
    assert [one.mean_score for one in found.classes] == [pytest.approx(0.1)] * 3
    assert list(found.reasons.items()) == [("truncated image", 2), ("bomb", 1)]
    assert {type(value) for one in found.classes for value in (one.detections, one.images)} == {int}


def check_a_summary_follows_what_is_rewritten(place: Place) -> None:
    target = place.target(prefix=HOSTILE_PREFIX)
    target.commit("a", images("a", ["1", "2"], label=HOSTILE, boxes=2), ANN)
    target.commit("b", images("b", ["3"], boxes=0, status="rejected", reason=HOSTILE), ANN)
    assert target.summary().reasons == {HOSTILE: 1}
    target.rewrite("a", images("a", ["2"], label=HOSTILE, boxes=1), ANN, revision=1)
    target.rewrite("b", images("b", ["3"], label=HOSTILE, boxes=2, score=0.7), ANN, revision=1)
    found = target.summary()
    assert (found.images, found.rejected, found.reasons) == (3, 0, {})
    assert found.classes == (ClassCount(HOSTILE, 5, 3, pytest.approx((0.1 * 3 + 0.7 * 2) / 5)),)


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_") and name != "check_whole"]
