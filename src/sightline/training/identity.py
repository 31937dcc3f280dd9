"""Which run a command means: its name, the settings that decide its outcome, and the directory that holds it."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

from sightline.config import Config
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError, FormatError
from sightline.secrets import redact_values
from sightline.training.attempt import FILE as ATTEMPT
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.messages import RunProgress
from sightline.training.record import CONFIG
from sightline.workspace import CHECKPOINTS, LOCK

IDENTITY = "identity.txt"
"""In a run's directory: the name that its settings and dataset give it, whatever the user called it."""
DATASET = "dataset.json"
"""In a run's directory: the format version of its files; name, content hash and classes of its dataset."""
_FORMAT = 1
_PLACE_ONLY = ("threads", "device", "weights", "checkpoint_every_s")
"""Settings of `train` that do not change the outcome; weights count by their hash, wherever they lie."""


def run_name(dataset: Dataset, config: Config) -> str:
    """Names a run by what decides its outcome (of resolved settings): the same command again goes on with it."""
    identity = json.dumps([_deciding(config), dataset.info.content_hash], sort_keys=True)
    return f"{dataset.info.name}-{config.train.model}-{sha256(identity.encode()).hexdigest()[:8]}"


def choose_name(runs: Path, dataset: Dataset, config: Config) -> str:
    """The name of a run that the user gave none.

    That of its settings; or, if there is no such run yet, that of a finished run which differs only in having fewer
    epochs, and which is then extended.
    """
    own = run_name(dataset, config)
    if (runs / own).is_dir() or not runs.is_dir():
        return own
    named_alike = (run for run in runs.iterdir() if run.name.rpartition("-")[0] == own.rpartition("-")[0])
    extended = [(epochs, run.name) for run in named_alike if (epochs := _epochs_to_extend(run, dataset, config))]
    return max(extended)[1] if extended else own


def claim(directory: Path, dataset: Dataset, config: Config, *, fresh: bool) -> str | None:
    """Take a run's directory for a run of these settings; returns a note if that extends the run.

    Raises:
        ConfigError: It holds a run of other settings, or of another dataset.
        FormatError: A later version of Sightline wrote it.
    """
    own, extended = run_name(dataset, config), None
    version = read_json(directory / DATASET).get("format", 1)
    if not fresh and version != _FORMAT:
        raise FormatError(
            f"run {directory.name!r} has format version {str(version)[:20]}, and this Sightline reads {_FORMAT}: "
            "install the version of Sightline that wrote it, or start the run anew with --fresh"
        )
    known = read_identity(directory)
    if fresh:
        _clear(directory)
    elif known not in ("", own):
        extended = _check_extends(directory, dataset, config)
    (directory / IDENTITY).write_text(own + "\n", "utf-8")
    info = dataset.info
    note = {"format": _FORMAT, "name": info.name, "content_hash": info.content_hash, "classes": list(info.classes)}
    (directory / DATASET).write_text(json.dumps(note) + "\n", "utf-8")
    return extended


def read_identity(directory: Path) -> str:
    """What `run_name` was when the run was started last; empty if there is no run."""
    file = directory / IDENTITY
    return file.read_text("utf-8").strip() if file.is_file() else ""


def read_json(file: Path) -> dict[str, Any]:
    """A JSON file of a run's directory; empty if it is not there, or torn by a crash."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def standing(directory: Path) -> RunProgress:
    """How far a run has come, by its newest checkpoint, which is not verified."""
    found = CheckpointDirectory(directory / CHECKPOINTS).latest_progress()
    return RunProgress(**found) if found else RunProgress()


def _deciding(config: Config) -> dict[str, dict[str, Any]]:
    settings = {"train": config.train.model_dump(mode="json"), "augment": config.augment.model_dump(mode="json")}
    for name in _PLACE_ONLY:
        settings["train"].pop(name)
    return settings


def _epochs_to_extend(run: Path, dataset: Dataset, config: Config) -> int:
    """The epochs of a run that the settings would continue, 0 if they would not."""
    epochs = read_json(run / CONFIG).get("train", {}).get("epochs", 0)
    asked = config.train.epochs
    shorter = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    known = read_identity(run)
    if known == run_name(dataset, config):
        return int(asked)  # An extension that ended before its settings were written.
    if not 0 < epochs <= asked or known != run_name(dataset, shorter):
        return 0
    return int(epochs) if epochs == asked or standing(run).ended(epochs) else 0


def _check_extends(directory: Path, dataset: Dataset, config: Config) -> str:
    """A note, if more epochs are all that differs from the run in a directory; else an error that names what does."""
    differing = _differences(directory, dataset, config)
    there, here = differing.get("train.epochs", (0, 0))
    if differing.keys() == {"train.epochs"} and there < here:
        return f"run {directory.name!r} is extended from {there} to {here} epochs"
    named = [f"{name} is {old} there and {new} here" for name, (old, new) in differing.items()]
    what = ", ".join(named) or "it has another dataset, or was started by another version of Sightline"
    raise ConfigError(
        f"run {directory.name!r} has other settings: {what}. Give the settings of the run to go on with it, --fresh to "
        "start it anew, or another --name"
    )


def _differences(directory: Path, dataset: Dataset, config: Config) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, by dotted name: the value in the run's directory, and the one asked for."""
    stored, found = read_json(directory / CONFIG), {}
    for section, values in redact_values(_deciding(config)).items():
        before = stored.get(section, {})
        for name in sorted(values.keys() | before.keys() - {*_PLACE_ONLY}):
            old, new = before.get(name, "not set"), values.get(name, "not set")
            if stored and old != new:
                found[f"{section}.{name}"] = (old, new)
    noted, info = read_json(directory / DATASET), dataset.info
    if noted and noted["content_hash"] != info.content_hash:
        found["dataset"] = (_shown(noted["name"], noted["content_hash"]), _shown(info.name, info.content_hash))
    return found


def _shown(name: str, content_hash: str) -> str:
    return f"{name} (content hash {content_hash[:12]})"


def _clear(directory: Path) -> None:
    """Remove all but what keeps other processes out: a worker of an earlier attempt may be alive."""
    for place in directory.iterdir():
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        elif place.name not in (LOCK, ATTEMPT):
            place.unlink()
