"""How people name a model, and the bundle that is meant.

`boards/3`, `boards@champion`   a version in the registry, by number or alias
`boards`                        a registered model: its `champion`, else its newest version; else a run of that name
`./boards`, `/models/boards`    a bundle, or the directory of a run
`s3://bucket/boards`            a bundle in a bucket
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sightline.config import TrackingConfig
from sightline.data.location import without_secrets
from sightline.data.storage import Folder
from sightline.errors import FormatError, NotFoundError, TrackingError
from sightline.models.bundle import DESCRIPTION, Bundle, open_bundle
from sightline.models.cache import FolderSource, bring_bundle
from sightline.workspace import BEST, MODEL, Workspace, check_name, is_location

if TYPE_CHECKING:
    from sightline.tracking.registry import ModelVersion, Registry

CHAMPION = "champion"
"""The alias that a name without version means."""

_PICKLES = frozenset({".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib"})
_VERSION = re.compile(r"(?P<name>[^/@]+)/(?P<version>[0-9]+)")
_ALIAS = re.compile(r"(?P<name>[^/@]+)@(?P<alias>[^/@]+)")

OnNote = Callable[[str], None]


@dataclass(frozen=True)
class Finder:
    """Finds bundles by name, path or URL.

    Attributes:
        on_note: Told what a name was taken for, where it could mean several things.
        open_run: Opens the best model of the run in a directory; None if it holds no run with one.
    """

    workspace: Workspace
    tracking: TrackingConfig
    on_note: OnNote = lambda note: None
    open_run: "Callable[[Path, OnNote], Bundle | None]" = lambda directory, on_note: None

    def find(self, reference: str) -> Bundle:
        """The bundle that is meant, every file of it checked; see `resolve`."""
        return self.resolve(reference)[0]

    def resolve(self, reference: str) -> "tuple[Bundle, ModelVersion | None]":
        """The bundle that is meant, every file of it checked, and its version if it came from the registry.

        Raises:
            NotFoundError: There is no such model.
            FormatError: It is a file that might run code when it is loaded.
            DamagedError: It is not as it was written.
        """
        self._refuse_pickle(reference)
        if "://" in reference:
            source = FolderSource(Folder.open(reference))
            return self._open_folder(source) if source.folder.is_local else bring_bundle(
                source, self.workspace.make().bundles
            ), None
        if found := _ALIAS.fullmatch(reference):
            registry = self._registry(found["name"])
            return self._bring(registry, registry.by_alias(found["name"], found["alias"]))
        if found := _VERSION.fullmatch(reference):
            registry = self._registry(found["name"])
            return self._bring(registry, registry.by_number(found["name"], found["version"]))
        if is_location(reference):
            return self._open(Path(reference).expanduser()), None
        return self._by_name(check_name(reference))

    def _refuse_pickle(self, reference: str) -> None:
        suffix = PurePosixPath(reference.partition("?")[0]).suffix.lower()
        is_directory = Path(reference).is_dir() or (self.workspace.runs / reference).is_dir()
        if suffix in _PICKLES and not is_directory:
            shown = without_secrets(reference)
            raise FormatError(
                f"{shown!r} is not opened: files of type {suffix} can run code when they are loaded. Make a bundle of "
                f"its weights first: sightline import {PurePosixPath(shown).name} --model FAMILY --classes A,B --to DIR"
            )

    def _open_folder(self, source: FolderSource) -> Bundle:
        return self._open(Path(source.folder.path))

    def _open(self, place: Path) -> Bundle:
        """The bundle at a path, or in the directory of a run."""
        if place.is_file():
            raise FormatError(
                f"{str(place)!r} is a file; a model is a directory. Make one of weights with: "
                f"sightline import {place.name} --model FAMILY --classes A,B --to DIR"
            )
        return self.open_run(place, self.on_note) or open_bundle(place / MODEL if (place / MODEL).is_dir() else place)

    def _by_name(self, name: str) -> "tuple[Bundle, ModelVersion | None]":
        run = self.workspace.runs / name
        has_run = (run / MODEL / DESCRIPTION).is_file() or any((run / BEST).glob("step-*"))
        registry, registered = self._registered(name, needed=not has_run)
        if registered is None and run.is_dir() and not has_run:
            raise NotFoundError(
                f"run {name!r} has no model yet: it has not reached its first evaluation. The same train command "
                "goes on with it"
            )
        if registered is None and not has_run:
            raise NotFoundError(
                f"there is no model {name!r}: no registered model and no run in {str(self.workspace.runs)!r} "
                "has that name. `sightline models` and `sightline runs` list them; a path must contain a '/'"
            )
        if registry is None or registered is None:
            return self._open(run), None
        instead = f", not the run of the same name (write {run / MODEL})" if has_run else ""
        self.on_note(f"model {name!r} is {registered.label} of the registry{instead}")
        return self._bring(registry, registered)

    def _registered(self, name: str, *, needed: bool) -> "tuple[Registry | None, ModelVersion | None]":
        """The registry, and the version of it that a name alone means."""
        try:
            registry = self._open_registry()
            return registry, registry.preferred(name, CHAMPION) if registry else None
        except TrackingError as error:
            if needed:
                raise
            self.on_note(f"the registry was not asked for a model {name!r}: {error}")
            return None, None

    def _registry(self, name: str) -> "Registry":
        found = self._open_registry()
        if found is None:
            raise NotFoundError(
                f"there is no registered model {name!r}: `sightline register RUN --name {name}` makes one, and a path "
                "that looks like one is written with './' before it"
            )
        return found

    def _open_registry(self) -> "Registry | None":
        from sightline.tracking.registry import open_registry

        return open_registry(self.tracking, self.workspace.root)

    def _bring(self, registry: "Registry", version: "ModelVersion") -> "tuple[Bundle, ModelVersion]":
        return bring_bundle(registry.source(version), self.workspace.make().bundles, expected=version.bundle), version
