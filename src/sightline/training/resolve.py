"""What a run will do, decided before it has a name: which model, from which weights, with which settings.

`auto` and what was left open become plain values here; the result is what is saved with the run and what names it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.config import Config, TrainConfig
from sightline.data.dataset import Dataset
from sightline.data.manifest import hash_file
from sightline.errors import ConfigError, DamagedError, FormatError, NotFoundError
from sightline.models.bundle import DESCRIPTION, WEIGHTS, open_bundle
from sightline.models.detector import Detector
from sightline.models.factory import FAMILIES, family_of
from sightline.models.info import ModelInfo
from sightline.models.licence import licence_note
from sightline.models.reference import Finder
from sightline.models.weights import cached_file, fetch_weights, load_weights
from sightline.models.yolo_checkpoint import family_in, is_yolo_checkpoint, read_yolo_checkpoint
from sightline.training.run_model import make_finder
from sightline.workspace import Workspace

_PREFERRED = (
    "fasterrcnn-mobilenet",
    "fasterrcnn-mobilenet-320",
    "ssdlite",
    "fasterrcnn-resnet50-v2",
    "fasterrcnn-resnet50",
    "retinanet",
    "fcos",
)
"""Detectors that `auto` takes, the quickest that are good first."""
_PUBLISHED = ("coco", "imagenet")
_USUAL_BATCH = 4
"""What learning rates are meant for."""


@dataclass(frozen=True)
class Start:
    """Which model, and what it starts from: "none", published weights by name, or the path of a file."""

    model: str
    weights: str
    why: str = ""


def resolve_training(
    config: Config, dataset: Dataset, *, workspace: Workspace | None = None
) -> tuple[Config, list[str]]:
    """Settings without anything left open, and what there is to say about them. Resolving twice changes nothing."""
    train = config.train
    notes: list[str] = []
    finder = make_finder(workspace or Workspace.find(), config.tracking, notes.append)
    start = _choose(train, dataset.info.task, finder)
    family = family_of(start.model)
    file = weights_file(start.model, start.weights)
    recipe = family.scratch if file is None else family.tuned
    lr = train.lr or recipe.lr
    values: dict[str, Any] = {
        "model": start.model,
        "weights": start.weights,
        "weights_hash": _checked_hash(file, train.weights_hash),
        "size": train.size or family.size,
        "lr": lr * train.batch / _USUAL_BATCH if train.scale_lr else lr,
        "scale_lr": False,
        "optimizer": train.optimizer or recipe.optimizer,
        "weight_decay": recipe.weight_decay if train.weight_decay is None else train.weight_decay,
        "batchnorm": train.batchnorm or recipe.batchnorm,
    }
    resolved = config.model_copy(update={"train": train.model_copy(update=values)})
    owed = licence_note(start.model, family.licence)
    notes += [note for note in (start.why, owed) if note]
    if train.scale_lr:
        notes.append(f"learning rate {values['lr']:g}: {lr:g} for a batch of {_USUAL_BATCH}, scaled to {train.batch}")
    return resolved, notes


def weights_file(model: str, weights: str) -> Path | None:
    """The file of resolved weights, downloaded if they are published ones; None to start without."""
    if weights == "none":
        return None
    if weights not in _PUBLISHED:
        return Path(weights)
    urls = family_of(model).urls
    if weights not in urls:
        have = ", ".join(name for name, family in FAMILIES.items() if weights in family.urls)
        raise ConfigError(f"there are no published {weights} weights of model {model!r}; there are of {have}")
    return fetch_weights(urls[weights], what=f"{weights} weights of {model}")


def start_from_weights(model: Detector, train: TrainConfig, dataset: Dataset) -> str | None:
    """Load resolved weights into a fresh model; says what was taken."""
    file = weights_file(train.model, train.weights)
    if file is None:
        return None
    known = _classes_of_file(file)
    same_classes = known is None or list(known) == list(dataset.classes)
    return f"weights {file.name}: {load_weights(model, file, heads=same_classes)}"


def _choose(train: TrainConfig, task: str, finder: Finder) -> Start:
    """Which model and weights; says why where the user left it open."""
    weights = train.weights if train.weights in ("auto", "none", *_PUBLISHED) else _find_file(train.weights, finder)
    if train.model != "auto":
        return _choose_weights(train.model, weights)
    if weights not in ("auto", "none", *_PUBLISHED):
        model = _model_of_file(Path(weights), task)
        return Start(model, weights, f"model {model}: that is what the weights are of")
    if task == "classification":
        return _choose_weights("resnet18", weights)
    if weights == "none":
        return Start("nano", "none", "model nano: it learns best without weights to start from")
    wanted = "coco" if weights == "auto" else weights
    at_hand = [name for name in _PREFERRED if _at_hand(name, wanted)]
    if at_hand:
        where = cached_file(FAMILIES[at_hand[0]].urls[wanted])
        return Start(at_hand[0], wanted, f"model {at_hand[0]}: its {wanted} weights are at hand in {where}")
    if weights == "auto":
        why = f"no COCO weights are in {cached_file('x').parent} (--weights coco downloads some)"
        return Start("nano", "none", f"model nano, from scratch: {why}")
    return Start(_PREFERRED[0], wanted, f"model {_PREFERRED[0]}: the quickest with {wanted} weights that is good")


def _choose_weights(model: str, weights: str) -> Start:
    """Weights for a model that is known: the best that are at hand if that is left open."""
    urls = family_of(model).urls
    if weights != "auto" or not urls:
        return Start(model, "none" if weights == "auto" else weights)
    for name in _PUBLISHED:
        if _at_hand(model, name):
            return Start(
                model, name, f"model {model}: starts from its {name} weights, at hand in {cached_file(urls[name])}"
            )
    why = f"no weights of it are at hand (--weights {next(iter(urls))} downloads some)"
    return Start(model, "none", f"model {model}: starts from scratch, for {why}")


def _at_hand(model: str, weights: str) -> bool:
    url = family_of(model).urls.get(weights)
    return url is not None and cached_file(url).is_file()


def _find_file(reference: str, finder: Finder) -> str:
    """The absolute path of weights that are a file, or those of a bundle: a run's, a registered one, one elsewhere."""
    file = Path(reference).expanduser()
    if not file.is_file():
        try:
            file = finder.find(reference).path / WEIGHTS
        except (NotFoundError, FormatError) as error:
            raise NotFoundError(
                f"weights {reference!r} are not there: give coco, imagenet, none, a file, or a model by name, path or "
                f"URL ({error})"
            ) from None
        if not file.is_file():
            raise FormatError(
                f"weights {reference!r} are a model that came as an ONNX file, which cannot be trained: give a file of "
                "weights or a model that was trained"
            )
    return str(file.resolve())


def _own_model(file: Path) -> ModelInfo | None:
    """What our own model is, if the file is the weights of one."""
    return open_bundle(file.parent).info if file.name == WEIGHTS and (file.parent / DESCRIPTION).is_file() else None


def _classes_of_file(file: Path) -> tuple[str, ...] | None:
    """What the weights in a file tell apart, if it says so."""
    own = _own_model(file)
    if own:
        return own.classes
    return read_yolo_checkpoint(file).classes if is_yolo_checkpoint(file) else None


def _model_of_file(file: Path, task: str) -> str:
    own = _own_model(file)
    if own:
        return own.model
    if is_yolo_checkpoint(file):
        return family_in(file, read_yolo_checkpoint(file))
    for name, family in FAMILIES.items():
        if family.task == task and file.name in {cached_file(url).name for url in family.urls.values()}:
            return name
    raise ConfigError(f"say with --model which model the weights in {str(file)!r} are of")


def _checked_hash(file: Path | None, wanted: str | None) -> str | None:
    if file is None:
        return None
    found = hash_file(file)
    if wanted is not None and found != wanted:
        raise DamagedError(f"the weights in {str(file)!r} have SHA-256 {found}; train.weights_hash asks for {wanted}")
    return found
