"""Images in Parquet and Arrow files: which column, which rows, and how little of a file is read."""

import base64
import subprocess
import sys
import textwrap
import tracemalloc

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from source_builders import contents, opened, png, pngs, reason, write_files

from sightline.detection.item import id_of
from sightline.detection.sources.table_files import RowReader
from sightline.errors import ConfigError, FormatError, ImageError


def write(path, columns, **options):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=options.get("rows", 3))
    else:
        feather.write_feather(table, path, chunksize=options.get("rows", 3), compression="uncompressed")
    return path


def images(count):
    return [png(number) for number in range(count)]


SUFFIXES = [".parquet", ".arrow", ".feather"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_rows_are_read_again(tmp_path, bucket, suffix, place):
    file = write(tmp_path / f"t{suffix}", {"image": images(8), "file_name": [f"n{n}" for n in range(8)], "x": range(8)})
    table = f"{bucket.write({file.name: file.read_bytes()})}/{file.name}" if place == "bucket" else str(file)
    source = opened(table)
    assert contents(source) == {f"{table}#n{n}": png(n) for n in range(8)}
    items = list(source.items())
    assert [item.image_id for item in items] == [id_of(f"n{n}") for n in range(8)]
    assert {item.version.partition("-")[0] for item in items} == {str(file.stat().st_size)}
    assert source.name == table


BINARY = {"binary": pa.binary(), "large_binary": pa.large_binary()}
TEXT = {"string": pa.string(), "large_string": pa.large_string(), "dictionary": pa.dictionary(pa.int32(), pa.string())}
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
@pytest.mark.parametrize("kind", [*BINARY, *TEXT, "struct"])
def test_columns_of_any_type(tmp_path, suffix, kind):
    texts = [base64.b64encode(image).decode() for image in images(4)]
    if kind == "struct":
        column = pa.array([{"bytes": image, "path": "some/name.png"} for image in images(4)], STRUCT)
    elif kind == "dictionary":
        column = pa.array(texts).dictionary_encode()
    else:
        column = pa.array(images(4) if kind in BINARY else texts, (BINARY | TEXT)[kind])
    file = write(tmp_path / f"t{suffix}", {"image": column})
    assert contents(opened(file)) == {f"{file}#row-{n}": png(n) for n in range(4)}


@pytest.mark.parametrize(
    ("columns", "settings", "keys"),
    [
        ({"IMG": images(2), "Image_ID": ["a", "b"]}, {}, ["a", "b"]),
        ({"image": images(2), "path": ["x/a", "x/b"]}, {}, ["x/a", "x/b"]),
        ({"image": images(2), "name": ["a", "b"], "id": [7, 8]}, {"key": "id"}, ["7", "8"]),
        ({"image": [b"no"] * 2, "scan": images(2), "name": ["a", "b"]}, {"image": "scan"}, ["a", "b"]),
        ({"data": [1, 2], "bytes": images(2), "name": ["a", "b"]}, {}, ["a", "b"]),
        ({"image": images(2), "key": [b"\x01", b"\xff"]}, {"key": "key"}, ["01", "ff"]),
        ({"image": images(2), "name": ["a\0", "new\nline"]}, {}, ["a\\x00", "new\nline"]),
        ({"image": images(2), "name": [None, ""]}, {}, ["row-0", "row-1"]),
    ],
)
def test_columns_by_name_or_setting(tmp_path, columns, settings, keys):
    file = write(tmp_path / "t.parquet", columns)
    assert contents(opened(file, **settings)) == {f"{file}#{key}": png(n) for n, key in enumerate(keys)}


def test_paths_are_opened_where_they_begin(tmp_path, bucket):
    write_files(tmp_path, pngs("in/a.png", "b.png"))
    url = bucket.write(pngs("x.png"))
    paths = ["in/a.png", f"{tmp_path}/b.png", f"{url}/x.png", "http://host/x.png", None]
    file = write(tmp_path / "t.parquet", {"path": paths, "file_name": ["same"] * 5})
    source = opened(file)
    found = contents(source)
    assert list(found) == [f"{tmp_path}/in/a.png", f"{tmp_path}/b.png", *paths[2:4], f"{file}#row-4"]
    assert list(found.values())[:3] == [png(0), png(1), png(0)]
    assert [reason(error)[0] for error in list(found.values())[3:]] == ["path", "path"]
    assert next(source.items()).image_id == id_of(f"{tmp_path}/in/a.png")
    rooted = opened(file, root=str(tmp_path / "in/.."))
    assert next(rooted.items()).uri == f"{tmp_path}/in/a.png"
    assert rooted.name != source.name
    keyed = opened(write(tmp_path / "k.parquet", {"path": ["b.png"], "id": [5]}), key="id")
    assert next(keyed.items()).image_id == id_of("5")


def test_struct_without_bytes_names_a_file(tmp_path):
    write_files(tmp_path, pngs("a.png"))
    cells = [{"bytes": None, "path": "a.png"}, {"bytes": None, "path": None}, None]
    file = write(tmp_path / "t.parquet", {"image": pa.array(cells, STRUCT)})
    first, *others = contents(opened(file)).values()
    assert first == png(0)
    assert [reason(error) for error in others] == [("decode", "no image")] * 2


def test_cells_without_an_image(tmp_path):
    file = write(tmp_path / "t.parquet", {"image": [None, "", "not base64!"]}, rows=1)
    assert [reason(error)[1] for error in contents(opened(file, image="image")).values()] == [
        "no image",
        "no image",
        "image text is not base64",
    ]


def test_folder_of_tables(tmp_path):
    place = tmp_path / "parts"
    place.mkdir()
    write(place / "b.parquet", {"image": images(4)[2:]})
    write(place / "a.parquet", {"image": images(2)})
    write_files(place, {"_SUCCESS": b"", ".crc": b""})
    source = opened(place)
    keys = [f"{name}.parquet#{name}.parquet-row-{row}" for name in "ab" for row in range(2)]
    assert contents(source) == {f"{place}/{key}": png(n) for n, key in enumerate(keys)}
    before = {item.image_id: item.ref for item in source.items()}
    write(place / "0.parquet", {"image": images(1)})
    after = {item.image_id: item.ref for item in opened(place).items()}
    assert before.items() < after.items(), "a file more must not change the ids and refs of others"
    write(place / "c.parquet", {"other": [1]})
    with pytest.raises(FormatError, match=r"c\.parquet' has no column 'image'"):
        list(opened(place).items())


@pytest.mark.parametrize("settings", [{}, {"key": "name"}])
def test_two_rows_with_the_same_key_are_refused(tmp_path, settings):
    """Each image must have a row of results of its own."""
    file = write(tmp_path / "t.parquet", {"image": images(5), "name": ["a", "b", "c", "b", "d"], "n": range(5)})
    message = r"have the key 'b' in column 'name': row 1 of 't.parquet' and row 3 of 't.parquet'.*source\.key"
    with pytest.raises(FormatError, match=message):
        list(opened(file, **settings).items())
    assert list(contents(opened(file, key="n")).values()) == images(5)
    assert contents(opened(file, key="row number")) == {f"{file}#row-{n}": png(n) for n in range(5)}


def test_two_tables_with_the_same_key_are_refused(tmp_path):
    for name in "xy":
        write(tmp_path / f"{name}.parquet", {"image": images(2), "name": [f"{name}0", "same"]})
    with pytest.raises(FormatError, match=r"row 1 of 'x.parquet' and row 1 of 'y.parquet'"):
        list(opened(tmp_path).items())


def test_rows_without_a_key_or_with_the_same_path_are_no_mistake(tmp_path):
    write_files(tmp_path, pngs("a.png"))
    file = write(tmp_path / "t.parquet", {"image": images(3), "name": ["a", None, ""]})
    assert len(contents(opened(file))) == 3
    paths = opened(write(tmp_path / "p.parquet", {"path": ["a.png", "./a.png"]}))
    assert len({item.image_id for item in paths.items()}) == 1


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("split = 'test'", [1, 3, 5]),
        ("n > 2 and split <> 'test' -- those", [4]),
        ('"odd name" is null', [0, 1, 2]),
        ("true", [0, 1, 2, 3, 4, 5]),
        ("false", []),
        ("null", []),
        ("SPLIT like 'te%' or n in (0)", [0, 1, 3, 5]),
        ("len(tags) = 2", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_condition(tmp_path, suffix, where, rows):
    columns = {
        "image": images(6),
        "n": range(6),
        "split": ["train", "test"] * 3,
        "odd name": [None] * 3 + ["x"] * 3,
        "tags": [["a", "b"]] * 6,
    }
    file = write(tmp_path / f"t{suffix}", columns, rows=4)
    source = opened(file, where=where)
    assert contents(source) == {f"{file}#row-{row}": png(row) for row in rows}
    assert where in source.name


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("colour = 'red'", "colour"),
        ("n = ", "syntax error"),
        ("image is not null", "image"),
        ("count(*) > 1", "aggregate"),
        ("n in (select 1 from read_csv('/etc/passwd'))", "disabled"),
        ("n in (select * from numbers)", "numbers"),
    ],
)
def test_wrong_condition_quotes_the_message(tmp_path, where, message):
    numbers = pa.table({"x": [1]})
    file = write(tmp_path / "t.parquet", {"image": images(1), "n": [1]})
    with pytest.raises(ConfigError, match=f"(?is)cannot be used: .*{message}.*the columns are n"):
        opened(file, where=where)
    assert numbers.num_rows == 1


def test_condition_that_fails_on_a_value(tmp_path):
    file = write(tmp_path / "t.parquet", {"image": images(2), "s": ["1", "x"]})
    with pytest.raises(ConfigError, match="x"):
        list(opened(file, where="s::int = 1").items())


def test_mistakes_are_sentences(tmp_path):
    file = write(tmp_path / "t.parquet", {"image": images(1), "path": ["a"], "n": [1]})
    with pytest.raises(ConfigError, match=r"source\.image = 'scan': .* has image, path, n"):
        opened(file, image="scan")
    with pytest.raises(ConfigError, match="from one of them"):
        opened(file, image="image", path="path")
    with pytest.raises(FormatError, match="no column with images or paths among n"):
        opened(write(tmp_path / "n.parquet", {"n": [1]}))


def stream_form():
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, pa.schema([("image", pa.binary())])):
        pass
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.parquet", b"no"), ("b.parquet", b""), ("c.arrow", b"no"), ("d.arrow", stream_form()), ("e.feather", b"FEA1")],
)
def test_file_that_is_no_table(tmp_path, name, data):
    write_files(tmp_path, {name: data})
    with pytest.raises(FormatError, match=f"{name}' cannot be read as a table"):
        opened(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
def test_table_that_was_replaced_gives_no_other_image(tmp_path, suffix):
    file = write(tmp_path / f"t{suffix}", {"image": images(4), "name": list("abcd")})
    items = list(opened(file).items())
    write(file, {"image": images(4)[::-1], "name": list("dcba")})
    replaced = opened(file)
    for item in items:
        with pytest.raises(ImageError, match="table was changed"):
            replaced.read(item)
    write(file, {"image": images(1), "name": ["a"]})
    shorter = opened(file)
    assert shorter.read(items[0]) == png(0)
    with pytest.raises(ImageError, match="not readable"):
        shorter.read(items[3])


def test_damage_in_the_images_rejects_them_only(tmp_path):
    """The footer and the names are whole; the pages of the images are not."""
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": images(6), "name": list("abcdef")}), file, row_group_size=3, compression="zstd")
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(file.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    file.write_bytes(data)
    values = list(contents(opened(file)).values())
    assert [reason(error) for error in values[:3]] == [("read", "table not readable")] * 3
    assert values[3:] == images(6)[3:]


def test_hostile_offsets_in_an_arrow_file(tmp_path):
    """Offsets that point beyond the file must not be followed."""
    file = write(tmp_path / "t.arrow", {"image": [b"x" * 64] * 2}, rows=2)
    data = file.read_bytes()
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 64, 128))
    assert data.count(offsets) == 1
    file.write_bytes(data.replace(offsets, b"".join(number.to_bytes(4, "little") for number in (0, 64, 0x7FFFFFF0))))
    with pytest.raises(FormatError, match="cannot be read"):
        list(opened(file).items())


def test_listing_does_not_touch_images(tmp_path):
    file = write(tmp_path / "t.parquet", {"image": [bytes(1 << 20)] * 60, "name": map(str, range(60))}, rows=60)
    source = opened(file)
    usual = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(watched)
    try:
        assert sum(1 for _ in source.items()) == 60
    finally:
        pa.set_memory_pool(usual)
    assert 0 < watched.max_memory() < 4 << 20


def test_row_group_larger_than_memory_is_read_in_windows(tmp_path):
    """A table that was written in one piece: 300 MB in a single row group, read with far less."""
    writer = """
    import sys, pyarrow as pa, pyarrow.parquet as pq
    rows = 300
    images = pa.chunked_array([pa.array([bytes([n % 256]) * (1 << 20)]) for n in range(rows)])
    table = pa.table({"image": images, "name": pa.array(map(str, range(rows)))})
    pq.write_table(table, sys.argv[1] + "/t.parquet", row_group_size=rows, compression="none", use_dictionary=False)
    assert pq.ParquetFile(sys.argv[1] + "/t.parquet").num_row_groups == 1
    """
    reader = """
    import sys, resource
    from pathlib import Path
    from sightline.config import SourceConfig
    from sightline.detection.sources.factory import open_source
    from sightline.workspace import Workspace
    source, _ = open_source(sys.argv[1] + "/t.parquet", SourceConfig(), Workspace(Path("/none")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, item in enumerate(source.items()):
        assert source.read(item) == bytes([number % 256]) * (1 << 20)
    print(number + 1, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    for part in (writer, reader):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(part), tmp_path], capture_output=True, text=True, check=True
        )
    rows, grown_mb = map(int, done.stdout.split())
    assert rows == 300
    assert grown_mb < 220


def test_rows_in_order_are_decoded_once(tmp_path, monkeypatch):
    """Threads ask nearly in order: a group must not be begun anew for each."""
    file = write(tmp_path / "t.parquet", {"image": [bytes([n]) * 1000 for n in range(200)]}, rows=100)
    begun = []
    original = RowReader._cursor

    def counted(self, place, row):
        found = original(self, place, row)
        begun.append(found)
        return found

    monkeypatch.setattr(RowReader, "_cursor", counted)
    source = opened(file)
    items = list(source.items())
    for start in range(0, 200, 10):
        for item in reversed(items[start : start + 10]):
            source.read(item)
    assert len({id(cursor) for cursor in begun}) == 2


def test_many_rows_stream(tmp_path):
    names = [f"a-rather-long-name-of-an-image-{number:08}" for number in range(20_000)]
    file = write(tmp_path / "t.parquet", {"image": [b"x"] * 20_000, "name": names}, rows=1000)
    source = opened(file)
    next(source.items())
    tracemalloc.start()
    assert sum(1 for _ in source.items()) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
