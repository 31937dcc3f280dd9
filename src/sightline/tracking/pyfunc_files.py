"""The directory that MLflow's own tools load: a bundle behind a constant file of code, with a signature."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.tracking.wheel import write_wheel

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

BUNDLE = "artifacts/bundle"
"""Where the bundle lies in it."""
WHEELS = "wheels"
"""Where the wheel of Sightline lies in it."""
_SHIM = Path(__file__).with_name("pyfunc_shim.py")
_EXAMPLE_PX = 64


@contextmanager
def write_pyfunc(bundle: Path, *, extras: Sequence[str] = ()) -> Iterator[Path]:
    """A temporary directory with the bundle as MLflow stores it.

    What it needs is said, not inferred: that would load the model in a new process and ask the network. Sightline is on
    no package index, where anybody could claim its name, so the model brings it as a wheel. Loaders that build an
    environment run pip in the model's directory, where the path of the wheel is valid.

    Args:
        extras: Of Sightline, without which this bundle cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="sightline-") as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns of its own type hints when it is imported.
        import mlflow.pyfunc
        import pandas

        named = Path(place) / "bundle"
        shutil.copytree(bundle, named)
        wheels = Path(place) / WHEELS
        wheels.mkdir()
        own = f"{WHEELS}/{write_wheel(wheels).name}" + (f"[{','.join(extras)}]" if extras else "")
        mlflow.pyfunc.save_model(
            path=f"{place}/model",
            python_model=str(_SHIM),
            artifacts={"bundle": str(named)},
            signature=_signature(),
            input_example=pandas.DataFrame({"image": [_example()]}),
            pip_requirements=[own, f"mlflow-skinny=={version('mlflow-skinny')}"],
        )
        shutil.copytree(wheels, f"{place}/model/{WHEELS}")
        yield Path(place) / "model"


def _signature() -> "ModelSignature":
    """Images in, as bytes (base64 in JSON); one row a detection out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    numbers = ("score", "xmin", "ymin", "xmax", "ymax")
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.binary, "image")]),
        outputs=Schema(
            [
                ColSpec(DataType.long, "image"),
                ColSpec(DataType.string, "label"),
                *(ColSpec(DataType.double, name) for name in numbers),
            ]
        ),
        params=ParamSchema([ParamSpec("threshold", DataType.double, None)]),
    )


def _example() -> bytes:
    """A gray image; what the model has learned from is not ours to publish."""
    import numpy as np

    from sightline.data.decode import encode_jpeg

    return encode_jpeg(np.full((_EXAMPLE_PX, _EXAMPLE_PX, 3), 128, np.uint8))
