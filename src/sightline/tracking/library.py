"""MLflow itself: imported late and silently, its errors turned into ours."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sightline.errors import SightlineError, TrackingError
from sightline.secrets import hide_parts

if TYPE_CHECKING:
    from mlflow import MlflowClient

_WHILE_IMPORTED = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}
_TALKATIVE = ("mlflow", "alembic", "sqlalchemy", "urllib3", "databricks")
_MAX_MESSAGE = 300


def open_client(uri: str, *, registry_uri: str | None = None) -> "MlflowClient":
    """A client of one server or database, without MLflow's global state.

    Args:
        registry_uri: Where models are registered; default: the same place.

    Raises:
        TrackingError: The database cannot be opened, or the URI is of no known kind.
    """
    with telling(uri):
        _import_quietly()
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri, registry_uri=registry_uri or uri)


@contextmanager
def telling(uri: str) -> Iterator[None]:
    """Turn whatever MLflow raises into one sentence that holds no credentials."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, SightlineError):
        raise
    except Exception as error:
        # MLflow lets the errors of its database, HTTP and cloud libraries through: they have no base of their own.
        reason = hide_parts(" ".join(str(error).split()), uri)[:_MAX_MESSAGE] or type(error).__name__
        raise TrackingError(
            f"MLflow at {hide_parts(uri, uri)} does not answer as it should: {reason}. Look at tracking.uri "
            "(--tracking-uri, or MLFLOW_TRACKING_URI; MLFLOW_REGISTRY_URI for models), or train without it (--no-track)"
        ) from None


@contextmanager
def tracking_uri(uri: str) -> Iterator[None]:
    """While this lasts, MLflow takes this URI where its own code names none.

    Its default is a database in the current directory, which is made on first use: its files of Unity Catalog do that.
    """
    with _environment({"MLFLOW_TRACKING_URI": uri}):
        yield


def is_missing(error: Exception) -> bool:
    """Whether MLflow said that there is no such thing."""
    return getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


def is_there_already(error: Exception) -> bool:
    """Whether somebody else made the same thing at the same time."""
    return getattr(error, "error_code", "") == "RESOURCE_ALREADY_EXISTS"


def _import_quietly() -> None:
    """Import MLflow without telemetry, log lines or warnings; the environment is left as it was."""
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if not logger.handlers:  # So that logging has no reason to write to standard error by itself.
            logger.addHandler(logging.NullHandler())
    with _environment(_WHILE_IMPORTED), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.environment_variables as variables
    # MLflow waits four minutes for a server that is gone. The environment, where it says something, still wins.
    variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.default = 2
    variables.MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR.default = 1
    variables.MLFLOW_HTTP_REQUEST_TIMEOUT.default = 20
    variables.MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.default = False


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that are set for a while."""
    kept = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
