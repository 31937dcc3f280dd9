"""Other people's weights made into a bundle: tensors only, all of them in their place, nothing in the file is run.

Or a YOLO in ONNX, which is data too: a graph of operators that an engine knows.
"""

from pathlib import Path

from sightline.data.formats.yolo import read_yaml
from sightline.data.storage import Folder
from sightline.errors import ConfigError, FormatError, NotFoundError
from sightline.models.bundle import CARD, Bundle, describe, save_bundle
from sightline.models.factory import YOLO_ONNX, make_model
from sightline.models.weights import load_weights
from sightline.models.yolo_checkpoint import family_in, is_yolo_checkpoint, read_yolo_checkpoint
from sightline.models.yolo_metadata import numbered_names
from sightline.registering.yolo_import import make_yolo
from sightline.report.card import model_card
from sightline.training.pictures import save_with_card


def convert_file(
    file: Path,
    to: Path,
    *,
    model: str | None = None,
    classes: tuple[str, ...] | None = None,
    size: int | None = None,
    licence: str | None = None,
) -> Bundle:
    """Write a bundle of a file: an ONNX file by its suffix, else weights; see `sightline.import_model`."""
    if file.suffix.lower() == ".onnx":
        if model not in (None, YOLO_ONNX):
            raise ConfigError(f"model is {model!r}, and an ONNX file brings its own network: leave --model out")
        return convert_onnx(file, to, classes=classes, size=size, licence=licence)
    if is_yolo_checkpoint(file):
        said = read_yolo_checkpoint(file)
        model, classes = model or family_in(file, said), classes or said.classes or None
        size = size or said.size
    if model is None or classes is None:
        missing = "--model" if model is None else "--classes"
        raise ConfigError(f"{str(file)!r} holds weights alone: say with {missing} what they are of")
    if licence is not None:
        raise ConfigError(f"licence is {licence[:80]!r}, and that of model {model!r} is known: leave --licence out")
    return convert_weights(file, to, model=model, classes=classes, size=size)


def convert_onnx(
    file: Path,
    to: Path,
    *,
    classes: tuple[str, ...] | None = None,
    size: int | None = None,
    licence: str | None = None,
) -> Bundle:
    """Write a bundle of a YOLO in ONNX.

    Args:
        classes: Names in the order of its outputs; None takes those that the file brings.
        licence: What its owner says of it; None takes what the file says, else "unknown".

    Raises:
        FormatError: It is no such file, refers to other files, or needs operators that are not ONNX's own.
    """
    made, said = make_yolo(file, classes=classes, size=size)
    given = " ".join((licence or "").split()) or said.licence or "unknown"
    info = describe(made, name=YOLO_ONNX, classes=said.classes, licence=given)
    return save_bundle(to, made.content, info, {CARD: model_card(info).encode()})


def convert_weights(file: Path, to: Path, *, model: str, classes: tuple[str, ...], size: int | None = None) -> Bundle:
    """Write a bundle of the weights in a file.

    Args:
        file: A state_dict that torch wrote, or .safetensors.
        model: The architecture, by its name in the factory.
        classes: Names in the order of the model's outputs, without the background.

    Raises:
        DamagedError: The file holds more than tensors.
        ConfigError: The weights are not those of a whole model of this kind with so many classes.
    """
    made = make_model(model, num_classes=len(classes), size=size)
    taken = load_weights(made, file)
    if taken.fresh:
        raise ConfigError(
            f"{str(file)!r} is not a whole {model} of {len(classes)} classes: it gives nothing for "
            f"{', '.join(taken.fresh[:3])}, so the model would guess. Give as many --classes as it was trained for "
            "(without the background), or train from it with --weights"
        )
    info = describe(made, name=model, classes=classes)
    return save_with_card(to, made, info)


def parse_classes(text: str) -> tuple[str, ...]:
    """Class names given as `a,b,c`, as a file with one on each line, or as a YAML file with `names`."""
    file = Path(text).expanduser()
    if file.suffix.lower() in (".yaml", ".yml") and file.is_file():
        return _classes_of_yaml(file)
    if "," not in text and file.is_file():
        names = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    elif ("/" in text or file.suffix.lower() in (".yaml", ".yml", ".txt")) and "," not in text:
        raise NotFoundError(f"the file of classes {text!r} is not there")
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(names):
        raise ConfigError(f"classes {text[:80]!r} are not usable: give names as a,b,c, or a file with one on each line")
    return tuple(names)


def _classes_of_yaml(file: Path) -> tuple[str, ...]:
    names = read_yaml(Folder.open(file.resolve().parent), file.name).get("names")
    if not isinstance(names, dict | list):
        raise FormatError(f"{str(file)!r} has no `names`: write them as a list, or numbered from 0")
    return numbered_names(names)
