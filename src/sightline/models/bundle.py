"""A bundle: a model as it is kept, moved and loaded, in one directory that is complete or absent, without pickle.

model/
weights.safetensors     the weights; or model.onnx, the whole network, of a model that came as an ONNX file
model.json              what it is: architecture, classes, preprocessing, figures, where it comes from
README.md               the model card
picture-00.jpg …        what it finds in some images, shown in the card
manifest.json           size and SHA-256 of each file; its own hash is the bundle's identity
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from sightline.data.atomic import partial_directory, publish_directory, recover_directory
from sightline.data.disk import read_patiently, status
from sightline.data.manifest import MANIFEST, parse_manifest, verify_manifest, write_manifest
from sightline.errors import ConfigError, DamagedError, FormatError, NotFoundError, StorageError
from sightline.models.factory import YOLO_ONNX, family_of, make_model
from sightline.models.inference import InferenceModel, ModelSource
from sightline.models.info import (
    DatasetNote,
    Figures,
    ModelInfo,
    RunNote,
    figures_by_class,
    finite,
    read_info,
)
from sightline.models.preprocessor import preprocessing_of
from sightline.models.weights import Weights, plain_weights, refuse_not_finite
from sightline.models.yolo_onnx import YoloOnnx, load_yolo, refuse_network
from sightline.tracking.machine import library_versions

if TYPE_CHECKING:
    from sightline.models.detector import Detector

WEIGHTS, ONNX, DESCRIPTION, CARD = "weights.safetensors", "model.onnx", "model.json", "README.md"


@dataclass(frozen=True)
class Bundle:
    """A bundle whose every file was seen to be as it was written.

    Attributes:
        hash: Its identity: equal for the same bytes, wherever they lie.
    """

    path: Path
    info: ModelInfo
    hash: str

    def load(self, *, size: int | None = None) -> "Detector":
        """The network, ready to detect; it takes images of another size if one is given.

        Raises:
            DamagedError: It is not a model of this version.
            ConfigError: It came as an ONNX file, which has no network.
        """
        info = self.info
        if info.model == YOLO_ONNX:
            refuse_network()
        try:
            model = make_model(info.model, num_classes=len(info.classes), size=size or info.size)
            model.load_state_dict(_read_weights(self.path / WEIGHTS))
        except (RuntimeError, SafetensorError, OSError, ConfigError) as error:
            reason = " ".join(str(error).split())[:300]
            raise DamagedError(f"{str(self.path)!r} is not a model of this version: {reason}") from None
        self._check_preprocessing(model.inference, size)
        return model.eval()

    def source(self, *, size: int | None = None) -> ModelSource:
        """What an engine is made of; the network is loaded when an engine needs it.

        Raises:
            DamagedError: It is not a model of this version.
            ConfigError: It takes images of one size only, and that is another.
        """
        if self.info.model == YOLO_ONNX:
            source = self._load_onnx(size).source(self.hash)
        else:
            inference = self._make_inference(size or self.info.size)
            if inference is None:
                model = self.load(size=size)
                return model.source(self.hash)
            source = ModelSource(inference, lambda: self.load(size=size), key=self.hash)
        self._check_preprocessing(source.inference, size)
        return source

    def _make_inference(self, size: int) -> InferenceModel | None:
        try:
            return family_of(self.info.model).make_inference(size)
        except ConfigError as error:
            raise DamagedError(f"{str(self.path)!r} is not a model of this version: {error}") from None

    def _check_preprocessing(self, model: InferenceModel, size: int | None) -> None:
        own, said = preprocessing_of(model), self.info.preprocessing
        # The canvas and the decoding are for the bundle to choose, whatever it has learned from.
        chosen = {"square": said.square, "reduced_decode": said.reduced_decode}
        if size is None and own.model_copy(update=chosen) != said:
            raise DamagedError(
                f"{str(self.path)!r} wants images prepared as {said}; this version of Sightline prepares them as "
                f"{own}: use the version that made it ({self.info.versions.get('sightline')})"
            )

    def _load_onnx(self, size: int | None) -> YoloOnnx:
        preprocessing = self.info.preprocessing
        try:
            return load_yolo(
                self.path / ONNX,
                size=size or preprocessing.size,
                stride=preprocessing.multiple,
                num_classes=len(self.info.classes),
            )
        except (FormatError, NotFoundError, ConfigError) as error:
            if size is not None and isinstance(error, ConfigError):
                raise
            raise DamagedError(f"{str(self.path)!r} is not a model of this version: {error}") from None

    @property
    def pictures(self) -> list[Path]:
        """What the card shows."""
        return sorted(self.path.glob("picture-*.jpg"))


def open_bundle(directory: Path) -> Bundle:
    """Check every file of a bundle and read what it is.

    Raises:
        NotFoundError: There is none.
        DamagedError: Anything is missing, changed or added.
        StorageError: The disk cannot be read, which says nothing about the bundle.
    """
    return read_patiently(lambda: _open(directory), what=f"read {str(directory)!r}")


def _open(directory: Path) -> Bundle:
    recover_directory(directory)
    while True:
        if status(directory / DESCRIPTION) is None:
            raise NotFoundError(f"there is no model at {str(directory)!r}: `sightline train DATASET` makes one")
        inode = _inode(directory)
        try:
            found = verify_manifest(directory)
            bundle = Bundle(directory, read_info(directory / DESCRIPTION), found)
        except DamagedError:
            if _inode(directory) == inode:
                raise
        else:
            if _inode(directory) == inode:
                return bundle
        # Another model took its place meanwhile, so files of two were read.


def _read_weights(file: Path) -> Weights:
    """Read as bytes, for what libraries say of a disk that fails does not tell it from a damaged file."""
    from safetensors.torch import load

    weights: Weights = load(read_patiently(file.read_bytes, what=f"read {str(file)!r}"))
    return weights


def _inode(directory: Path) -> int | None:
    try:
        return directory.stat().st_ino
    except FileNotFoundError:
        return None


def describe(
    model: "Detector | YoloOnnx",
    *,
    name: str,
    classes: tuple[str, ...],
    score_threshold: float | None = None,
    metrics: Mapping[str, float] | None = None,
    per_class: Mapping[str, float] | None = None,
    dataset: DatasetNote | None = None,
    run: RunNote | None = None,
    licence: str | None = None,
) -> ModelInfo:
    """What a model is, with what follows from the model itself.

    Args:
        name: Of the architecture.
        licence: Of the architecture; None takes that of the family.
        per_class: Figures named `NAME/INDEX OF THE CLASS`.
    """
    figures: Figures = finite(metrics or {})
    return ModelInfo(
        model=name,
        task="detection" if name == YOLO_ONNX else family_of(name).task,
        classes=classes,
        preprocessing=preprocessing_of(model.inference),
        score_threshold=score_threshold,
        metrics=figures,
        per_class=figures_by_class(finite(per_class or {}), len(classes)),
        dataset=dataset,
        run=run,
        licence=licence or family_of(name).licence,
        versions=library_versions(),
    )


def save_bundle(directory: Path, weights: Weights | bytes, info: ModelInfo, others: Mapping[str, bytes]) -> Bundle:
    """Write a bundle; the directory is complete or absent, and when this returns it survives a crash.

    Args:
        weights: Tensors, or a whole ONNX file.
        others: The card and its pictures, by name.

    Raises:
        NotFiniteError: The weights are not finite; nothing is written.
        StorageError: The disk refused.
    """
    if not isinstance(weights, bytes):
        refuse_not_finite(weights)
    from safetensors.torch import save_file

    try:
        with partial_directory(directory) as partial:
            if isinstance(weights, bytes):
                (partial / ONNX).write_bytes(weights)
            else:
                save_file(plain_weights(weights), partial / WEIGHTS)
            (partial / DESCRIPTION).write_text(info.to_json(), "utf-8")
            for name, content in others.items():
                (partial / name).write_bytes(content)
            write_manifest(partial)
            kept = _same_model(directory, partial, info)
            if kept:  # A run that had ended was started again.
                return kept
            publish_directory(partial, directory)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot write a model to {str(directory)!r}: {error}") from error
    return open_bundle(directory)


def _same_model(directory: Path, partial: Path, info: ModelInfo) -> Bundle | None:
    """The bundle that is there already, if it is whole and of the same weights and figures."""
    try:
        found = open_bundle(directory)
    except (NotFoundError, DamagedError):
        return None
    manifests = [parse_manifest((place / MANIFEST).read_bytes(), str(place)) for place in (directory, partial)]
    old, new = ([files.get(name) for name in (WEIGHTS, ONNX)] for files in manifests)
    return found if old == new and found.info.is_like(info) else None
