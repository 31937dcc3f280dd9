"""A bundle behind MLflow's interface: a table of encoded images in, a table of detections out.

Loaded by MLflow's own tools only, and like the command line it stands outside of the package and calls it.
"""

import base64
import binascii
import logging
from collections.abc import Sequence
from typing import Any

import pandas
from mlflow.pyfunc.model import PythonModel

from sightline.errors import ImageError

COLUMNS = ("image", "label", "score", "xmin", "ymin", "xmax", "ymax")


class PyfuncModel(PythonModel):
    """One row for each detection; an image in which nothing was found has none."""

    def load_context(self, context: Any) -> None:
        """Open the bundle, after checking every file of it."""
        import sightline

        said = logging.getLogger(__name__).warning  # Its engine.
        self._model = sightline.load_model(context.artifacts["bundle"], on_note=said)

    def predict(
        self, context: Any, model_input: pandas.DataFrame, params: dict[str, Any] | None = None
    ) -> pandas.DataFrame:
        """What is in each image.

        Args:
            model_input: A DataFrame with a column `image`: encoded bytes, or those as base64. Never paths.
            params: `threshold`, the lowest score; default: the model's own.

        Returns:
            A DataFrame: `image` (row of the input, from 0), `label`, `score`, `xmin`, `ymin`, `xmax`, `ymax`. A
            classifier gives one row an image, with the whole image as its box.
        """
        images = [_encoded(value, row) for row, value in enumerate(model_input["image"])]
        found: Sequence[Any] = self._model.predict(images, threshold=(params or {}).get("threshold"))
        rows = [(number, *row) for number, one in enumerate(found) for row in one.rows()]
        table = pandas.DataFrame(rows, columns=list(COLUMNS))
        return table.astype(dict.fromkeys(COLUMNS[2:], "float64") | {"image": "int64", "label": "object"})


def _encoded(value: Any, row: int) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return base64.b64decode(value, validate=False)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ImageError("not an image", f"row {row} holds neither bytes nor base64: {error}") from None
