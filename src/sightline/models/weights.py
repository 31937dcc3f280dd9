"""Weights to start from: found or downloaded, read without running anything, put where they fit.

A file may hold a whole detector of torchvision, a classifier whose layers are a detector's backbone, or one of our own
models. What depends on the number of classes (`Detector.heads`) starts fresh where it does not fit; anything else that
does not fit is an error, for then the file is of another model.
"""

import pickle
import re
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from sightline.data.atomic import replacing_file
from sightline.data.manifest import hash_file
from sightline.errors import ConfigError, DamagedError, NotFoundError, StorageError, TrainingError
from sightline.models.yolo_checkpoint import is_yolo_checkpoint, read_yolo_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.models.detector import Detector

Weights = dict[str, "Tensor"]
"""Tensors by name: a state_dict."""

_TIMEOUT_S = 30
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,})\.")
_WRAPPERS = ("model", "state_dict", "model_state_dict")
"""Names under which training scripts keep the weights among other things."""
_PLACES = (
    ("", ""),
    ("", "model."),
    ("", "network."),
    ("", "model.backbone.body."),
    ("features.", "model.backbone.body."),
)
"""How names in files become ours (one beginning for another): our own, whole models of torchvision, backbones."""


class NotFiniteError(TrainingError):
    """Weights that must never be saved."""


def refuse_not_finite(weights: Weights) -> None:
    """Raise for weights that must never be saved."""
    bad = _not_finite(weights)
    if bad:
        raise NotFiniteError(f"weights are not finite: {_some(bad)}")


def plain_weights(weights: Weights) -> Weights:
    """Contiguous copies on the CPU, as safetensors wants them."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def _not_finite(weights: Weights) -> list[str]:
    return [name for name, tensor in weights.items() if tensor.is_floating_point() and not tensor.isfinite().all()]


@dataclass(frozen=True)
class Taken:
    """What came of loading a file.

    Attributes:
        taken: How many tensors of the file are in the model now.
        unused: Those of the file that are not.
        fresh: Those of the model that the file did not give.
    """

    taken: int
    unused: list[str]
    fresh: list[str]

    def __str__(self) -> str:
        unused = f"; {len(self.unused)} in the file not used ({_some(self.unused)})" if self.unused else ""
        fresh = f"; {len(self.fresh)} of the model start fresh ({_some(self.fresh)})" if self.fresh else ""
        return f"took {self.taken} of {self.taken + len(self.unused)} tensors{unused}{fresh}"


def cached_file(url: str) -> Path:
    """Where torch keeps, or would keep, what it downloads from here."""
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]


def fetch_weights(url: str, *, what: str) -> Path:
    """The cached file of published weights, downloaded if it is not there.

    Args:
        what: Words for a message, such as "COCO weights of ssdlite".

    Raises:
        DamagedError: The cached file does not have the hash that its name says.
        StorageError: It could not be downloaded.
    """
    file = cached_file(url)
    if file.is_file():
        # Every use, not the download alone: other programs and users may write to torch's cache.
        if not _has_hash_of_name(file, file):
            raise DamagedError(
                f"the {what} in {str(file)!r} are not what was published: SHA-256 {hash_file(file)[:12]}…, expected "
                f"{hash_in_name(file)}…. Remove that file, and it is downloaded again"
            )
        return file
    try:
        _download(url, file)
    except (OSError, ValueError) as error:
        raise StorageError(
            f"the {what} could not be downloaded ({error}). Wanted: {url}. Without a network, bring that file here and "
            f"give it with --weights FILE, or put it at {str(file)!r}; --weights none starts without"
        ) from None
    return file


def _download(url: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing_file(file) as partial:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, open(partial, "wb") as stream:
                shutil.copyfileobj(answer, stream, 1 << 20)
            if not _has_hash_of_name(partial, file):
                raise ValueError("what arrived has another hash than the name says")
    except urllib.error.HTTPError as refused:
        refused.close()  # It is the server's answer too.
        raise


def _has_hash_of_name(file: Path, named: Path) -> bool:
    return hash_file(file).startswith(hash_in_name(named))


def hash_in_name(file: Path) -> str:
    """The beginning of its SHA-256, which published files have in their names; nothing for others."""
    found = _HASH_IN_NAME.search(file.name)
    return found[1] if found else ""


def read_weights(file: Path) -> Weights:
    """The tensors of a .safetensors file or of one that torch or Ultralytics wrote; nothing in it is run.

    Raises:
        DamagedError: It holds something else, or numbers that are not finite.
    """
    if not file.is_file():
        raise NotFoundError(f"weights {str(file)!r} are not there")
    weights = _read_tensors(file)
    broken = _not_finite(weights)
    if broken:
        raise DamagedError(f"weights {str(file)!r} hold numbers that are not finite: {_some(broken)}")
    return weights


def _read_tensors(file: Path) -> Weights:
    plain = file.suffix == ".safetensors"
    if not plain and is_yolo_checkpoint(file):
        return read_yolo_checkpoint(file).weights
    import torch
    from safetensors.torch import load_file

    try:
        found: Any = load_file(file) if plain else torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise DamagedError(
            f"weights {str(file)!r} are not a plain file of tensors and were refused, nothing in it was run "
            f"({_first_line(error)}): save a state_dict with torch.save or safetensors"
        ) from None
    return _unwrap(found, file)


def _unwrap(found: Any, file: Path) -> Weights:
    from torch import Tensor

    if isinstance(found, dict):
        found = next((found[name] for name in _WRAPPERS if isinstance(found.get(name), dict)), found)
        tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
        if tensors:
            # What torch's DistributedDataParallel wraps has every name begin so.
            wrapped = all(name.startswith("module.") for name in tensors)
            return {name.removeprefix("module."): value for name, value in tensors.items()} if wrapped else tensors
    raise DamagedError(f"weights {str(file)!r} hold a {type(found).__name__} without named tensors, not a state_dict")


def load_weights(model: "Detector", file: Path, *, heads: bool = True) -> Taken:
    """Put the weights of a file into a model.

    Args:
        heads: Whether to take what tells classes apart too, where it fits; not if the classes are others.

    Raises:
        ConfigError: Nothing fits, or something other than a head has another shape.
    """
    given = read_weights(file)
    named = _our_names(given, model.state_dict(), file)
    model.fit(named)
    own = model.state_dict()
    head = [name for name in named if name.startswith(model.heads)]
    left = {name for name in head if not heads or (name in own and own[name].shape != named[name].shape)}
    fitting = {name: tensor for name, tensor in named.items() if name not in left}
    _refuse_other_shapes(fitting, own, file)
    try:
        missing, unexpected = model.load_state_dict(fitting, strict=False)
    except RuntimeError as error:  # Shapes of names that torchvision itself translates from older files.
        raise ConfigError(f"weights {str(file)!r} do not fit the model: {_first_line(error)}") from None
    fresh = [name for name in missing if not name.endswith("num_batches_tracked")]
    taken = len(fitting) - len(unexpected)
    used = set(fitting) - set(unexpected)
    unused = [name for name, renamed in _renamed(given, named) if renamed not in used]
    return Taken(taken, unused, fresh)


def _our_names(given: Weights, own: Weights, file: Path) -> Weights:
    """The file's tensors under our names, in the reading under which most of them are known."""
    readings = [
        {put + name.removeprefix(cut): tensor for name, tensor in given.items() if name.startswith(cut)}
        for cut, put in _PLACES
    ]
    best = max(readings, key=lambda names: len(names.keys() & own.keys()))
    if not best.keys() & own.keys():
        raise ConfigError(
            f"nothing in weights {str(file)!r} fits the model: it holds {_some(list(given))}; expected "
            f"{_some(list(own))}, with or without what comes before the first dots"
        )
    return best


def _renamed(given: Weights, named: Weights) -> list[tuple[str, str | None]]:
    """Names in the file with ours; None for those that have no place."""
    by_tensor = {id(tensor): name for name, tensor in named.items()}
    return [(name, by_tensor.get(id(tensor))) for name, tensor in given.items()]


def _refuse_other_shapes(fitting: Weights, own: Weights, file: Path) -> None:
    wrong = [name for name, tensor in fitting.items() if name in own and own[name].shape != tensor.shape]
    if wrong:
        name = wrong[0]
        raise ConfigError(
            f"weights {str(file)!r} are of another model: {name} is {tuple(fitting[name].shape)} there and "
            f"{tuple(own[name].shape)} here, and so {len(wrong)} of {len(fitting)} tensors differ"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
