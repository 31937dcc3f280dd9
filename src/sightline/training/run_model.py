"""The best model of a run as a bundle, whether the run has finished, was stopped, or was killed."""

from pathlib import Path

from sightline.config import TrackingConfig
from sightline.errors import DamagedError, NotFoundError
from sightline.models.bundle import DESCRIPTION, Bundle, describe, open_bundle
from sightline.models.detector import Detector
from sightline.models.factory import make_model
from sightline.models.info import DatasetNote, ModelInfo, RunNote, read_info
from sightline.models.reference import Finder, OnNote
from sightline.tracking.mlflow_tracker import noted_run
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.identity import DATASET, read_json, standing
from sightline.training.messages import RunProgress
from sightline.training.pictures import save_with_card
from sightline.training.record import CONFIG
from sightline.workspace import BEST, MODEL, Workspace


def make_finder(workspace: Workspace, tracking: TrackingConfig, on_note: OnNote) -> Finder:
    """A finder that also finds the best model so far of runs that have not finished."""
    return Finder(workspace, tracking, on_note, open_run_model)


def open_run_model(directory: Path, on_note: OnNote) -> Bundle | None:
    """The best model of the run in a directory; None if no run there has scored a model yet.

    A run writes its bundle when it finishes. For one that has not, the bundle is written here, of the best weights so
    far, which every run keeps on disk.

    Raises:
        NotFoundError: An earlier version of Sightline started the run, and it has not finished.
        DamagedError: The best weights cannot be read.
    """
    best = CheckpointDirectory(directory / BEST).latest_progress()
    if best is None:
        return None
    model, progress = directory / MODEL, standing(directory)
    epochs = int(read_json(directory / CONFIG).get("train", {}).get("epochs", 0))
    if progress.step and not progress.ended(epochs):
        on_note(
            f"run {directory.name!r} is unfinished (epoch {progress.epoch} of {epochs}): its best model so far is of "
            f"epoch {best['epoch']}"
        )
    is_current = (model / DESCRIPTION).is_file() and read_info(model / DESCRIPTION).metrics.get("step") == best["step"]
    return open_bundle(model) if is_current else _write(directory)


def take_best(
    model: Detector, directory: Path, *, name: str, classes: tuple[str, ...], dataset: DatasetNote
) -> ModelInfo:
    """Put the best weights of a run into the model, and say what it is now."""
    stored = CheckpointDirectory(directory / BEST)
    best = stored.load_latest() or stored.load_latest()  # A run that is training may have replaced it in between.
    if best is None:
        raise DamagedError(f"the best weights in {str(directory / BEST)!r} are damaged: give --fresh to train anew")
    model.load_state_dict(best.ema or best.weights)
    # Its own scores: a kill between the best model and the next checkpoint leaves one that the run does not remember.
    noted = RunProgress(**best.progress)
    scores = noted.history[-1]
    return describe(
        model,
        name=name,
        classes=classes,
        score_threshold=scores.get("score_threshold"),
        metrics=scores,
        per_class=noted.best_classes,
        dataset=dataset,
        run=RunNote(name=directory.name, run_id=noted_run(directory)),
    )


def _write(directory: Path) -> Bundle:
    train, noted = read_json(directory / CONFIG).get("train"), read_json(directory / DATASET)
    if not train or not noted:
        raise NotFoundError(
            f"run {directory.name!r} has not finished, and an earlier version of Sightline, which did not save the "
            "class names, started it: give the same train command again, which goes on with it"
        )
    model = make_model(train["model"], num_classes=len(noted["classes"]), size=train["size"])
    dataset = DatasetNote(name=noted["name"], content_hash=noted["content_hash"])
    info = take_best(model, directory, name=train["model"], classes=tuple(noted["classes"]), dataset=dataset)
    return save_with_card(directory / MODEL, model, info)
