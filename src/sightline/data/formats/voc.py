"""Pascal VOC: one XML file an image, beside it or in a folder of its own, with optional ImageSets lists."""

import posixpath
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any
from xml.etree.ElementTree import Element, ParseError, SubElement, indent, tostring

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

from sightline.data.formats.layout import is_image, read_list, reject_skipped, split_named, split_of_path, stem
from sightline.data.formats.writing import ExportDirectory
from sightline.data.parallel import run_in_order
from sightline.data.reach import load_patiently
from sightline.data.record import Entry, Loaded, RawBox, Reject, Task
from sightline.data.storage import File, Folder
from sightline.errors import ConfigError, FormatError, ImageError
from sightline.structures import Sample

IMAGE_FOLDERS = ("JPEGImages", "images", "Images", "imgs", "img")
_LIST_FOLDERS = ("ImageSets/Main", "ImageSets", "imagesets")
_CLASS_LIST = re.compile(r".*_(train|val|test|trainval)")
_FLAG = re.compile(r"\s+-?[01]$")
_SCAN_CHUNK = 2000


class VocReader:
    """Reads every XML file below the source.

    Args:
        workers: Processes that look for the names of classes, where none are given; 0 means one for each core.
    """

    task: Task = "detection"

    def __init__(
        self,
        source: Folder,
        *,
        classes: tuple[str, ...] | None = None,
        images: str | None = None,
        workers: int = 0,
    ) -> None:
        self._source = source
        self._images = Folder.open(images) if images else None
        self.classes = classes or self._find_classes(workers)

    @property
    def folders(self) -> tuple[Folder, ...]:
        """Those of annotations and images."""
        return (self._source, self._images or self._source)

    def entries(self) -> Iterator[Entry | Reject]:
        """One entry for each XML file; images without one are reported as skipped."""
        listed = self._read_lists()
        image_names = _ImageNames(self._images or self._source)
        yield from image_names.rejects
        seen: set[str] = set()
        for xml in self._xml_names():
            split = split_of_path(xml)
            if listed and split is None:
                split = listed.get(stem(xml))
                if split is None:
                    yield Reject(xml, "list", "not in any ImageSets list", action="skipped")
                    continue
            image = self._image_of(xml, image_names)
            if image in seen:
                yield Reject(xml, "list", "image has two annotations", f"{image!r} is taken", "skipped")
                continue
            if image:
                seen.add(image)
            size = image_names.sizes.get(image or "", 0)
            yield Entry(image or xml, size, split, payload=(xml, image))
        for image in image_names.sizes:
            if image not in seen:
                yield Reject(image, "list", "image without annotation", action="skipped")

    def load(self, entry: Entry) -> Loaded:
        """Parse the XML and read the image."""
        xml, image = entry.payload
        root = parse_xml(self._source.read(xml))
        declared_name = (root.findtext("filename") or "").strip()
        folder = self._images or self._source
        if declared_name:
            folder.safe_path(declared_name)  # An annotation that points outside is not trusted for anything else.
        if image is None:
            raise ImageError("image not found", f"{xml!r} names {declared_name!r}", stage="read")
        boxes, rejects = _boxes(entry.name, root, {name: i for i, name in enumerate(self.classes)})
        if declared_name and stem(declared_name) != stem(image):
            detail = f"{xml!r} names {declared_name!r}, the image of its own name is taken"
            rejects.append(Reject(entry.name, "annotation", "declared file name is wrong", detail, "noted"))
        return Loaded(folder.read(image), boxes, declared_size=_declared_size(root), rejects=rejects)

    def _image_of(self, xml: str, image_names: "_ImageNames") -> str | None:
        """The image of the XML file's name, else of the name in it; which also decides between a.jpg and a.png."""
        found = image_names.beside(xml, stem(xml))
        if len(found) == 1:
            return found[0]
        declared = self._declared_name(xml)
        found = found or image_names.beside(xml, stem(declared))
        exact = [image for image in found if posixpath.basename(image) == posixpath.basename(declared)]
        return next(iter(exact + found), None)

    def _declared_name(self, xml: str) -> str:
        try:
            return (_load_xml(self._source, xml).findtext("filename") or "").strip()
        except ImageError:
            return ""  # It is met again, and reported, when it is loaded.

    def _xml_names(self) -> Iterator[str]:
        for found in self._source.walk():
            if isinstance(found, File) and found.name.lower().endswith(".xml"):
                yield found.name

    def _find_classes(self, workers: int) -> tuple[str, ...]:
        """All class names, sorted, so that their order depends on nothing but the names."""
        names = self._xml_names()
        chunks = iter(lambda: list(islice(names, _SCAN_CHUNK)), [])
        found: set[str] = set()
        found.update(*run_in_order(scan_classes, ((self._source, chunk) for chunk in chunks), workers=workers))
        if not found:
            raise FormatError(f"no annotated object in the XML files of {self._source.location!r}")
        return tuple(sorted(found))

    def _read_lists(self) -> dict[str, str]:
        """Stem to split from the lists in ImageSets, not those of single classes; trainval comes last and is train."""
        lists = [
            f"{folder}/{name}"
            for folder in _LIST_FOLDERS
            for name, is_folder in self._source.names(folder)
            if not is_folder and name.endswith(".txt") and not _CLASS_LIST.fullmatch(stem(name))
        ]
        exact: dict[str, str] = {}
        loose: dict[str, str] = {}
        for path in sorted(lists, key=lambda path: stem(path) == "trainval"):
            split = "train" if stem(path) == "trainval" else split_named(stem(path)) or stem(path)
            for line in filter(str.strip, read_list(self._source, path).split("\n")):
                name = line.strip("\r")
                exact.setdefault(name, split)
                short = _FLAG.sub("", name).strip()
                loose.setdefault(stem(short) if is_image(short) else short, split)
        return loose | exact


class _ImageNames:
    """The images of a source, found by the name of their XML file."""

    def __init__(self, folder: Folder) -> None:
        self.sizes: dict[str, int] = {}
        self.rejects: list[Reject] = []
        self._by_place: dict[tuple[str, str], list[str]] = {}
        for found in folder.walk():
            if not isinstance(found, File):
                self.rejects.append(reject_skipped(found))
            elif is_image(found.name):
                self.sizes[found.name] = found.size
                self._by_place.setdefault((posixpath.dirname(found.name), stem(found.name)), []).append(found.name)

    def beside(self, xml: str, name: str) -> list[str]:
        """The images of that stem in the XML file's folder, or in a folder of images next to it or above it."""
        folder = posixpath.dirname(xml)
        parent, inner = posixpath.split(folder)
        places = [folder, *(posixpath.join(parent, images) for images in IMAGE_FOLDERS)]
        places += [posixpath.join(posixpath.dirname(parent), images, inner) for images in IMAGE_FOLDERS]
        places += [posixpath.join(folder, images) for images in IMAGE_FOLDERS]
        places += [inner, ""]
        return next((found for place in places if (found := self._by_place.get((place, name)))), [])


def scan_classes(source: Folder, names: list[str]) -> set[str]:
    """Class names in some XML files; files that do not parse are met again, and reported, when they are loaded."""
    found = set()
    for name in names:
        try:
            root = _load_xml(source, name)
        except ImageError:
            continue
        found |= {label for item in root.findall("object") if (label := (item.findtext("name") or "").strip())}
    return found


def _load_xml(source: Folder, name: str) -> Element:
    return load_patiently(lambda: parse_xml(source.read(name)), (source,), name)


def parse_xml(text: bytes) -> Element:
    """Parse, refusing entities and anything external."""
    try:
        return defusedxml.ElementTree.fromstring(text, forbid_dtd=True)
    except DefusedXmlException as error:
        raise ImageError("forbidden XML", f"{type(error).__name__}: {error}"[:200], stage="annotation") from None
    except (ParseError, ValueError, LookupError) as error:
        raise ImageError("XML does not parse", str(error)[:200], stage="annotation") from None


def _boxes(name: str, root: Element, labels: dict[str, int]) -> tuple[list[RawBox], list[Reject]]:
    boxes, rejects = [], []
    for number, item in enumerate(root.findall("object"), 1):
        where = f"object {number}"
        label_name = (item.findtext("name") or "").strip()
        label = labels.get(label_name)
        numbers = _numbers(item)
        if label is None:
            rejects.append(
                Reject(name, "annotation", "unknown class", f"{where}: {label_name!r}"[:200], "box rejected")
            )
        elif numbers is None:
            rejects.append(Reject(name, "annotation", "object without a box", where, "box rejected"))
        else:
            ignore = (item.findtext("difficult") or "0").strip() not in ("0", "", "false", "False")
            boxes.append(RawBox(*numbers, label, ignore, where))
    return boxes, rejects


def _numbers(item: Element) -> tuple[float, float, float, float] | None:
    box = item.find("bndbox")
    if box is None:
        return None
    try:
        x0, y0, x1, y1 = (float(box.findtext(key) or "") for key in ("xmin", "ymin", "xmax", "ymax"))
    except ValueError:
        return None
    return x0, y0, x1, y1


def _declared_size(root: Element) -> tuple[int, int] | None:
    try:
        width, height = int(root.findtext("size/width") or 0), int(root.findtext("size/height") or 0)
    except ValueError:
        return None
    return (width, height) if width > 0 and height > 0 else None


class VocWriter:
    """Writes JPEGImages, Annotations and ImageSets/Main."""

    def __init__(self, directory: ExportDirectory, classes: tuple[str, ...]) -> None:
        for name in classes:
            _refuse_unwritable(name)
        self._directory, self._classes = directory, classes
        self._lists: dict[str, list[str]] = {}

    def add(self, sample: Sample) -> None:
        """Write one image and its XML file."""
        name = self._directory.unique_name(sample)
        self._directory.write(f"JPEGImages/{name}", sample.image)
        self._directory.write(f"Annotations/{stem(name)}.xml", self._xml(sample, name))
        self._lists.setdefault(sample.split, []).append(stem(name))

    def close(self) -> None:
        """Write the lists of the splits."""
        for split, names in self._lists.items():
            self._directory.write(f"ImageSets/Main/{split}.txt", "".join(f"{name}\n" for name in names).encode())

    def _xml(self, sample: Sample, name: str) -> bytes:
        root = Element("annotation")
        _texts(root, folder="JPEGImages", filename=name)
        _texts(SubElement(root, "size"), width=sample.width, height=sample.height, depth=3)
        columns = sample.annotation
        for box, label, ignore in zip(columns.boxes.tolist(), columns.labels, columns.ignore, strict=True):
            item = SubElement(root, "object")
            _texts(item, name=self._classes[label], difficult=int(ignore))
            corners = dict(zip(("xmin", "ymin", "xmax", "ymax"), (f"{value:.9g}" for value in box), strict=True))
            _texts(SubElement(item, "bndbox"), **corners)
        indent(root)
        return bytes(tostring(root, "utf-8"))


def _refuse_unwritable(class_name: str) -> None:
    """XML has no way to write some control characters, and blanks around a name do not count."""
    item = Element("object")
    _texts(item, name=class_name)
    try:
        read = (parse_xml(tostring(item, "utf-8")).findtext("name") or "").strip()
    except ImageError:
        read = ""
    if read != class_name:
        raise ConfigError(f"class name {class_name!r} cannot be written as VOC XML: export as coco or yolo")


def _texts(parent: Element, **values: Any) -> None:
    for key, value in values.items():
        SubElement(parent, key).text = str(value)
