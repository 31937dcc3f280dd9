"""Files that Ultralytics has saved (.pt): whole pickled objects, of which only tensors, names and numbers are taken.

torch's own reader without code (`weights_only`) opens them. It knows no class of the package's; those that such a file
names are given to it as an empty shell that keeps what the object held and does nothing. Any other name in the file, a
function above all, is refused with that name, and nothing in the file is run.
"""

import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import ConfigError, DamagedError, FormatError
from sightline.models.yolo_metadata import NAMES, longest_side, numbered_names

if TYPE_CHECKING:
    from torch import Tensor

_SHELLS = re.compile(r"(ultralytics|torch\.nn\.modules)\.[a-zA-Z0-9_.]+")
_STRIDE = 32
_HELD_AS_EMA, _HELD_AS_MODEL = "ema", "model"


class _Shell:
    """Stands for an object of a class that is not loaded: what it held is in its `__dict__`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


@dataclass(frozen=True)
class YoloCheckpoint:
    """What a file of Ultralytics holds.

    Attributes:
        weights: In single precision, by the package's own names.
        classes: Their names in order; empty if it does not say.
        model: The architecture, one of ours; None if it does not say.
        size: Side of the square of its training images; None if it does not say.
    """

    weights: "dict[str, Tensor]"
    classes: tuple[str, ...]
    model: str | None
    size: int | None


def is_yolo_checkpoint(file: Path) -> bool:
    """Whether a file names classes of Ultralytics; nothing in it is run."""
    return any(name.startswith("ultralytics.") for name in _named_in(file))


def read_yolo_checkpoint(file: Path) -> YoloCheckpoint:
    """Read a file of Ultralytics.

    Raises:
        DamagedError: It names something that such a file does not need, or is not whole.
        FormatError: It holds another kind of model.
    """
    import torch

    shown, named = repr(str(file)), _named_in(file)
    strange = sorted(name for name in named if not _SHELLS.fullmatch(name))
    if strange:
        raise DamagedError(
            f"weights {shown} ask for {', '.join(strange[:5])}, which no file of weights needs: refused, nothing in it "
            "was run"
        )
    try:
        with torch.serialization.safe_globals([(_Shell, name) for name in sorted(named)]):
            found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, AttributeError, TypeError) as error:
        raise DamagedError(
            f"weights {shown} cannot be read, nothing in it was run: {' '.join(str(error).split())[:160]}"
        ) from None
    held = found if isinstance(found, dict) else {}
    model = held.get(_HELD_AS_EMA) or held.get(_HELD_AS_MODEL)
    if not isinstance(model, _Shell):
        raise FormatError(f"weights {shown} name classes of Ultralytics and hold no model of it")
    weights = dict(_tensors(model, "", depth=0, seen=set()))
    said = vars(model)
    if not weights or any(".cv4." in name for name in weights):
        raise FormatError(f"weights {shown} are no detector: only those of the task detect can be used")
    trained = held.get("train_args")
    settings = trained if isinstance(trained, dict) else {}
    return YoloCheckpoint(weights, _classes(said), _architecture(said, settings), _size(settings))


def family_in(file: Path, checkpoint: YoloCheckpoint) -> str:
    """The architecture of a file, or an error that says how to give it."""
    if checkpoint.model is None:
        raise ConfigError(f"{str(file)!r} does not say which YOLO it is: give --model, one of {', '.join(NAMES)}")
    return checkpoint.model


def _named_in(file: Path) -> set[str]:
    """Names of all that a file would import, but for tensors and plain values."""
    import torch

    try:
        return set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, IndexError, KeyError):
        return set()  # Not written by torch; whoever reads it says so.


def _tensors(shell: Any, prefix: str, *, depth: int, seen: set[int]) -> "list[tuple[str, Tensor]]":
    """Parameters and buffers of a module and of what is in it, by the names that `state_dict` gives them.

    A module that is reachable by several paths is visited once: a few nested references to the same object would
    otherwise take exponential time.

    Args:
        seen: Ids of the modules visited so far; the caller keeps the modules alive.
    """
    from torch import Tensor

    if depth > 20:
        raise DamagedError("modules lie in each other without end")
    if id(shell) in seen:
        return []
    seen.add(id(shell))
    held = vars(shell)
    found = [
        (prefix + str(name), tensor.detach().float() if tensor.is_floating_point() else tensor.detach())
        for kind in ("_parameters", "_buffers")
        for name, tensor in _items(held.get(kind))
        if isinstance(tensor, Tensor)
    ]
    for name, inner in _items(held.get("_modules")):
        if isinstance(inner, _Shell):
            found += _tensors(inner, f"{prefix}{name}.", depth=depth + 1, seen=seen)
    return found


def _items(held: Any) -> list[tuple[Any, Any]]:
    return list(held.items()) if isinstance(held, dict) else []


def _classes(said: dict[str, Any]) -> tuple[str, ...]:
    names = said.get("names")
    return numbered_names(names) if isinstance(names, dict | list) else ()


def _size(trained: dict[str, Any]) -> int | None:
    """Its trainer rounds sizes up to a multiple of the stride."""
    side = longest_side(trained.get("imgsz"))
    return side and -(-side // _STRIDE) * _STRIDE


def _architecture(said: dict[str, Any], trained: dict[str, Any]) -> str | None:
    """From what the package notes: the description that the network was made from, with or without its scale."""
    yaml = said.get("yaml")
    described = yaml if isinstance(yaml, dict) else {}
    notes = [
        described.get("yaml_file"),
        said.get("yaml_file"),
        trained.get("model"),
    ]
    stems = [Path(note).stem for note in notes if isinstance(note, str)]
    scale = described.get("scale", "")
    return next((name for stem in stems for name in (stem, f"{stem}{scale}") if name in NAMES), None)
