"""YOLO: a text file of `class cx cy w h` lines for each image, class names in a YAML file or a list."""

import json
import math
import posixpath
import reprlib
from collections.abc import Iterator
from typing import Any

import yaml

from sightline.data.decode import SUFFIXES
from sightline.data.formats.layout import class_name, is_image, read_list, split_named, walk_images
from sightline.data.formats.writing import ExportDirectory
from sightline.data.formats.yolo_paths import image_stems, label_names, without_part
from sightline.data.reach import check_reach
from sightline.data.record import Entry, Loaded, RawBox, Reject, Task
from sightline.data.storage import File, Folder
from sightline.errors import ConfigError, FormatError, ImageError
from sightline.structures import Sample

NAME_LISTS = ("classes.txt", "obj.names", "labels.txt", "_darknet.labels")
IGNORE_FILE = "ignore.json"
"""YOLO lines cannot say that a box is to be ignored; Sightline's exporter notes it here: label file to line numbers."""

_NOT_SPLITS = ("path", "names", "nc", "download", "roboflow", "channels", "kpt_shape", "flip_idx")


class YoloReader:
    """Reads the splits that a YAML file names, or all images below the source."""

    task: Task = "detection"

    def __init__(
        self,
        source: Folder,
        yaml_file: str | None,
        *,
        classes: tuple[str, ...] | None = None,
        images: str | None = None,
    ) -> None:
        self._source = source
        self._images = Folder.open(images) if images else source
        self._yaml = read_yaml(source, yaml_file) if yaml_file else {}
        self._here = posixpath.dirname(yaml_file or "")
        self.classes = classes or self._find_classes()
        self._ignored = self._read_ignored()

    @property
    def folders(self) -> tuple[Folder, ...]:
        """Those of labels and images."""
        return (self._source, self._images)

    def entries(self) -> Iterator[Entry | Reject]:
        """Images of each split in turn; an image in a second split and a label file without an image are reported."""
        seen: set[str] = set()
        places = []
        for split, place in self._places():
            places.append(place)
            for entry in self._entries_in(place, split):
                if isinstance(entry, Entry) and entry.name in seen:
                    yield Reject(entry.name, "list", "listed twice", f"again in {split or place!r}", "skipped")
                    continue
                if isinstance(entry, Entry):
                    seen.add(entry.name)
                yield entry
        yield from self._labels_without_image(places, seen)

    def _labels_without_image(self, places: list[str], images: set[str]) -> Iterator[Reject]:
        """Label files that no image belongs to, in the folders of these places and of these images."""
        used = {name for image in images for name in self._label_names(image)}
        first_in_places = {name for place in places for name in self._label_names(posixpath.join(place, "_"))}
        checked = set(used)
        for folder in sorted({posixpath.dirname(name) for name in used | first_in_places}):
            if not (self._source.is_folder(folder) and self._source.has(folder)):
                continue
            for found in self._source.walk(folder):
                if isinstance(found, File) and found.name.endswith(".txt") and found.name not in checked:
                    checked.add(found.name)
                    yield from self._without_image(found.name)

    def _without_image(self, label_file: str) -> Iterator[Reject]:
        stems = image_stems(label_file)
        if any(self._images.is_file(stem + suffix) for stem in stems for suffix in SUFFIXES):
            return  # It has an image, which no split lists.
        lines = [line for line in read_list(self._source, label_file).split("\n") if line.strip()]
        if len(stems) > 1 or (lines and self._is_label(lines[0])):  # Other text files lie beside images, too.
            yield Reject(label_file, "list", "label file without an image", f"{len(lines)} lines")

    def _is_label(self, line: str) -> bool:
        try:
            self._parse_line(line, "", False)
        except ImageError:
            return False
        return True

    def load(self, entry: Entry) -> Loaded:
        """Read the image and the lines of its label file; without one it is an image without objects."""
        loaded = Loaded(self._images.read(entry.name), normalised=True)
        label_file = self._label_file(entry.name)
        if label_file is None:
            check_reach((self._source,), self._label_names(entry.name)[0])
            loaded.rejects.append(Reject(entry.name, "annotation", "no label file", "kept without boxes", "noted"))
            return loaded
        ignored = self._ignored.get(label_file, ())
        text = self._source.read_text(label_file)
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    loaded.boxes.append(self._parse_line(line, f"line {number}", number in ignored))
                except ImageError as error:
                    detail = f"{label_file} line {number}: {error.detail}"
                    loaded.rejects.append(Reject(entry.name, "annotation", error.reason, detail, "box rejected"))
        return loaded

    def _parse_line(self, line: str, where: str, ignore: bool) -> RawBox:
        if "kpt_shape" in self._yaml:
            line = " ".join(line.split()[:5])  # Keypoints follow the box.
        return parse_line(line, len(self.classes), where, ignore)

    def _find_classes(self) -> tuple[str, ...]:
        names = self._yaml.get("names")
        if isinstance(names, dict | list):
            return _class_names(names)
        for name in NAME_LISTS:
            if self._source.is_file(name):
                lines = self._source.read_text(name).rstrip().split("\n")
                return _class_names([line.strip() for line in lines])
        raise FormatError(f"no class names with {self._source.location!r}: add data.yaml or pass --classes a,b,c")

    def _read_ignored(self) -> dict[str, list[int]]:
        if not self._source.is_file(IGNORE_FILE):
            return {}
        try:
            found = json.loads(self._source.read(IGNORE_FILE))
            return {str(key): [int(line) for line in lines] for key, lines in found.items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
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
            yield from self._usual_places()

    def _usual_places(self) -> Iterator[tuple[str | None, str]]:
        """images/SPLIT, else SPLIT, else images, else everything."""
        folders = [name for name, is_folder in self._images.names() if is_folder]
        images = "images" if "images" in folders else ""
        inner = [name for name, is_folder in self._images.names(images) if is_folder and split_named(name)]
        if inner:
            yield from ((split_named(name), posixpath.join(images, name)) for name in inner)
        elif splits := [name for name in folders if split_named(name)]:
            yield from ((split_named(name), name) for name in splits)
        else:
            yield None, images

    def _resolve(self, place: str) -> str:
        """Where a place of the YAML file is: below its `path`, beside it, or beside it where Roboflow writes `../`."""
        path = self._yaml.get("path")
        bases = [self._here if not isinstance(path, str) else posixpath.join(self._here, path), self._here]
        paths = [posixpath.normpath(posixpath.join(base, self._inside(place))) for base in bases]
        if place.startswith("../"):
            paths.append(posixpath.normpath(posixpath.join(self._here, place[3:])))
        if self._images is not self._source:  # Its folders may be those that lie in `images` elsewhere.
            paths += [without_part(path, "images") for path in paths]
        found = next((path for path in paths if self._exists(path)), paths[-1])
        return "" if found == "." else found

    def _inside(self, name: str) -> str:
        """An absolute name as a relative one if it lies in the source."""
        for folder in (self._images, self._source):
            name = name.removeprefix(folder.path + "/") if folder.is_local else name
        return name

    def _exists(self, path: str) -> bool:
        inside = path != ".." and not path.startswith(("/", "../"))
        return inside and (self._images.is_folder(path) or self._images.is_file(path) or self._source.is_file(path))

    def _entries_in(self, place: str, split: str | None) -> Iterator[Entry | Reject]:
        is_list = bool(place) and self._source.is_file(place)
        if place:
            try:
                (self._source if is_list else self._images).safe_path(place)
            except ImageError as error:
                yield Reject(place, error.stage, error.reason, error.detail)
                return
        if is_list:
            yield from self._listed(place, split)
        elif self._images.is_folder(place):
            for found in walk_images(self._images, place):
                yield found if isinstance(found, Reject) else Entry(found.name, found.size, split)
        else:
            yield Reject(place, "list", "folder or list not found", f"of split {split}", "skipped")

    def _listed(self, list_file: str, split: str | None) -> Iterator[Entry | Reject]:
        for number, line in enumerate(read_list(self._source, list_file).split("\n"), 1):
            name = line.strip("\r")
            if not name.strip():
                continue
            path = self._listed_path(name, posixpath.dirname(list_file))
            where = f"{list_file} line {number}"
            if not is_image(path):
                yield Reject(path, "list", "listed file is no image", where, "skipped")
                continue
            try:
                self._images.safe_path(path)
                yield Entry(path, self._images.size(path) or 0, split)
            except ImageError as error:
                yield Reject(path, error.stage, error.reason, f"{where}: {error.detail}")

    def _listed_path(self, name: str, here: str) -> str:
        """A listed name is relative to its list, else to the source, as darknet writes it."""
        name = self._inside(name)
        if name.startswith("/") or "\0" in name:
            return name
        path, plain = posixpath.normpath(posixpath.join(here, name)), posixpath.normpath(name)
        return plain if not self._exists(path) and self._exists(plain) else path

    def _label_file(self, image: str) -> str | None:
        return next((path for path in self._label_names(image) if self._source.is_file(path)), None)

    def _label_names(self, image: str) -> list[str]:
        return label_names(image, apart=self._images is not self._source)


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
        if not all(map(math.isfinite, numbers)):
            xs = ys = [math.nan]
        return RawBox(min(xs), min(ys), max(xs), max(ys), int(kind), ignore, where)
    raise ImageError("label line does not parse", f"{len(numbers)} numbers after the class, not 4: {line!r}"[:150])


def read_yaml(source: Folder, file: str) -> dict[Any, Any]:
    """Read a dataset's YAML file."""
    data = source.read(file)
    try:
        found = yaml.safe_load(data)
    except Exception as error:  # PyYAML raises whatever its constructors do: KeyError, IndexError, RecursionError, …
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(f"{file!r} in {source.location!r} is not valid YAML: {reason}") from None
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


def _class_names(names: dict[Any, Any] | list[Any]) -> tuple[str, ...]:
    """Names in the order of their numbers, which must run from 0 without gaps."""
    if isinstance(names, list):
        names = dict(enumerate(names))
    try:
        numbers = {int(key): class_name(value) for key, value in names.items()}
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"class names must be numbered from 0, not {reprlib.repr(list(names))}") from None
    if sorted(numbers) != list(range(len(names))):
        raise FormatError(f"class numbers must run from 0 to {len(names) - 1} without gaps: {sorted(numbers)[:10]}")
    found = tuple(name for number in range(len(numbers)) if (name := numbers[number]) is not None)
    if len(found) != len(numbers):
        empty = next(number for number, name in numbers.items() if name is None)
        raise FormatError(f"class {empty} has no name but a {type(names[empty]).__name__}: write its name there")
    return found


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
        for split in set(self._splits) & set(_NOT_SPLITS):
            raise ConfigError(f"split {split!r} has a name that means something else in data.yaml: export as coco")
        description = {"path": ".", **self._splits, "names": dict(enumerate(self._classes))}
        self._directory.write("data.yaml", yaml.safe_dump(description, sort_keys=False, allow_unicode=True).encode())
        if self._ignored:
            self._directory.write(IGNORE_FILE, json.dumps(self._ignored, indent=1).encode())
