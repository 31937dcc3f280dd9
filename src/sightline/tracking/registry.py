"""Registered models in MLflow: versions, aliases, and the bundle of each.

Only the bundle's files are ever taken from a registry, and none of its code: MLflow's own loader is not used.
"""

import posixpath
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.config import TrackingConfig
from sightline.errors import ConfigError, NotFoundError
from sightline.secrets import redact
from sightline.tracking.library import is_missing, is_there_already, telling
from sightline.tracking.pyfunc_files import BUNDLE, write_pyfunc
from sightline.tracking.store import Store
from sightline.workspace import check_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

HASH = "sightline.bundle"
"""The tag of a version that has its bundle's hash."""
_TAGS = "sightline."
_LOGGED_TAG = "sightline.logged_model"
_LOGGED = "models:/"
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model.

    Attributes:
        bundle: Hash of its bundle; None if another program registered it.
        facts: What was noted of it: model, dataset, run, score, ….
        created: ISO 8601, UTC.
    """

    name: str
    version: str
    aliases: tuple[str, ...]
    bundle: str | None
    run_id: str | None
    created: str
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`name/version`, and its aliases."""
        return f"{self.name}/{self.version}" + "".join(f" @{alias}" for alias in self.aliases)


def open_registry(config: TrackingConfig, root: Path, *, make: bool = False) -> "Registry | None":
    """The registry that the settings name; None, and nothing is made, where there is no database yet.

    Args:
        make: Make the database if need be.
    """
    store = Store.find(config, root)
    if store.database and not store.database.exists() and not make:
        return None
    return Registry(store, store.open())


class Registry:
    """The registered models of one MLflow."""

    def __init__(self, store: Store, client: "MlflowClient") -> None:
        self._store, self._client = store, client

    @property
    def place(self) -> str:
        """Where it is, without credentials."""
        return self._store.place

    def versions(self, name: str | None = None) -> list[ModelVersion]:
        """All versions, or those of one model, by name and newest first."""
        query = f"name = '{check_name(name)}'" if name else None
        with telling(self._store.uri):
            aliases = {model.name: dict(model.aliases) for model in self._pages("search_registered_models", query)}
            found = [
                _version(entry, aliases.get(entry.name, {})) for entry in self._pages("search_model_versions", query)
            ]
        return sorted(found, key=lambda version: (version.name, -int(version.version)))

    def by_number(self, name: str, version: str) -> ModelVersion:
        """A version by its number."""
        found = [entry for entry in self.versions(name) if entry.version == str(int(version))]
        if not found:
            raise NotFoundError(f"there is no model {name}/{version} in the registry: {self._known(name)}")
        return found[0]

    def by_alias(self, name: str, alias: str) -> ModelVersion:
        """The version that has an alias."""
        found = self.holder(name, alias)
        if found is None:
            raise NotFoundError(f"no version of model {name!r} has the alias {alias!r}: {self._known(name)}")
        return found

    def holder(self, name: str, alias: str) -> ModelVersion | None:
        """The version that has an alias, if any has."""
        return next((entry for entry in self.versions(name) if check_alias(alias) in entry.aliases), None)

    def preferred(self, name: str, alias: str) -> ModelVersion | None:
        """The version with an alias, else the newest; None if there is no such model."""
        found = self.versions(name)
        return next((entry for entry in found if alias in entry.aliases), next(iter(found), None))

    def register(
        self, name: str, bundle: Path, *, hash: str, run_id: str | None, facts: Mapping[str, str]
    ) -> ModelVersion:
        """Keep a bundle as the next version of a model; one that is there already stays the version it is."""
        check_name(name)
        there = next((entry for entry in self.versions(name) if entry.bundle == hash), None)
        if there:
            return there
        tags = {HASH: hash, **{f"{_TAGS}{key}": redact(value)[:500] for key, value in facts.items()}}
        experiment_id = self._store.make_experiment(self._client)
        with telling(self._store.uri):
            self._make_model(name)
            run_id = run_id if run_id and self._has_run(run_id) else None
            source, model_id = self._upload(name, bundle, experiment_id=experiment_id, run_id=run_id)
            # Given a model without a run, a database looks for it in whatever MLflow the process has as its default.
            linked = model_id if run_id or not self._store.is_database else None
            tags[_LOGGED_TAG] = model_id
            made = self._client.create_model_version(name, source, run_id=run_id, tags=tags, model_id=linked)
        return self.by_number(name, str(made.version))

    def set_alias(self, version: ModelVersion, alias: str) -> None:
        """Give an alias to a version; whichever had it loses it."""
        with telling(self._store.uri):
            self._client.set_registered_model_alias(version.name, check_alias(alias), version.version)

    def delete(self, version: ModelVersion) -> None:
        """Remove a version, and the model itself with its last one."""
        with telling(self._store.uri):
            for alias in version.aliases:
                self._client.delete_registered_model_alias(version.name, alias)
            self._client.delete_model_version(version.name, version.version)
            if logged := version.facts.get(_LOGGED_TAG.removeprefix(_TAGS)):
                self._client.delete_logged_model(logged)
            if not self.versions(version.name):
                self._client.delete_registered_model(version.name)

    def source(self, version: ModelVersion) -> "RegistrySource":
        """Where the bundle of a version comes from."""
        with telling(self._store.uri):
            location = self._client.get_model_version_download_uri(version.name, version.version)
            if location.startswith(_LOGGED):
                location = self._client.get_logged_model(location.removeprefix(_LOGGED)).artifact_location
        return RegistrySource(f"{version.name}/{version.version}", location, self._store.uri)

    def _upload(self, name: str, bundle: Path, *, experiment_id: str, run_id: str | None) -> tuple[str, str]:
        shown = name.replace(".", "-")  # MLflow takes dots in names of registered models only.
        made = self._client.create_logged_model(experiment_id, name=shown, source_run_id=run_id)
        with write_pyfunc(bundle) as directory:
            self._client.log_model_artifacts(made.model_id, str(directory))
        self._client.finalize_logged_model(made.model_id, "READY")
        # Its place and not `models:/ID`, for the same reason as above.
        return made.artifact_location, made.model_id

    def _make_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except Exception as error:
            if not is_there_already(error):
                raise

    def _has_run(self, run_id: str) -> bool:
        try:
            return bool(self._client.get_run(run_id).info.lifecycle_stage == "active")
        except Exception as error:
            if is_missing(error):
                return False
            raise

    def _known(self, name: str) -> str:
        entries = self.versions(name)
        if entries:
            return f"there are {', '.join(entry.label for entry in entries[:6])}"
        names = ", ".join(dict.fromkeys(entry.name for entry in self.versions())) or "none"
        return f"no model has that name; there are: {names[:200]}. A path of that form is written with './' before it"

    def _pages(self, search: str, query: str | None) -> list[Any]:
        found, token = [], None
        while True:
            page = getattr(self._client, search)(filter_string=query, page_token=token)
            found += page
            token = page.token
            if not token:
                return found


@dataclass(frozen=True)
class RegistrySource:
    """The files of a registered bundle; those of its version that are not in the bundle are never fetched."""

    place: str
    location: str
    uri: str

    def fetch(self, name: str, to: Path) -> None:
        """Download one file of the bundle."""
        inner = posixpath.join(BUNDLE, name)
        with telling(self.uri), tempfile.TemporaryDirectory(dir=to.parent, prefix=".") as place:
            if inner not in self._listed:
                raise NoBundleError(
                    f"{self.place} has no {name!r} of a Sightline model: another program registered it, or files of it "
                    "were removed. Nothing else of it is opened"
                )
            Path(self._files.download_artifacts(inner, dst_path=place)).rename(to)

    @cached_property
    def _files(self) -> Any:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        return get_artifact_repository(self.location, tracking_uri=self.uri, registry_uri=self.uri)

    @cached_property
    def _listed(self) -> set[str]:
        return {entry.path for entry in self._files.list_artifacts(BUNDLE) if not entry.is_dir}


class NoBundleError(NotFoundError):
    """A registered model that is none of ours."""


def check_alias(alias: str) -> str:
    """Return the alias, or raise if MLflow would not take it."""
    if not _ALIAS.fullmatch(alias) or alias.lower() == "latest" or re.fullmatch(r"[vV][0-9]+", alias):
        raise ConfigError(
            f"alias {alias!r} is not usable: take letters, digits, '_' or '-', beginning with a letter, such as "
            "champion; not 'latest', and no 'v' with a number"
        )
    return alias


def _version(entry: Any, aliases: Mapping[str, Any]) -> ModelVersion:
    tags = dict(entry.tags)
    return ModelVersion(
        name=entry.name,
        version=str(entry.version),
        aliases=tuple(sorted(alias for alias, version in aliases.items() if str(version) == str(entry.version))),
        bundle=tags.get(HASH),
        run_id=entry.run_id or None,
        created=datetime.fromtimestamp(entry.creation_timestamp / 1000, UTC).isoformat(timespec="seconds"),
        facts={key.removeprefix(_TAGS): tags[key] for key in sorted(tags) if key.startswith(_TAGS) and key != HASH},
    )
