"""The one place that names every annotation format."""

import posixpath
import re

from sightline.config import FormatName, IngestConfig
from sightline.data.disk import holds_something
from sightline.data.formats.coco import CocoReader, CocoWriter, find_coco_files
from sightline.data.formats.deeppcb import LISTS, DeepPcbReader
from sightline.data.formats.folder import ClassFolderReader
from sightline.data.formats.layout import walk_images
from sightline.data.formats.table import TableReader
from sightline.data.formats.table_rows import SUFFIXES, FileTable, QueryTable, Table, find_tables
from sightline.data.formats.voc import VocReader, VocWriter
from sightline.data.formats.writing import ExportDirectory, Writer
from sightline.data.formats.yolo import NAME_LISTS, YoloReader, YoloWriter, find_yaml
from sightline.data.location import BUCKET_SCHEMES, without_secrets
from sightline.data.record import Reader
from sightline.data.storage import File, Folder, ask_patiently, file_in_folder, open_existing
from sightline.errors import ConfigError, FormatError, NotFoundError

_LOOK_AT_FILES = 2000
_SQL_URL = re.compile(r"(?P<dialect>[a-z0-9]+)(\+[a-z0-9]+)?://")


def open_reader(source: str, config: IngestConfig) -> tuple[Reader, FormatName, str]:
    """Open a source of annotated images; returns the reader, its format, and why that format was taken."""
    if is_database(source):
        if not config.query:
            raise ConfigError("a database needs a query: --query 'select … from … order by …'")
        return _open_table(QueryTable(source, config.query), None, config), "table", "a database query"
    folder, file = ask_patiently(lambda: _open_place(source), what=f"opening {without_secrets(source)}")
    name, why = (config.format, "as asked") if config.format != "auto" else recognise(folder, file)
    if config.box_format and name != "table":
        raise ConfigError(f"--box-format is for tables; format {name!r} defines what its numbers are: leave it out")
    if config.images:
        _check_images(config.images)
    reader = _make_reader(name, folder, file, config)
    _check_classes(reader.classes)
    if isinstance(reader, TableReader) and reader.box_format:
        why = f"{why}; boxes as {reader.box_format}"
    return reader, name, why


def _check_images(location: str) -> None:
    """Raise at once for a folder of images that is missing or empty; of a bucket only objects may be open to us."""
    if not Folder.open(location).is_local:
        return
    images = ask_patiently(lambda: open_existing(location), what=f"opening {location}")
    if not holds_something(images.path):
        raise NotFoundError(f"the folder {location!r} of --images is empty: is it mounted?")


def make_writer(name: str, directory: ExportDirectory, classes: tuple[str, ...]) -> Writer:
    """The exporter of a format."""
    match name:
        case "voc":
            return VocWriter(directory, classes)
        case "coco":
            return CocoWriter(directory, classes)
        case "yolo":
            return YoloWriter(directory, classes)
        case _:
            raise ConfigError(f"format {name!r} cannot be written: take voc, coco or yolo")


def recognise(folder: Folder, file: str | None) -> tuple[FormatName, str]:
    """Tell the format by what lies in a folder, or by a file's name, and what gave it away."""
    if file:
        suffix = posixpath.splitext(file)[1].lower()
        by_suffix: dict[str, FormatName] = {".json": "coco", ".yaml": "yolo", ".yml": "yolo"}
        if suffix in SUFFIXES:
            return "table", f"a {suffix} file"
        if suffix in by_suffix:
            return by_suffix[suffix], f"a {suffix} file"
        raise FormatError(f"{file!r} is not a COCO .json, a YOLO .yaml or a table ({', '.join(SUFFIXES)})")
    names = {name for name, _ in folder.names()}
    if names & set(LISTS) and _has_deeppcb_list(folder):
        return "deeppcb", "lists of image and label pairs"
    if found := find_coco_files(folder):
        return "coco", ", ".join(found[:3])
    if yaml_file := find_yaml(folder):
        return "yolo", f"class names in {yaml_file}"
    return _recognise_by_files(folder, names)


def _recognise_by_files(folder: Folder, names: set[str]) -> tuple[FormatName, str]:
    folders = [name for name, is_folder in folder.names() if is_folder]
    inner = {name for place in ["", *folders] for name, _ in folder.names(place)}
    suffixes = {posixpath.splitext(name)[1].lower() for name in inner}
    for number, found in enumerate(folder.walk()):
        if isinstance(found, File):
            suffixes.add(posixpath.splitext(found.name)[1].lower())
        if ".xml" in suffixes or number > _LOOK_AT_FILES:
            break
    if ".xml" in suffixes:
        return "voc", "XML annotations"
    if names & set(NAME_LISTS) or "labels" in inner:
        return "yolo", "label files"
    if tables := find_tables(folder):
        return "table", ", ".join(tables[:3])
    first = next((found for found in walk_images(folder) if isinstance(found, File)), None)
    if first and "/" in first.name:
        if doubts := ClassFolderReader(folder).doubts():
            raise FormatError(
                f"no annotations found in {folder.location!r}: {doubts}; add annotations (VOC, COCO or YOLO), or pass "
                "--format folder if these folders are the classes of images to classify"
            )
        return "folder", "images in class folders"
    seen = ", ".join(sorted(names)[:6]) or "nothing"
    raise FormatError(
        f"no annotations recognised in {folder.location!r}, which holds {seen}: name the format with --format "
        "voc|coco|yolo|deeppcb|folder|table"
    )


def _make_reader(name: FormatName, folder: Folder, file: str | None, config: IngestConfig) -> Reader:
    classes, images = config.classes, config.images
    if images and name in ("deeppcb", "folder"):
        raise ConfigError(f"--images: format {name!r} has its images in the source; leave the option out")
    if file and name in ("voc", "deeppcb", "folder"):
        raise FormatError(f"format {name!r} reads a folder, not the file {file!r}: name the folder it lies in")
    match name:
        case "voc":
            return VocReader(folder, classes=classes, images=images, workers=config.workers)
        case "coco":
            return CocoReader(folder, [file] if file else find_coco_files(folder), classes=classes, images=images)
        case "yolo":
            return YoloReader(folder, file or find_yaml(folder), classes=classes, images=images)
        case "deeppcb":
            return DeepPcbReader(folder, classes=classes)
        case "folder":
            return ClassFolderReader(folder, classes=classes)
        case "table":
            files = [file] if file else find_tables(folder)
            if not files:
                raise FormatError(f"no table ({', '.join(SUFFIXES)}) in {folder.location!r}")
            return _open_table(FileTable(folder, files), folder, config)
        case _:
            raise ConfigError(f"format {name!r} is not known")


def _open_table(table: Table, folder: Folder | None, config: IngestConfig) -> Reader:
    images = Folder.open(config.images) if config.images else folder
    return TableReader(table, images, columns=config.columns, classes=config.classes, box_format=config.box_format)


def _open_place(source: str) -> tuple[Folder, str | None]:
    folder = Folder.open(source)
    if folder.is_folder():
        return folder, None
    parent, name = file_in_folder(source)
    if parent.is_file(name):
        base, question, query = source.partition("?")
        above, folder_name = file_in_folder(posixpath.dirname(base) + question + query)
        if folder_name == "annotations" and name.endswith(".json"):
            return above, f"{folder_name}/{name}"  # COCO keeps its images beside that folder.
        return parent, name
    open_existing(source)
    raise NotFoundError(f"{source!r} does not exist")


def is_database(source: str) -> bool:
    """Whether this is the URL of a database."""
    url = _SQL_URL.match(source)
    return url is not None and url["dialect"] not in (*BUCKET_SCHEMES, "file", "http", "https")


def _check_classes(classes: tuple[str, ...]) -> None:
    if len(set(classes)) != len(classes):
        twice = sorted({name for name in classes if classes.count(name) > 1})
        raise FormatError(f"class names must differ; twice there: {', '.join(map(repr, twice[:5]))}")


def _has_deeppcb_list(folder: Folder) -> bool:
    for name in LISTS:
        if folder.is_file(name):
            lines = folder.read_text(name).split("\n")
            first = next((line.split() for line in lines if line.strip()), [])
            return len(first) == 2 and first[1].endswith(".txt")
    return False
