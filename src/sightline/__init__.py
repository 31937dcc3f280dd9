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
        ingest,
        inspect,
        list_datasets,
        list_runs,
        open_dataset,
        synth,
        train,
    )
    from sightline.data.dataset import Dataset
    from sightline.detect_api import browse, detect, estimate_detection, list_detections, list_images, query
    from sightline.errors import SightlineError, Stopped
    from sightline.model_api import (
        compare_images,
        compare_models,
        delete_model,
        export_model,
        import_model,
        list_models,
        load_model,
        promote,
        register,
    )
    from sightline.models.predictor import Predictor
    from sightline.report_api import survey_run, write_report
    from sightline.structures import Classification, Detections, Sample

_HOMES = {
    "Classification": "sightline.structures",
    "Dataset": "sightline.data.dataset",
    "Detections": "sightline.structures",
    "Predictor": "sightline.models.predictor",
    "Sample": "sightline.structures",
    "SightlineError": "sightline.errors",
    "Stopped": "sightline.errors",
    "browse": "sightline.detect_api",
    "compare_images": "sightline.model_api",
    "compare_models": "sightline.model_api",
    "compare_runs": "sightline.api",
    "delete_model": "sightline.model_api",
    "detect": "sightline.detect_api",
    "estimate_detection": "sightline.detect_api",
    "evaluate": "sightline.api",
    "export_dataset": "sightline.api",
    "export_model": "sightline.model_api",
    "import_model": "sightline.model_api",
    "ingest": "sightline.api",
    "inspect": "sightline.api",
    "list_datasets": "sightline.api",
    "list_detections": "sightline.detect_api",
    "list_images": "sightline.detect_api",
    "list_models": "sightline.model_api",
    "list_runs": "sightline.api",
    "load_model": "sightline.model_api",
    "open_dataset": "sightline.api",
    "promote": "sightline.model_api",
    "query": "sightline.detect_api",
    "register": "sightline.model_api",
    "survey_run": "sightline.report_api",
    "synth": "sightline.api",
    "train": "sightline.api",
    "write_report": "sightline.report_api",
}

__all__ = [
    "Classification",
    "Dataset",
    "Detections",
    "Predictor",
    "Sample",
    "SightlineError",
    "Stopped",
    "__version__",
    "browse",
    "compare_images",
    "compare_models",
    "compare_runs",
    "delete_model",
    "detect",
    "estimate_detection",
    "evaluate",
    "export_dataset",
    "export_model",
    "import_model",
    "ingest",
    "inspect",
    "list_datasets",
    "list_detections",
    "list_images",
    "list_models",
    "list_runs",
    "load_model",
    "open_dataset",
    "promote",
    "query",
    "register",
    "survey_run",
    "synth",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import sightline` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
