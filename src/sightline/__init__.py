"""Sightline finds objects in images at any scale.

Everything public is here; importing it does nothing but make the names available:

>>> import sightline
>>> "ingest" in dir(sightline)
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from sightline.api import (
        compare_runs,
        evaluate,
        export_dataset,
        export_model,
        ingest,
        inspect,
        list_datasets,
        list_runs,
        open_dataset,
        synth,
        train,
    )
    from sightline.data.dataset import Dataset
    from sightline.errors import SightlineError
    from sightline.structures import Sample

_HOMES = {
    "Dataset": "sightline.data.dataset",
    "Sample": "sightline.structures",
    "SightlineError": "sightline.errors",
    "compare_runs": "sightline.api",
    "evaluate": "sightline.api",
    "export_dataset": "sightline.api",
    "export_model": "sightline.api",
    "ingest": "sightline.api",
    "inspect": "sightline.api",
    "list_datasets": "sightline.api",
    "list_runs": "sightline.api",
    "open_dataset": "sightline.api",
    "synth": "sightline.api",
    "train": "sightline.api",
}

__all__ = [
    "Dataset",
    "Sample",
    "SightlineError",
    "__version__",
    "compare_runs",
    "evaluate",
    "export_dataset",
    "export_model",
    "ingest",
    "inspect",
    "list_datasets",
    "list_runs",
    "open_dataset",
    "synth",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import sightline` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
