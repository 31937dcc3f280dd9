"""Other people's weights made into a bundle: tensors only, all of them in their place, nothing in the file is run."""

from pathlib import Path

from sightline.errors import ConfigError, NotFoundError
from sightline.models.bundle import Bundle, describe
from sightline.models.factory import make_model
from sightline.models.weights import load_weights
from sightline.training.pictures import save_with_card


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
    """Class names given as `a,b,c`, or as a file with one on each line."""
    file = Path(text).expanduser()
    if "," not in text and file.is_file():
        names = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    elif "/" in text and "," not in text:
        raise NotFoundError(f"the file of classes {text!r} is not there")
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(names):
        raise ConfigError(f"classes {text[:80]!r} are not usable: give names as a,b,c, or a file with one on each line")
    return tuple(names)
