"""Where runs are kept: SQLite in the workspace, or any server by URI."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.config import TrackingConfig
from sightline.secrets import hide_parts
from sightline.tracking.library import is_there_already, open_client, telling
from sightline.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATABASE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"
UNITY_CATALOG = "databricks-uc"


@dataclass(frozen=True)
class Store:
    """An experiment of a server or database.

    Attributes:
        uri: May hold credentials; `place` does not.
        artifacts: Where files go; None leaves it to the server.
        database: The file, for SQLite in the workspace.
    """

    uri: str
    experiment: str
    artifacts: str | None = None
    database: Path | None = None

    @classmethod
    def find(cls, config: TrackingConfig, root: Path) -> "Store":
        """The URI of the settings, else MLFLOW_TRACKING_URI, else SQLite in the workspace."""
        uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri:
            return cls(uri, config.experiment)
        root = root.resolve()
        database = root / DATABASE
        return cls(f"sqlite:///{database.as_posix()}", config.experiment, (root / ARTIFACTS).as_uri(), database)

    @property
    def place(self) -> str:
        """Where runs are kept, as it may be shown."""
        return str(self.database) if self.database else hide_parts(self.uri, self.uri)

    @property
    def registry_uri(self) -> str:
        """Where models are registered: MLFLOW_REGISTRY_URI, else Unity Catalog for Databricks, else where runs are."""
        if uri := os.environ.get("MLFLOW_REGISTRY_URI"):
            return uri
        return self.uri.replace("databricks", UNITY_CATALOG, 1) if self.is_databricks else self.uri

    @property
    def registry_place(self) -> str:
        """Where models are registered, as it may be shown."""
        return self.place if self.registry_uri == self.uri else hide_parts(self.registry_uri, self.registry_uri)

    @property
    def is_databricks(self) -> bool:
        """Whether runs are kept in a Databricks workspace."""
        return _scheme(self.uri) == "databricks"

    @property
    def is_unity_catalog(self) -> bool:
        """Whether models are registered in Unity Catalog, which serves only a part of MLflow's interface."""
        return _scheme(self.registry_uri) == UNITY_CATALOG

    @property
    def is_database(self) -> bool:
        """Whether this process writes registered models to a database itself, without a server between."""
        return _scheme(self.registry_uri).partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")

    def open(self) -> "MlflowClient":
        """A client; the database and its directory are made if need be."""
        if self.database:
            Workspace(self.database.parent).make()
            # SQLite would take the umask; runs and models name datasets, paths and machines.
            with suppress(FileExistsError):
                os.close(os.open(self.database, os.O_CREAT | os.O_EXCL, 0o600))
        return open_client(self.uri, registry_uri=self.registry_uri)

    def find_experiment(self, client: "MlflowClient") -> str | None:
        """The id of the experiment, if there is one."""
        with telling(self.uri):
            found = client.get_experiment_by_name(self.experiment)
            return found.experiment_id if found else None

    def make_experiment(self, client: "MlflowClient") -> str:
        """The id of the experiment, which is made if need be."""
        with telling(self.uri):
            found = self.find_experiment(client)
            if found is not None:
                return found
            try:
                return str(client.create_experiment(self.experiment, artifact_location=self.artifacts))
            except Exception as error:
                made_by_another = self.find_experiment(client) if is_there_already(error) else None
                if made_by_another is None:
                    raise
                return made_by_another


def _scheme(uri: str) -> str:
    return uri.partition("://")[0]
