"""From a source to a dataset: complete or absent, the same whatever the machine, nothing lost in silence."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest
from builders import (
    Ingest,
    attempt,
    check_invariants,
    coco_json,
    jpeg,
    png,
    rejects_of,
    run_python,
    samples,
    voc_xml,
    write_tree,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline
from failing_disk import ALWAYS, FailingDisk
from programs import need_namespaces
from sightline import retry
from sightline.config import Config, IngestConfig
from sightline.data import disk
from sightline.data import ingest as ingest_module
from sightline.data import shard as shard_module
from sightline.data.formats import coco
from sightline.data.ingest import cut_into_shards
from sightline.data.location import without_secrets
from sightline.data.parallel import run_in_order
from sightline.data.record import Entry
from sightline.data.split import HashSplitter, StratifiedSplitter, parse_fractions
from sightline.data.storage import Folder
from sightline.data.target import DatasetTarget
from sightline.errors import (
    ConfigError,
    ExistsError,
    FormatError,
    NotFoundError,
    SourceError,
    StorageError,
    TooManyRejectedError,
)
from sightline.process_identity import this_host


def classes_source(root: Path, count: int = 40) -> Path:
    return write_tree(root, {f"{'ab'[n % 2]}/{n:03d}.png": png(24, 16, seed=n) for n in range(count)})


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(ingest_module, "MAX_SHARD_ENTRIES", 7)
    monkeypatch.setattr(shard_module, "ROW_GROUP_BYTES", 3000)


def test_the_same_with_one_worker_and_two_and_twice(tmp_path, ingest, small_shards):
    source = classes_source(tmp_path / "s")
    first, again, two = ingest(source), ingest(source), ingest(source, workers=2)
    assert len(first.info.shards) > 3
    assert first.info.content_hash == again.info.content_hash == two.info.content_hash
    assert [s.image_id for s in first] == [s.image_id for s in two]
    assert first.info.splits == two.info.splits
    for dataset in (first, two):
        check_invariants(dataset)
        for sample in dataset:
            assert bytes(sample.image) == (source / sample.file_name).read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda s: (s / "a/000.png").write_bytes(png(seed=77)),
        lambda s: (s / "a/000.png").rename(s / "a/zzz.png"),
        lambda s: (s / "a/000.png").rename(s / "b/000.png"),
        lambda s: (s / "a").rename(s / "c"),
        lambda s: (s / "a/000.png").unlink(),
    ],
)
def test_content_hash_changes_with_the_content(change, tmp_path, ingest):
    source = classes_source(tmp_path / "s", 10)
    before = ingest(source).info.content_hash
    change(source)
    assert ingest(source).info.content_hash != before


def test_content_hash_changes_with_every_column_of_the_annotation(tmp_path, ingest):
    base = ("a", 1, 2, 11, 12, 0)
    found = set()
    for number, row in enumerate((base, ("a", 1, 2, 11, 13, 0), ("a", 1, 2, 11, 12, 1), ("b", 1, 2, 11, 12, 0))):
        files = {"1.png": png(), "1.xml": voc_xml([row])}
        found.add(ingest(write_tree(tmp_path / str(number), files), classes=("a", "b")).info.content_hash)
    assert len(found) == 4


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5_000_000), max_size=300))
def test_shards_hold_every_entry_once_in_order(sizes):
    entries = [Entry(str(number), size) for number, size in enumerate(sizes)]
    shards = list(cut_into_shards(entries))
    assert [entry for shard in shards for entry in shard] == entries
    assert all(shards)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=5), st.integers(0, 2**32))
def test_hash_split_follows_the_fractions(weights, seed):
    total = sum(weights)
    fractions = {f"s{n}": weight / total for n, weight in enumerate(weights)}
    splitter = HashSplitter.from_fractions(fractions)
    found = Counter(splitter.assign(f"{seed}-{n}".encode(), frozenset()) for n in range(2000))
    for name, fraction in fractions.items():
        assert abs(found[name] / 2000 - fraction) < 0.06
    assert splitter == HashSplitter.from_fractions(fractions)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train",
        "train=x",
        "train=0.5",
        "a=0.5,a=0.5",
        "a=1.5,b=-0.5",
        "a=nan",
        "a=1,",
        "../x=1",
        "a b=1",
        "a=inf,b=-inf",
    ],
)
def test_bad_fractions_are_refused(text, tmp_path, ingest):
    with pytest.raises(ConfigError):
        parse_fractions(text)
    if text:
        with pytest.raises(ConfigError):
            ingest(classes_source(tmp_path / "s", 2), split=text)


def test_asked_split_wins_over_the_sources_own(tmp_path, ingest):
    source = write_tree(tmp_path / "s", {f"{s}/a/{n}.png": png(seed=n) for s in ("train", "val") for n in range(9)})
    assert set(ingest(source).info.splits) == {"train", "val"}
    assert set(ingest(source, split="x=0.5,y=0.5").info.splits) <= {"x", "y"}
    dataset = ingest(source, split="x=0.5,y=0.5")
    by_bytes = {}
    for sample in dataset:
        by_bytes.setdefault(bytes(sample.image), set()).add(sample.split)
    assert all(len(splits) == 1 for splits in by_bytes.values())


def test_stratified_split_gives_every_class_its_share(tmp_path, ingest):
    files = {
        f"{name}/{n}.png": png(24, 16, seed=1000 * c + n)
        for c, (name, k) in enumerate((("a", 100), ("b", 20), ("c", 10)))
        for n in range(k)
    }
    source = write_tree(tmp_path / "s", files)
    dataset = ingest(source, stratify=True, split="train=0.8,val=0.2")
    assert dataset.info.splits["val"].images_per_class == {"a": 20, "b": 4, "c": 2}
    again = ingest(source, stratify=True, split="train=0.8,val=0.2", workers=2)
    assert {n: s.split for n, s in samples(dataset).items()} == {n: s.split for n, s in samples(again).items()}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.frozensets(st.integers(0, 4), max_size=3)), max_size=60), st.randoms())
def test_stratified_split_depends_on_the_images_only_and_never_parts_equal_ones(images, random):
    images = [(str(number).encode(), classes) for number, classes in images]
    fractions = {"train": 0.6, "val": 0.4}
    splitter = StratifiedSplitter.from_images(fractions, images)
    shuffled = list(images)
    random.shuffle(shuffled)
    other = StratifiedSplitter.from_images(fractions, shuffled)
    by_digest = {}
    for digest, classes in images:
        assert splitter.assign(digest, classes) == other.assign(digest, classes)
        by_digest.setdefault(digest, set()).add(splitter.assign(digest, classes))
    assert all(len(splits) == 1 for splits in by_digest.values())


def test_max_rejected(tmp_path, ingest):
    source = classes_source(tmp_path / "s", 9)
    write_tree(source, {"a/bad.png": b"no image"})
    assert len(ingest(source, max_rejected=0.1)) == 9
    with pytest.raises(
        TooManyRejectedError, match=r"1 of 10 images cannot be used \(1 x not an image\), more than .* 0.09"
    ):
        ingest(source, "strict", max_rejected=0.09)
    assert not (ingest.workspace / "datasets/strict").exists()
    assert not list((ingest.workspace / "datasets").glob(".*"))


def test_more_splits_than_make_sense(tmp_path, ingest, monkeypatch):
    monkeypatch.setattr(ingest_module, "MAX_SPLITS", 3)
    source = write_tree(tmp_path / "s", {f"{n}.png": png(seed=n) for n in range(4)})
    (source / "t.csv").write_text("path,label,split\n" + "".join(f"{n}.png,a,s{n}\n" for n in range(4)))
    with pytest.raises(FormatError, match="more than 3 splits"):
        ingest(source)


def test_existing_targets_are_kept(tmp_path, ingest):
    source = classes_source(tmp_path / "s", 4)
    ingest(source, "x")
    with pytest.raises(ExistsError, match="exists: take another name, or --replace it"):
        ingest(source, "x")
    for replace in (False, True):
        write_tree(tmp_path / "precious", {"file": "x"})
        with pytest.raises(ExistsError, match="exists and is not a dataset"):
            ingest(source, str(tmp_path / "precious"), replace=replace)
        with pytest.raises(ExistsError, match="exists and is not a dataset"):
            ingest(source, str(tmp_path / "precious/file"), replace=replace)
    assert (tmp_path / "precious/file").read_text() == "x"


def test_replace_keeps_the_old_one_until_the_new_one_is_complete(tmp_path, ingest, monkeypatch):
    source = classes_source(tmp_path / "s", 4)
    old = ingest(source, "x").info.content_hash
    real = ingest_module.write_shard

    def fail(*arguments):
        assert sightline.open_dataset("x", workspace=ingest.workspace).info.content_hash == old
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ingest_module, "write_shard", fail)
    with pytest.raises(StorageError, match=r"cannot write dataset .*No space left on device"):
        ingest(source, "x", replace=True)
    dataset = sightline.open_dataset("x", workspace=ingest.workspace)
    assert dataset.info.content_hash == old
    assert len([bytes(sample.image) for sample in dataset]) == 4
    assert [path.name for path in (ingest.workspace / "datasets").iterdir()] == ["x"]
    monkeypatch.setattr(ingest_module, "write_shard", real)
    write_tree(source, {"a/new.png": png(seed=50)})
    assert len(ingest(source, "x", replace=True)) == 5
    assert [path.name for path in (ingest.workspace / "datasets").iterdir()] == ["x"]


def test_somebody_faster_is_not_overwritten(tmp_path, ingest, monkeypatch):
    source = classes_source(tmp_path / "s", 4)
    real = ingest_module.write_shard

    def race(*arguments):
        monkeypatch.setattr(ingest_module, "write_shard", real)
        Ingest(ingest.workspace)(source, "x", split="mine=1")
        return real(*arguments)

    monkeypatch.setattr(ingest_module, "write_shard", race)
    with pytest.raises(ExistsError):
        ingest(source, "x")
    assert list(sightline.open_dataset("x", workspace=ingest.workspace).info.splits) == ["mine"]


KILLED = """
import os, signal, sys
from sightline.data import ingest
import sightline
real = ingest.write_shard
done = []
def write(*arguments):
    result = real(*arguments)
    done.append(1)
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
ingest.write_shard, ingest.MAX_SHARD_ENTRIES = write, 5
sightline.ingest(sys.argv[1], "x", workspace=sys.argv[2], workers=1, replace=True)
"""


@pytest.mark.parametrize("existing", [False, True])
def test_killed_ingest_leaves_no_dataset_and_the_next_one_cleans_up(existing, tmp_path, ingest):
    source = classes_source(tmp_path / "s", 20)
    old = ingest(source, "x", split="old=1").info.content_hash if existing else None
    with pytest.raises(AssertionError):
        run_python(KILLED, source, ingest.workspace)
    places = [path.name for path in (ingest.workspace / "datasets").iterdir()]
    assert len([name for name in places if name.endswith(".tmp")]) == 1
    assert [info.content_hash for info in sightline.list_datasets(workspace=ingest.workspace)] == ([old] if old else [])
    assert len(ingest(source, "x", replace=True)) == 20
    assert [path.name for path in (ingest.workspace / "datasets").iterdir()] == ["x"]


def test_a_dataset_lost_between_two_renames_comes_back(tmp_path, ingest):
    source = classes_source(tmp_path / "s", 4)
    old = ingest(source, "x").info.content_hash
    directory = ingest.workspace / "datasets"
    (directory / "x").rename(directory / f".x.{this_host()}-999999999-{'0' * 8}.old.tmp")
    with pytest.raises(FormatError):
        ingest(write_tree(tmp_path / "none", {"readme": ""}), "x", format="deeppcb", replace=True)
    assert sightline.open_dataset("x", workspace=ingest.workspace).info.content_hash == old


def test_directories_of_others_are_left(tmp_path, ingest):
    names = [
        f".x.elsewhere-1-{'0' * 8}.tmp",
        ".x.5-y.123-00000000.tmp",
        ".x.tmp",
        ".x.notes",
        f".other.h-1-{'0' * 8}.tmp",
    ]
    for name in names:
        write_tree(ingest.workspace / "datasets", {f"{name}/file": "x"})
    ingest(classes_source(tmp_path / "s", 4), "x")
    assert sorted(path.name for path in (ingest.workspace / "datasets").iterdir()) == sorted([*names, "x"])


IN_A_CONTAINER = """
import sys
from sightline.data.target import DatasetTarget
with DatasetTarget(sys.argv[1]).open() as directory:
    print(directory, flush=True)
    sys.stdin.readline()
"""


def test_what_a_container_of_the_same_name_is_writing_is_left(tmp_path, ingest):
    ended = subprocess.Popen(["true"])
    ended.wait()
    shell = 'echo "$0" > /proc/sys/kernel/ns_last_pid && "$@" && true'  # The next process there gets the next id.
    container = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", shell, str(ended.pid - 1)]
    need_namespaces(*container, "true")
    place = ingest.workspace / "datasets" / "x"
    command = [*container, sys.executable, "-c", IN_A_CONTAINER, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        theirs = Path(process.stdout.readline().strip())
        assert theirs.is_dir()
        ingest(classes_source(tmp_path / "s", 4), "x")
        assert theirs.is_dir()
        process.communicate("\n", timeout=60)


def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def double(number):
    return number * 2


def fail_at_three(number):
    if number == 3:
        raise StorageError("number three")
    return number


def test_workers():
    assert list(run_in_order(double, ((n,) for n in range(20)), workers=2)) == [n * 2 for n in range(20)]
    assert list(run_in_order(double, (), workers=2)) == []
    with pytest.raises(StorageError, match="number three"):
        list(run_in_order(fail_at_three, ((n,) for n in range(20)), workers=2))


WORKER_DIES = """
import os, signal, sys
import sightline
from sightline.data.parallel import run_in_order
from sightline.errors import SightlineError
try:
    list(run_in_order(os.kill, ((0, 0) if n else (os.getpid(), 0) for n in range(4)), workers=1))
    list(run_in_order(eval, [("__import__('os').kill(__import__('os').getpid(), 9)",)] * 3, workers=2))
except SightlineError as error:
    print(error)
"""


def test_a_worker_killed_by_the_system_is_a_clear_error():
    assert "a worker process died" in run_python(WORKER_DIES)


def test_memory_of_waiting_tasks_is_bounded():
    started = []

    def tasks():
        for number in range(1000):
            started.append(number)
            yield (number,)

    results = run_in_order(double, tasks(), workers=2)
    next(results)
    assert len(started) < 12
    results.close()


def test_script_without_main_guard(tmp_path):
    source = classes_source(tmp_path / "s", 20)
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sightline
            from sightline.data import ingest
            ingest.MAX_SHARD_ENTRIES = 5
            print("started")
            print(sightline.ingest({str(source)!r}, "x", workspace={str(tmp_path / "w")!r}, workers=2).num_images)
            """
        )
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert result.stdout == "started\n20\n", result.stderr


@pytest.mark.parametrize(
    ("location", "written"),
    [
        ("/plain/path", "/plain/path"),
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("s3://KEY:SECRET@bucket/x", "s3://bucket/x"),
        ("s3://KEY:SEC/RET@bucket/x", "s3://bucket/x"),
        ("s3://bucket/x?access_key=SECRET", "s3://bucket/x"),
        ("postgresql+psycopg://me:SECRET@host:5432/db?x=SECRET", "postgresql+psycopg://host:5432/db"),
        ("postgresql://me:SEC@RET@host/db", "postgresql://host/db"),
        ("https://SECRET@host/x", "https://host/x"),
    ],
)
def test_without_secrets(location, written):
    assert without_secrets(location) == written


@pytest.mark.usefixtures("impatient")
@pytest.mark.filterwarnings("ignore:Query string argument")
def test_credentials_are_written_nowhere(tmp_path, ingest):
    import sqlite3

    database = tmp_path / "t.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table t (image blob, label text)")
        connection.execute("insert into t values (?, 'a')", (png(),))
    connection.close()
    ingest(f"sqlite:///{database}?password=SECRET", query="select * from t")
    write_tree(tmp_path / "s", {"c.json": coco_json(["1.png"])})
    write_tree(tmp_path / "i", {"1.png": png()})
    for url in ("memory://KEY:SECRET@x/y", "s3://KEY:SECRET@nowhere/x?endpoint_override=127.0.0.1:1&scheme=http"):
        _, error = attempt(ingest, tmp_path / "s", images=url)
        assert "SECRET" not in str(error)
    config = Config(ingest=IngestConfig(images="s3://KEY:SECRET@bucket/x?token=SECRET"))
    assert ingest_module._written_config(config)["ingest"]["images"] == "s3://bucket/x"
    with pytest.raises(StorageError) as caught:
        Folder.open("ftp://me:SECRET@host/x")
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in repr(Folder.open("s3://KEY:SECRET@bucket/x?region=eu-west-1"))
    for path in ingest.workspace.rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes()


def test_urls_in_tables_lose_their_signatures(tmp_path, ingest):
    write_tree(tmp_path / "s", {"1.png": png(), "t.csv": "path,label\n1.png,a\nhttps://host/x.png?sig=SECRET,a\n"})
    dataset = ingest(tmp_path / "s")
    assert len(dataset) == 1
    assert "SECRET" not in json.dumps([row["file_name"] for row in dataset.rejects().to_pylist()])


def test_many_rejects_are_few_row_groups(tmp_path, ingest):
    import pyarrow.parquet as pq

    source = write_tree(
        tmp_path / "s", {f"a/{n}.png": b"x" for n in range(30)} | {"a/good.png": png(), "loose.png": png()}
    )
    dataset = ingest(source)
    assert len(rejects_of(dataset)) == 31
    assert pq.ParquetFile(Path(dataset.location) / "rejects.parquet").num_row_groups == 1


def test_full_disk_is_a_clear_error(tmp_path, ingest):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    source = write_tree(tmp_path / "s", {"a/1.jpg": jpeg(400, 300)})
    from sightline.data.formats.folder import ClassFolderReader
    from sightline.data.shard import ShardOptions, write_shard

    reader = ClassFolderReader(Folder.open(source))
    options = ShardOptions(HashSplitter.from_fractions({"train": 1.0}), True, "full", 10**8)
    target = DatasetTarget(str(tmp_path / "out"))

    def write() -> None:
        with target.open() as directory:
            (directory / "shard.parquet").symlink_to(full)
            write_shard(reader, reader.entries(), directory / "shard.parquet", options)

    with pytest.raises(StorageError, match=r"cannot write dataset .*No space left"):
        write()
    assert not (tmp_path / "out").exists()


def test_progress_counts_up(tmp_path, ingest, small_shards):
    seen = []
    ingest(classes_source(tmp_path / "s", 20), progress=lambda done, rejected: seen.append((done, rejected)))
    assert seen == sorted(seen)
    assert seen[-1] == (20, 0)


def test_ingest_is_quick_to_refuse(tmp_path, ingest):
    source = classes_source(tmp_path / "s", 4)
    ingest(source, "x")
    begin = time.monotonic()
    with pytest.raises(ExistsError):
        ingest(tmp_path / "does not even exist", "x")
    assert time.monotonic() - begin < 1


def coco_source(root: Path, count: int = 20, *, others: tuple[str, ...] = ()) -> Path:
    names = [f"{n:02d}.png" for n in range(count)]
    boxes = [(n % count + 1, 1, 1, 2, 10, 10) for n in range(2 * count)]
    return write_tree(
        root,
        {"c.json": coco_json([*names, *others], boxes)}
        | {f"images/{name}": png(seed=n) for n, name in enumerate(names)},
    )


def yolo_source(root: Path, count: int = 20) -> Path:
    pictures = {f"images/train/{n:02d}.png": png(seed=n) for n in range(count)}
    labels = {f"labels/train/{n:02d}.txt": "0 0.5 0.5 0.2 0.2\n" for n in range(count)}
    return write_tree(root, {"data.yaml": "train: images/train\nnames: [a]\n"} | pictures | labels)


def voc_source(root: Path, count: int = 20) -> Path:
    annotations = {f"Annotations/{n:02d}.xml": voc_xml([("a", 1, 1, 9, 9)]) for n in range(count)}
    return write_tree(root, annotations | {f"JPEGImages/{n:02d}.png": png(seed=n) for n in range(count)})


SOURCES = [classes_source, coco_source, yolo_source, voc_source]


def when_read(monkeypatch, name: str, act) -> None:
    """Do something before a file is read for the first time."""
    real, done = disk.read_file, []

    def read_file(path: str) -> bytes:
        if path.endswith(name) and not done:
            done.append(path)
            act()
        return real(path)

    monkeypatch.setattr(disk, "read_file", read_file)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("how", ["gone", "empty", "back"])
@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.usefixtures("impatient")
def test_a_source_that_vanishes_is_not_a_source_with_fewer_images(tmp_path, ingest, monkeypatch, make, how, stratify):
    """As when its file system is unmounted; one that comes back is read to the end."""
    source, away = make(tmp_path / "source", 20), tmp_path / "away"
    expected = ingest(source, "expected", stratify=stratify).info

    def vanish() -> None:
        source.rename(away)
        if how == "empty":
            source.mkdir()

    def come_back(what: str, *_: object) -> None:
        if how == "back" and away.exists():
            away.rename(source)

    when_read(monkeypatch, "05.png", vanish)
    monkeypatch.setattr(retry._LOGGER, "warning", come_back)
    if how == "back":
        assert ingest(source, "found", stratify=stratify).info.content_hash == expected.content_hash
        return
    with pytest.raises(SourceError, match=rf"'{source}' is missing or empty on this machine: is it mounted\? When"):
        ingest(source, "found", stratify=stratify)
    assert [info.name for info in sightline.list_datasets(workspace=ingest.workspace)] == ["expected"]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("function", ["stat", "open"])
@pytest.mark.usefixtures("impatient")
def test_a_source_that_fails_for_a_while_loses_nothing(tmp_path, ingest, monkeypatch, make, function):
    source = make(tmp_path / "source", 20)
    expected = ingest(source).info
    for name in ("05.png", "05.xml", "05.txt"):
        with monkeypatch.context() as patch:
            failing = FailingDisk(patch, os, function, name)
            failing.failures = 2
            found = ingest(source).info
        assert (found.content_hash, found.rejected) == (expected.content_hash, expected.rejected)
        assert failing.failed == (2 if any(source.rglob(f"*{name}")) else 0)


@pytest.mark.usefixtures("impatient")
def test_a_source_that_fails_for_good_ends_the_ingest(tmp_path, ingest, monkeypatch):
    source = coco_source(tmp_path / "source")
    FailingDisk(monkeypatch, os, "open", "05.png", failures=ALWAYS)
    with pytest.raises(SourceError, match=r"05\.png.*Input/output error.*run the same command"):
        ingest(source)
    assert sightline.list_datasets(workspace=ingest.workspace) == []


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_cannot_be_listed_for_a_while(tmp_path, ingest, monkeypatch):
    source = classes_source(tmp_path / "source", 20)
    failing = FailingDisk(monkeypatch, os, "scandir", "source/b", failures=2)
    assert ingest(source).info.num_images == 20
    assert failing.failed == 2


def test_an_image_that_is_missing_is_one_reject(tmp_path, ingest):
    dataset = ingest(coco_source(tmp_path / "source", 20, others=("missing.png",)))
    assert dataset.info.num_images == 20
    assert dataset.info.rejected == {"image rejected": {"file not found": 1}}


@pytest.mark.usefixtures("impatient")
def test_labels_that_vanish_are_not_images_without_objects(tmp_path, ingest, monkeypatch):
    """They lie elsewhere than the images, which are still there."""
    source, images = yolo_source(tmp_path / "source"), tmp_path / "images"
    (source / "images").rename(images)
    assert ingest(source, images=str(images)).info.num_boxes == 20
    when_read(monkeypatch, "images/train/05.png", lambda: source.rename(tmp_path / "away"))
    with pytest.raises(SourceError, match=rf"'{source}' is missing or empty"):
        ingest(source, images=str(images))
    assert len(sightline.list_datasets(workspace=ingest.workspace)) == 1


@pytest.mark.usefixtures("impatient")
def test_a_source_that_vanishes_between_two_splits(tmp_path, ingest, monkeypatch, small_shards):
    """All that was listed is read by then, and the next split is no folder that was not found."""
    source, real = yolo_source(tmp_path / "source", 21), disk.read_file
    splits = "train: images/train\nval: images/val\nnames: [a]\n"
    write_tree(source, {"images/val/x.png": png(seed=99), "data.yaml": splits})

    def read_file(path: str) -> bytes:
        content = real(path)
        if path.endswith("train/20.txt"):
            source.rename(tmp_path / "away")
        return content

    monkeypatch.setattr(disk, "read_file", read_file)
    with pytest.raises(SourceError, match=rf"'{source}' is missing or empty"):
        ingest(source)
    assert sightline.list_datasets(workspace=ingest.workspace) == []


def test_a_folder_of_images_that_does_not_exist_is_refused_at_once(tmp_path, ingest):
    with pytest.raises(NotFoundError, match=r"typo' does not exist"):
        ingest(coco_source(tmp_path / "source"), images=str(tmp_path / "typo"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"empty' of --images is empty: is it mounted"):
        ingest(coco_source(tmp_path / "source"), images=str(tmp_path / "empty"))


def test_a_box_without_area_does_not_call_the_source_in_question(tmp_path, ingest, monkeypatch):
    """Whether the source is there is asked again only if something was not found there."""
    monkeypatch.setattr(ingest_module, "check_reach", lambda folders: pytest.fail("nothing was missing"))
    source = coco_source(tmp_path / "source")
    (file,) = source.rglob("*.json")
    content = json.loads(file.read_text())
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    file.write_text(json.dumps(content))
    assert ingest(source).info.rejected["box rejected"]


@pytest.mark.usefixtures("impatient")
def test_annotations_that_cannot_be_read_for_a_while_are_not_passed_over(tmp_path, ingest, monkeypatch):
    """Nor taken for something else than COCO."""
    write_tree(tmp_path / "s/annotations", {f"instances_{s}.json": coco_json([f"{s}.png"]) for s in ("train", "val")})
    write_tree(tmp_path / "s", {f"images/{s}.png": png(seed=n) for n, s in enumerate(("train", "val"))})
    real, failures = coco._read_head, [OSError(errno.EIO, "Input/output error")] * 2

    class Failing:
        """Opens files as the folder's own file system does, but for two failures."""

        def __init__(self, folder: Folder) -> None:
            self._folder = folder
            self.location, self.is_local, self.full_path = folder.location, folder.is_local, folder.full_path
            self.filesystem = self

        def open_input_file(self, path: str) -> object:
            if failures and "val" in path:
                raise failures.pop()
            return self._folder.filesystem.open_input_file(path)

    monkeypatch.setattr(coco, "_read_head", lambda source, path: real(Failing(source), path))
    assert set(ingest(tmp_path / "s").info.splits) == {"train", "val"}
    assert not failures
