"""Runs without the command line or a workspace."""

from pathlib import Path
from typing import Any

from sightline.config import Config
from sightline.data.dataset import Dataset
from sightline.training.checkpoint import Checkpoint
from sightline.training.resolve import resolve_training
from sightline.training.run import RunResult
from sightline.training.run import train_run as train_resolved


def train_run(dataset: Dataset, config: Config, directory: Path, **options: Any) -> RunResult:
    """Train with settings that leave things open, in any directory."""
    return train_resolved(dataset, resolve_training(config, dataset)[0], directory, **options)


class InMemory:
    """Keeps the latest checkpoint in memory."""

    def __init__(self) -> None:
        self.latest: Checkpoint | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        self.latest = checkpoint

    def load_latest(self) -> Checkpoint | None:
        return self.latest
