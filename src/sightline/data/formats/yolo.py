"""YOLO: a text file of `class cx cy w h` lines for each image, class names in a YAML file or a list."""

import json
import posixpath
from collections.abc import Iterator
from typing import Any

import yaml

from sightline.data.formats.layout import is_image, split_named, walk_images
from sightline.data.formats.writing import ExportDirectory
from sightline.data.record import Entry, Loaded, RawBox, Reject, Task
from sightline.data.storage import Folder
from sightline.errors import FormatError, ImageError
from sightline.structures import Sample

NAME_LISTS = ("classes.txt", "obj.names", "labels.txt", "_darknet.labels")
IGNORE_FILE = "ignore.json"
"""YOLO lines cannot say that a box is to be ignored; Sightline's exporter notes it here: label file to line numbers."""

_NOT_SPLITS = ("path", "names", "nc", "download", "roboflow", "channels", "kpt_shape", "flip_idx")


class YoloReader:
    """Reads the splits that a YAML file names, or all images below the source."""

    task: Task = "detection"

    def __init__(self, source: Folder, yaml_file: str | None, *, classes: tuple[str, ...] | None = None) -> None:
        self._source = source
        self._yaml = read_yaml(source, yaml_file) if yaml_file else {}
        self._base = posixpath.join(posixpath.dirname(yaml_file or ""), str(self._yaml.get("path") or "."))
        self.classes = classes or self._find_classes()
        self._ignored = self._read_ignored()

    def entries(self) -> Iterator[Entry | Reject]:
        """Images of each split in turn; an image that a second split names is reported."""
        seen: set[str] = set()
        for split, place in self._places():
            for entry in self._entries_in(place, split):
                if isinstance(entry, Entry) and entry.name in seen:
                    yield Reject(entry.name, "list", "listed twice", f"again in {split or place!r}", "skipped")
                    continue
                if isinstance(entry, Entry):
                    seen.add(entry.name)
                yield entry

    def load(self, entry: Entry) -> Loaded:
        """Read the image and the lines of its label file; without one it is an image without objects."""
        loaded = Loaded(self._source.read(entry.name), normalised=True)
        label_file = self._label_file(entry.name)
        if label_file is None:
            loaded.rejects.append(Reject(entry.name, "annotation", "no label file", "kept without boxes", "noted"))
            return loaded
        ignored = self._ignored.get(label_file, ())
        text = self._source.read(label_file).decode("utf-8", "replace").lstrip("\ufeff")
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    loaded.boxes.append(parse_line(line, len(self.classes), f"line {number}", number in ignored))
                except ImageError as error:
                    detail = f"{label_file} line {number}: {error.detail}"
                    loaded.rejects.append(Reject(entry.name, "annotation", error.reason, detail, "box rejected"))
        return loaded

    def _find_classes(self) -> tuple[str, ...]:
        names = self._yaml.get("names")
        if isinstance(names, dict):
            return _names_by_number(names)
        if isinstance(names, list):
            return tuple(map(str, names))
        for name in NAME_LISTS:
            if self._source.is_file(name):
                text = self._source.read(name).decode("utf-8", "replace")
                return tuple(line.strip() for line in text.splitlines() if line.strip())
        raise FormatError(f"no class names with {self._source.location!r}: add data.yaml or pass --classes a,b,c")

    def _read_ignored(self) -> dict[str, list[int]]:
        if not self._source.is_file(IGNORE_FILE):
            return {}
        try:
            found = json.loads(self._source.read(IGNORE_FILE))
            return {str(key): [int(line) for line in lines] for key, lines in found.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{IGNORE_FILE} is not a map of label files to line numbers: {error}") from None

    def _places(self) -> Iterator[tuple[str | None, str]]:
        """(split, folder or list) pairs, paths relative to the source."""
        named = False
        for key, value in self._yaml.items():
            split = None if key in _NOT_SPLITS else split_named(str(key)) or str(key)
            for place in value if isinstance(value, list) else [value]:
                if split and isinstance(place, str) and (split_named(str(key)) or self._exists(self._resolve(place))):
                    named = True
                    yield split, self._resolve(place)
        if not named:
            folders = [name for name, is_folder in self._source.names() if is_folder]
            splits = [name for name in folders if split_named(name)]
            images = "images" if "images" in folders else ""
            inner = [name for name, is_folder in self._source.names(images) if is_folder and split_named(name)]
            if images and inner:
                yield from ((split_named(name), f"{images}/{name}") for name in inner)
            elif splits:
                yield from ((split_named(name), name) for name in splits)
            else:
                yield None, images

    def _resolve(self, place: str) -> str:
        path = posixpath.normpath(posixpath.join(self._base, place))
        if path.startswith("../") and not self._exists(path):
            path = path.lstrip("./")  # Roboflow writes ../train/images for a folder beside the YAML file.
        return "" if path == "." else path

    def _exists(self, path: str) -> bool:
        return not path.startswith(("/", "..")) and (self._source.is_folder(path) or self._source.is_file(path))

    def _entries_in(self, place: str, split: str | None) -> Iterator[Entry | Reject]:
        if place:
            try:
                self._source.safe_path(place)
            except ImageError as error:
                yield Reject(place, error.stage, error.reason, error.detail)
                return
        if place and self._source.is_file(place):
            yield from self._listed(place, split)
        elif self._source.is_folder(place):
            for found in walk_images(self._source, place):
                yield found if isinstance(found, Reject) else Entry(found.name, found.size, split)
        else:
            yield Reject(place, "list", "folder or list not found", f"of split {split}", "skipped")

    def _listed(self, list_file: str, split: str | None) -> Iterator[Entry | Reject]:
        here = posixpath.dirname(list_file)
        for number, line in enumerate(self._source.read(list_file).decode("utf-8", "surrogateescape").split("\n"), 1):
            name = line.strip("\r")
            if not name.strip():
                continue
            inside = name.removeprefix(self._source.path + "/") if self._source.is_local else name
            path = posixpath.normpath(posixpath.join(here, inside)) if not inside.startswith("/") else inside
            if not is_image(path):
                yield Reject(path, "list", "listed file is no image", f"{list_file} line {number}", "skipped")
                continue
            try:
                size = self._source.filesystem.get_file_info(self._source.safe_path(path)).size
                yield Entry(path, int(size or 0), split)
            except ImageError as error:
                yield Reject(path, error.stage, error.reason, f"{list_file} line {number}: {error.detail}")

    def _label_file(self, image: str) -> str | None:
        """`images` in the path becomes `labels`; else beside the image."""
        base = posixpath.splitext(image)[0] + ".txt"
        parts = base.split("/")
        places = [base]
        for index in range(len(parts) - 2, -1, -1):
            if parts[index] == "images":
                places.insert(0, "/".join([*parts[:index], "labels", *parts[index + 1 :]]))
                break
        return next((path for path in places if self._source.is_file(path)), None)


def parse_line(line: str, num_classes: int, where: str, ignore: bool = False) -> RawBox:
    """Read one label line: a box, or a polygon, of which the box around it is taken."""
    try:
        kind, *numbers = (float(word) for word in line.split())
    except ValueError:
        raise ImageError("label line does not parse", repr(line)[:100]) from None
    if kind not in range(num_classes):
        raise ImageError("unknown class", f"class {kind:g} is not 0 to {num_classes - 1}")
    if len(numbers) == 4:
        x, y, w, h = numbers
        return RawBox(x - w / 2, y - h / 2, x + w / 2, y + h / 2, int(kind), ignore, where)
    if len(numbers) >= 6 and len(numbers) % 2 == 0:
        xs, ys = numbers[0::2], numbers[1::2]
        return RawBox(min(xs), min(ys), max(xs), max(ys), int(kind), ignore, where)
    raise ImageError("label line does not parse", f"{len(numbers)} numbers after the class, not 4: {line!r}"[:150])


def read_yaml(source: Folder, file: str) -> dict[Any, Any]:
    """Read a dataset's YAML file."""
    try:
        found = yaml.safe_load(source.read(file))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(f"{file!r} in {source.location!r} is not valid YAML: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{file!r} in {source.location!r} does not describe a YOLO dataset (no names)")
    return found


def find_yaml(source: Folder) -> str | None:
    """The YAML file of a YOLO dataset: one at the top that has class names."""
    for name, is_folder in source.names():
        if not is_folder and name.lower().endswith((".yaml", ".yml")):
            try:
                if "names" in read_yaml(source, name):
                    return name
            except (FormatError, ImageError):
                continue
    return None


def _names_by_number(names: dict[Any, Any]) -> tuple[str, ...]:
    try:
        numbers = {int(key): str(value) for key, value in names.items()}
    except (TypeError, ValueError):
        raise FormatError(f"class names must be numbered from 0, not {sorted(map(str, names))[:5]}") from None
    if sorted(numbers) != list(range(len(numbers))):
        raise FormatError(f"class numbers must run from 0 to {len(numbers) - 1} without gaps: {sorted(numbers)[:10]}")
    return tuple(numbers[index] for index in range(len(numbers)))


class YoloWriter:
    """Writes images/SPLIT, labels/SPLIT, data.yaml and, where boxes are to be ignored, ignore.json."""

    def __init__(self, directory: ExportDirectory, classes: tuple[str, ...]) -> None:
        self._directory, self._classes = directory, classes
        self._splits: dict[str, str] = {}
        self._ignored: dict[str, list[int]] = {}

    def add(self, sample: Sample) -> None:
        """Write one image and its label file."""
        name = self._directory.unique_name(sample)
        label_file = f"labels/{sample.split}/{posixpath.splitext(name)[0]}.txt"
        columns = sample.annotation
        lines = [
            f"{label} {(x0 + x1) / 2 / sample.width:.9g} {(y0 + y1) / 2 / sample.height:.9g} "
            f"{(x1 - x0) / sample.width:.9g} {(y1 - y0) / sample.height:.9g}\n"
            for (x0, y0, x1, y1), label in zip(columns.boxes.tolist(), columns.labels.tolist(), strict=True)
        ]
        self._directory.write(f"images/{sample.split}/{name}", sample.image)
        self._directory.write(label_file, "".join(lines).encode())
        self._splits[sample.split] = f"images/{sample.split}"
        if columns.ignore.any():
            self._ignored[label_file] = [number for number, ignore in enumerate(columns.ignore.tolist(), 1) if ignore]

    def close(self) -> None:
        """Write data.yaml with splits and class names."""
        description = {"path": ".", **self._splits, "names": dict(enumerate(self._classes))}
        self._directory.write("data.yaml", yaml.safe_dump(description, sort_keys=False, allow_unicode=True).encode())
        if self._ignored:
            self._directory.write(IGNORE_FILE, json.dumps(self._ignored, indent=1).encode())
