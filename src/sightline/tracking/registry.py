"""Registered models in MLflow: versions, aliases, and the bundle of each.

Only the bundle's files are ever taken from a registry, and none of its code: MLflow's own loader is not used.
"""

import posixpath
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.config import TrackingConfig
from sightline.errors import ConfigError, NotFoundError
from sightline.secrets import redact
from sightline.tracking.library import is_missing, is_there_already, telling, tracking_uri
from sightline.tracking.pyfunc_files import BUNDLE, write_pyfunc
from sightline.tracking.store import Store
from sightline.workspace import check_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

_TAG = re.compile(r"sightline[._](.+)")
"""Our tags of a version. Unity Catalog allows no dots in the names of tags, so there it is `sightline_…`."""
_HASH, _LOGGED_TAG = "bundle", "logged_model"
"""Tags with the hash of the bundle, and with the id of the logged model that holds the files."""
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
    is_absent = store.database is not None and not store.database.exists() and store.registry_uri == store.uri
    if is_absent and not make:
        return None
    return Registry(store, store.open())


class Registry:
    """The registered models of one MLflow."""

    def __init__(self, store: Store, client: "MlflowClient") -> None:
        self._store, self._client = store, client

    @property
    def place(self) -> str:
        """Where it is, without credentials."""
        return self._store.registry_place

    def versions(self, name: str | None = None) -> list[ModelVersion]:
        """All versions, or those of one model, by name and newest first."""
        with telling(self._store.registry_uri):
            if name is not None:
                found = self._versions_of(self._check_name(name))
            elif self._store.is_unity_catalog:  # It lists versions of one model at a time, by name.
                models = self._pages("search_registered_models")
                found = [version for model in models for version in self._versions_of(model.name)]
            else:
                aliases = {model.name: dict(model.aliases) for model in self._pages("search_registered_models")}
                entries = self._pages("search_model_versions")
                found = [_version(entry, aliases.get(entry.name, {})) for entry in entries]
        return sorted(found, key=lambda version: (version.name, -int(version.version)))

    def by_number(self, name: str, version: str) -> ModelVersion:
        """A version by its number."""
        with telling(self._store.registry_uri):
            aliases = self._aliases(self._check_name(name))
            entry = None if aliases is None else _get(self._client.get_model_version, name, str(int(version)))
        if aliases is None or entry is None:
            raise NotFoundError(f"there is no model {name}/{version} in the registry: {self._known(name)}")
        return _version(entry, aliases)

    def by_alias(self, name: str, alias: str) -> ModelVersion:
        """The version that has an alias."""
        found = self.holder(name, alias)
        if found is None:
            raise NotFoundError(f"no version of model {name!r} has the alias {alias!r}: {self._known(name)}")
        return found

    def holder(self, name: str, alias: str) -> ModelVersion | None:
        """The version that has an alias, if any has."""
        check_alias(alias)
        with telling(self._store.registry_uri):
            number = (self._aliases(self._check_name(name)) or {}).get(alias)
        return self.by_number(name, number) if number is not None else None

    def preferred(self, name: str, alias: str) -> ModelVersion | None:
        """The version with an alias, else the newest; None if there is no such model."""
        if not self._is_name(name):
            return None
        return self.holder(name, alias) or next(iter(self.versions(name)), None)

    def register(
        self,
        name: str,
        bundle: Path,
        *,
        hash: str,
        run_id: str | None,
        facts: Mapping[str, str],
        extras: Sequence[str] = (),
    ) -> ModelVersion:
        """Keep a bundle as the next version of a model; one that is there already stays the version it is.

        Args:
            extras: Of Sightline, which the bundle needs.
        """
        there = next((entry for entry in self.versions(name) if entry.bundle == hash), None)
        if there:
            return there
        with telling(self._store.registry_uri):
            self._make_model(name)
            run_id = run_id if run_id and self._has_run(run_id) else None
            with write_pyfunc(bundle, extras=extras) as directory:
                if self._store.is_unity_catalog:
                    made = self._create_in_unity_catalog(name, directory, {_HASH: hash, **facts}, run_id=run_id)
                else:
                    made = self._create_version(name, directory, {_HASH: hash, **facts}, run_id=run_id)
        return self.by_number(name, str(made.version))

    def _create_in_unity_catalog(
        self, name: str, directory: Path, facts: Mapping[str, str], *, run_id: str | None
    ) -> Any:
        """A version whose files Unity Catalog copies from here; it knows the runs of Databricks only."""
        known = run_id if self._store.is_databricks else None
        return self._client.create_model_version(name, str(directory), run_id=known, tags=_tags(facts, "_"))

    def _create_version(self, name: str, directory: Path, facts: Mapping[str, str], *, run_id: str | None) -> Any:
        """A version whose files are those of a logged model of the experiment."""
        experiment_id = self._store.make_experiment(self._client)
        shown = name.replace(".", "-")  # MLflow takes dots in names of registered models only.
        logged = self._client.create_logged_model(experiment_id, name=shown, source_run_id=run_id)
        self._client.log_model_artifacts(logged.model_id, str(directory))
        self._client.finalize_logged_model(logged.model_id, "READY")
        tags = _tags({**facts, _LOGGED_TAG: logged.model_id}, ".")
        # Given a model without a run, or the source `models:/ID`, a database looks for it in whatever MLflow the
        # process has as its default.
        linked = logged.model_id if run_id or not self._store.is_database else None
        source = logged.artifact_location
        return self._client.create_model_version(name, source, run_id=run_id, tags=tags, model_id=linked)

    def set_alias(self, version: ModelVersion, alias: str) -> None:
        """Give an alias to a version; whichever had it loses it."""
        with telling(self._store.registry_uri):
            self._client.set_registered_model_alias(version.name, check_alias(alias), version.version)

    def delete(self, version: ModelVersion) -> None:
        """Remove a version, and the model itself with its last one."""
        with telling(self._store.registry_uri):
            for alias in version.aliases:
                self._client.delete_registered_model_alias(version.name, alias)
            self._client.delete_model_version(version.name, version.version)
            if logged := version.facts.get(_LOGGED_TAG):
                self._client.delete_logged_model(logged)
            if not self.versions(version.name):
                self._client.delete_registered_model(version.name)

    def source(self, version: ModelVersion) -> "RegistrySource":
        """Where the bundle of a version comes from."""
        with telling(self._store.registry_uri):
            location = self._location(version)
        return RegistrySource(
            f"{version.name}/{version.version}", location, self._store.uri, registry_uri=self._store.registry_uri
        )

    def _location(self, version: ModelVersion) -> str:
        if self._store.is_unity_catalog:
            # Its storage is read with temporary credentials, which MLflow asks for behind a URI of this form only.
            return f"{_LOGGED}{version.name}/{version.version}"
        location: str = self._client.get_model_version_download_uri(version.name, version.version)
        if location.startswith(_LOGGED):
            return str(self._client.get_logged_model(location.removeprefix(_LOGGED)).artifact_location)
        return location

    def _is_name(self, name: str) -> bool:
        return not self._store.is_unity_catalog or name.count(".") == 2

    def _check_name(self, name: str) -> str:
        if not self._is_name(name):
            raise ConfigError(
                f"model {name!r} is not a name of Unity Catalog, where models are registered now: write "
                "CATALOG.SCHEMA.MODEL, such as main.vision.boards"
            )
        return check_name(name)

    def _aliases(self, name: str) -> dict[str, str] | None:
        """The number of the version behind each alias; None if there is no such model."""
        model = _get(self._client.get_registered_model, name)
        return model and {alias: str(version) for alias, version in model.aliases.items()}

    def _versions_of(self, name: str) -> list[ModelVersion]:
        aliases = self._aliases(name)
        if aliases is None:
            return []
        entries = self._pages("search_model_versions", filter_string=f"name = '{name}'")
        if self._store.is_unity_catalog:  # What it finds has no tags.
            entries = [self._client.get_model_version(name, entry.version) for entry in entries]
        return [_version(entry, aliases) for entry in entries]

    def _make_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except Exception as error:
            if not is_there_already(error):
                raise

    def _has_run(self, run_id: str) -> bool:
        run = _get(self._client.get_run, run_id)
        return bool(run and run.info.lifecycle_stage == "active")

    def _known(self, name: str) -> str:
        entries = self.versions(name)
        if entries:
            return f"there are {', '.join(entry.label for entry in entries[:6])}"
        names = ", ".join(dict.fromkeys(entry.name for entry in self.versions())) or "none"
        return f"no model has that name; there are: {names[:200]}. A path of that form is written with './' before it"

    def _pages(self, search: str, **query: str) -> list[Any]:
        found, token = [], None
        while True:
            page = getattr(self._client, search)(page_token=token, **query)
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
    registry_uri: str

    def fetch(self, name: str, to: Path) -> None:
        """Download one file of the bundle."""
        inner = posixpath.join(BUNDLE, name)
        with telling(self.registry_uri), tempfile.TemporaryDirectory(dir=to.parent, prefix=".") as place:
            if inner not in self._listed:
                raise NoBundleError(
                    f"{self.place} has no {name!r} of a Sightline model: another program registered it, or files of it "
                    "were removed. Nothing else of it is opened"
                )
            Path(self._files.download_artifacts(inner, dst_path=place)).rename(to)

    @cached_property
    def _files(self) -> Any:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        with tracking_uri(self.uri):
            return get_artifact_repository(self.location, tracking_uri=self.uri, registry_uri=self.registry_uri)

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


def _get(get: Callable[..., Any], *key: str) -> Any:
    """What MLflow has by some key; None if it says that there is no such thing."""
    try:
        return get(*key)
    except Exception as error:
        if is_missing(error):
            return None
        raise


def _tags(facts: Mapping[str, str], separator: str) -> dict[str, str]:
    return {f"sightline{separator}{key}": redact(value)[:500] for key, value in facts.items()}


def _version(entry: Any, aliases: Mapping[str, Any]) -> ModelVersion:
    facts = {found[1]: value for key, value in sorted(entry.tags.items()) if (found := _TAG.fullmatch(key))}
    return ModelVersion(
        name=entry.name,
        version=str(entry.version),
        aliases=tuple(sorted(alias for alias, version in aliases.items() if str(version) == str(entry.version))),
        bundle=facts.pop(_HASH, None),
        run_id=entry.run_id or None,
        created=datetime.fromtimestamp(entry.creation_timestamp / 1000, UTC).isoformat(timespec="seconds"),
        facts=facts,
    )
