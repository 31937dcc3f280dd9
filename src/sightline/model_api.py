"""The verbs about models that are kept: load, register, compare, promote, delete, import, export."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.config import Config, load_config
from sightline.errors import ConfigError, ExistsError, GateError, NotFoundError
from sightline.workspace import Workspace, check_name, is_location

if TYPE_CHECKING:
    from sightline.detection.disagreement import Comparison
    from sightline.detection.sources.folder import FolderSource
    from sightline.engines.exported import ExportName
    from sightline.models.bundle import Bundle
    from sightline.models.predictor import Predictor
    from sightline.models.reference import Finder
    from sightline.registering.gate import Promotion
    from sightline.registering.scoring import ModelComparison
    from sightline.tracking.registry import ModelVersion, Registry

OnNote = Callable[[str], None]


def load_model(
    ref: str | Path,
    *,
    engine: str = "auto",
    threads: int | None = None,
    size: int | None = None,
    workspace: str | Path | None = None,
    config: Config | None = None,
    on_note: OnNote | None = None,
) -> "Predictor":
    """Load a model, after checking every file of it; no code comes with it.

    Args:
        ref: `name/3` or `name@champion` in the registry; `name`, which is a registered model (its champion, else its
            newest version) or else a run; a path (with a '/'); or the URL of a bucket.
        engine: What runs it: torch, onnxruntime or openvino; `auto` takes the fastest that fits. What is compiled for
            it is kept in the workspace.
        threads: Of the engine; default: one a core.
        size: Side of the square that images are fitted into, if not the one that the model was trained at.
        config: `tracking` says where models are registered, `decode` which images are too large.
        on_note: Called with the model that a name was taken for, where it could mean several, and with the engine.

    >>> import sightline
    >>> model = sightline.load_model("boards@champion")  # doctest: +SKIP
    >>> [found.names for found in model.predict(["a.jpg", "b.jpg"])]  # doctest: +SKIP
    """
    from sightline.cluster.gpus import num_gpus
    from sightline.engines.factory import resolve_engine
    from sightline.engines.opening import open_predictor
    from sightline.engines.settings import resolve_inference

    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}: give 1 or more, or leave it out for one per core")
    given = load_config(flags={"detect": {"threads": threads, "size": size}}).detect
    bundle = _finder(workspace, config, on_note).find(str(ref))
    device, max_pixels = "cuda" if num_gpus() else "cpu", (config or Config()).decode.max_pixels
    name, reason = resolve_engine(bundle, engine, device)
    given = given.model_copy(update={"engine": name})
    settings = resolve_inference(bundle, given, device=device, max_pixels=max_pixels)
    predictor = open_predictor(bundle, settings, cache=Workspace.find(workspace).compiled)
    if on_note and reason:
        on_note(f"engine {predictor.engine}: {reason}")
    return predictor


def register(
    model: str | Path,
    name: str,
    *,
    alias: str | None = None,
    dataset: str | Path | None = None,
    split: str = "test",
    force: bool = False,
    workspace: str | Path | None = None,
    config: Config | None = None,
    progress: Any = None,
    on_note: OnNote | None = None,
) -> "ModelVersion":
    """Keep a model in the registry as the next version of a name; the same model twice is one version.

    Args:
        model: A run, or a bundle by path or URL.
        alias: To give it, through the gate of `promote` if another version has it.
        dataset: What the gate compares on; default: the one that the model was trained on.

    >>> import sightline
    >>> sightline.register("boards-nano-1a2b3c4d", "boards", alias="champion").version  # doctest: +SKIP
    """
    from sightline.models.licence import licence_note
    from sightline.registering.register import register_bundle
    from sightline.tracking.registry import check_alias

    check_name(name)
    if alias:
        check_alias(alias)
    root = Workspace.find(workspace)
    # A run, even if a model of the same name is registered: it is what is to be registered now.
    run = root.runs / str(model)
    given = str(model) if is_location(str(model)) or not run.is_dir() else str(run.resolve())
    bundle = _finder(workspace, config, on_note).find(given)
    owed = licence_note(bundle.info.model, bundle.info.licence)
    if on_note and owed:
        on_note(owed)
    kept = register_bundle(_registry(workspace, config, make=True), name, bundle)
    if alias is None:
        return kept
    shown = dataset or (bundle.info.dataset.name if bundle.info.dataset else None)
    reference = f"{kept.name}/{kept.version}"
    try:
        return promote(
            reference,
            alias,
            dataset=shown,
            split=split,
            force=force,
            workspace=workspace,
            config=config,
            progress=progress,
        ).version
    except (GateError, ConfigError, NotFoundError) as error:
        # The version stays: `promote` can give it the alias later.
        raise type(error)(f"{reference} is registered, but without the alias {alias!r}: {error}") from error


def list_models(
    name: str | None = None, *, workspace: str | Path | None = None, config: Config | None = None
) -> "list[ModelVersion]":
    """The registered models, by name and newest version first.

    >>> import sightline
    >>> [(model.name, model.version, model.aliases) for model in sightline.list_models()]  # doctest: +SKIP
    """
    from sightline.tracking.registry import open_registry

    registry = open_registry((config or Config()).tracking, Workspace.find(workspace).root)
    return registry.versions(name) if registry else []


def find_bundle(
    ref: str | Path,
    *,
    workspace: str | Path | None = None,
    config: Config | None = None,
    on_note: OnNote | None = None,
) -> "Bundle":
    """What a model is, without loading its weights: see `load_model` for its name."""
    return _finder(workspace, config, on_note).find(str(ref))


def compare_models(
    *refs: str | Path,
    dataset: str | Path,
    split: str = "test",
    workspace: str | Path | None = None,
    config: Config | None = None,
    progress: Any = None,
    on_note: OnNote | None = None,
) -> "ModelComparison":
    """Score models on the same images.

    >>> import sightline
    >>> sightline.compare_models("boards/1", "boards/2", dataset="boards").models[0].figures  # doctest: +SKIP
    """
    from sightline.api import open_dataset
    from sightline.cluster.pools import check_loader
    from sightline.data.loader import LoadOptions
    from sightline.registering.scoring import compare_bundles

    if len(refs) < 2:
        raise ConfigError(f"comparing needs two models or more, not {len(refs)}: `sightline models` lists them")
    check_loader(config or Config())
    finder = _finder(workspace, config, on_note)
    bundles = [(str(ref), finder.find(str(ref))) for ref in refs]
    opened = open_dataset(dataset, workspace=workspace)
    loader = LoadOptions.of(config or Config())
    return compare_bundles(bundles, opened, split=split, loader=loader, progress=progress)


def compare_images(
    first: "str | Path | Predictor",
    second: "str | Path | Predictor",
    source: "str | Path | Sequence[str | Path] | FolderSource",
    *,
    where: str | None = None,
    limit: int = 200,
    threshold: float | None = None,
    iou: float = 0.5,
    workspace: str | Path | None = None,
    config: Config | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
    on_note: OnNote | None = None,
) -> "Comparison":
    """Ask two models about the same images; those on which they disagree most come first. No labels are needed.

    Args:
        first: See `load_model`; or what that has given.
        second: Likewise; its classes may stand in another order, for names are compared.
        source: Images as `detect` takes them: a folder, a pattern, a list, an archive, a dataset, a table, a database.
        where: For datasets, tables and databases: a condition in SQL, such as "split='test'".
        limit: The first so many images that can be read.
        threshold: Lowest score of a detection; default: each model's own.
        iou: From which overlap on two boxes are about the same thing.
        config: `source` says how the source is read, `tracking` where models are registered.
        on_progress: Told how many images are done and how many there will be at most; at the end, how many there were.
        on_note: Told what the source was taken for, and of each model what `load_model` tells.

    >>> import sightline
    >>> compared = sightline.compare_images("boards/1", "boards/2", "photos/")  # doctest: +SKIP
    >>> [(one.uri, one.weight) for one in compared.found[:10]]  # doctest: +SKIP
    """
    from sightline.detection.disagreement import find_disagreements
    from sightline.detection.sources.factory import open_source
    from sightline.models.predictor import Predictor

    settings = (config or Config()).source
    if where is not None:
        settings = settings.model_copy(update={"where": where})
    opened, why = open_source(source, settings, Workspace.find(workspace))
    if on_note:
        on_note(f"source: {why}")
    one, other = (
        ref if isinstance(ref, Predictor) else load_model(ref, workspace=workspace, config=config, on_note=on_note)
        for ref in (first, second)
    )
    if on_note and not set(one.classes) & set(other.classes):
        on_note("the models have no class name in common: whatever either finds is a disagreement")
    return find_disagreements(one, other, opened, limit=limit, threshold=threshold, iou=iou, on_progress=on_progress)


def promote(
    ref: str,
    alias: str = "champion",
    *,
    dataset: str | Path | None = None,
    split: str = "test",
    force: bool = False,
    workspace: str | Path | None = None,
    config: Config | None = None,
    progress: Any = None,
) -> "Promotion":
    """Give an alias to a version, unless the version that has it is better on a dataset.

    Args:
        ref: `name/version` or `name@alias`.
        dataset: What both are scored on; may only be left out with `force`, or while nobody has the alias.
        force: Do it even if it is worse.

    Raises:
        GateError: It is worse; the message has the figures.

    >>> import sightline
    >>> sightline.promote("boards/2", "champion", dataset="boards").version.aliases  # doctest: +SKIP
    """
    from sightline.registering.gate import promote as through_gate
    from sightline.tracking.registry import check_alias

    check_alias(alias)
    registry = _registry(workspace, config)
    version = _version(registry, ref)
    held = registry.holder(version.name, alias)
    if held and held.version != version.version and dataset is None and not force:
        raise ConfigError(f"{held.label} has that alias: say with --dataset on which images {ref} must be as good")

    def compare(new: "ModelVersion", old: "ModelVersion") -> "ModelComparison":
        assert dataset is not None
        names = [f"{version.name}/{version.version}" for version in (new, old)]
        return compare_models(
            *names, dataset=dataset, split=split, workspace=workspace, config=config, progress=progress
        )

    return through_gate(registry, version, alias, compare=compare if dataset else None, force=force)


def delete_model(
    ref: str, *, workspace: str | Path | None = None, config: Config | None = None
) -> "list[ModelVersion]":
    """Remove a version (`name/3`), or a model with all of its versions (`name`), from the registry.

    Returns:
        What was removed. Copies in workspaces, and the runs they came from, stay.

    >>> import sightline
    >>> sightline.delete_model("boards/1")  # doctest: +SKIP
    """
    registry = _registry(workspace, config)
    found = versions_to_delete(ref, workspace=workspace, config=config)
    for version in found:
        registry.delete(version)
    return found


def versions_to_delete(
    ref: str, *, workspace: str | Path | None = None, config: Config | None = None
) -> "list[ModelVersion]":
    """What `delete_model` would remove."""
    registry = _registry(workspace, config)
    if is_location(ref) or "@" in ref:
        return [_version(registry, ref)]
    found = registry.versions(check_name(ref))
    if not found:
        raise NotFoundError(f"there is no registered model {ref!r}: `sightline models` lists them")
    return found


def import_model(
    file: str | Path,
    to: str | Path,
    *,
    model: str | None = None,
    classes: str | tuple[str, ...] | None = None,
    size: int | None = None,
    licence: str | None = None,
    workspace: str | Path | None = None,
    config: Config | None = None,
) -> "Bundle":
    """Make a bundle of weights that torchvision, or anything with its models, has saved, or of a YOLO in ONNX.

    No code in the file is run. An ONNX file holds none; it is looked through, then tried on a blank image.

    Args:
        file: A state_dict that torch wrote (.pt, .pth), read with `weights_only`; .safetensors; or .onnx.
        to: A new directory (with a '/'), or a name to register it under.
        model: The architecture, such as fasterrcnn-mobilenet; an ONNX file needs none.
        classes: Names in the model's order without the background; as one text: a,b,c, or a file with one on each
            line, or a YAML file with `names`. Default: those that an ONNX file brings.
        size: Side of the square that images are fitted into; default: `train.size` of the settings, else the size at
            which a YOLO was trained, as its file says, else the model's usual.
        licence: Of an ONNX file; default: the one it brings, else "unknown".

    >>> import sightline
    >>> sightline.import_model("net.pth", "./net", model="ssdlite", classes="cat,dog").hash  # doctest: +SKIP
    >>> sightline.import_model("yolo11n.onnx", "./yolo").info.licence  # doctest: +SKIP
    """
    from sightline.registering.conversion import convert_file, parse_classes
    from sightline.registering.register import register_bundle

    names = parse_classes(classes) if isinstance(classes, str) else classes
    source = Path(file).expanduser()

    def convert(place: Path) -> "Bundle":
        side = size or (config or Config()).train.size
        return convert_file(source, place, model=model, classes=names, size=side, licence=licence)

    if is_location(str(to)):
        place = Path(to).expanduser()
        if place.exists():
            raise ExistsError(f"{str(place)!r} is there already: give another --to, or remove it")
        return convert(place)
    check_name(str(to))
    with tempfile.TemporaryDirectory(prefix="sightline-") as temporary:
        bundle = convert(Path(temporary) / "model")
        kept = register_bundle(_registry(workspace, config, make=True), str(to), bundle)
    return _finder(workspace, config, None).find(f"{kept.name}/{kept.version}")


def _finder(workspace: str | Path | None, config: Config | None, on_note: OnNote | None) -> "Finder":
    from sightline.training.run_model import make_finder

    return make_finder(Workspace.find(workspace), (config or Config()).tracking, on_note or (lambda note: None))


def _registry(workspace: str | Path | None, config: Config | None, *, make: bool = False) -> "Registry":
    from sightline.tracking.registry import open_registry

    found = open_registry((config or Config()).tracking, Workspace.find(workspace).root, make=make)
    if found is None:
        raise NotFoundError("no model is registered yet: `sightline register RUN --name NAME` keeps one")
    return found


def _version(registry: "Registry", ref: str) -> "ModelVersion":
    """A registered version by `name/number` or `name@alias`."""
    name, slash, number = ref.partition("/")
    if slash and number.isdecimal():
        return registry.by_number(check_name(name), number)
    name, at, alias = ref.partition("@")
    if at:
        return registry.by_alias(check_name(name), alias)
    raise ConfigError(
        f"{ref!r} is no registered version: write NAME/NUMBER or NAME@ALIAS; `sightline models` lists them"
    )


def export_model(
    model: str | Path,
    *,
    to: "ExportName",
    output: str | Path | None = None,
    int8: bool = False,
    calibrate: str | Path | None = None,
    workspace: str | Path | None = None,
    config: Config | None = None,
    on_note: OnNote | None = None,
) -> Path:
    """Write a model as ONNX or OpenVINO files, for other programs to run; returns their directory.

    That of a YOLO is a bundle too, of the kind that `import_model` makes: it detects without the extra `yolo`.

    Args:
        model: A run, a registered model, a path or a URL: see `load_model`.
        output: A new directory; default: one in `exports` of the workspace.
        int8: In 8-bit integers, which is quicker and a little less exact.
        calibrate: The dataset whose images show what numbers the integers have to cover; int8 needs it.
        config: `loader` and `decode` say how images are read.
        on_note: Called with a note if the model is that of an unfinished run.

    >>> import sightline
    >>> sightline.export_model("boards-nano-1a2b3c4d", to="onnx")  # doctest: +SKIP
    """
    from sightline.api import open_dataset
    from sightline.cluster.pools import check_loader
    from sightline.data.loader import LoadOptions
    from sightline.engines.calibration import calibration_images
    from sightline.engines.exported import refuse_existing, write_export
    from sightline.engines.int8 import quantize_form
    from sightline.engines.onnx_form import onnx_form
    from sightline.models.bundle import CARD, DESCRIPTION, ONNX
    from sightline.models.factory import YOLO_ONNX
    from sightline.models.yolo_inference import GRAPH
    from sightline.models.yolo_metadata import NAMES as YOLOS
    from sightline.report.card import model_card

    if int8 and calibrate is None:
        raise ConfigError("int8 needs images to calibrate with: give a dataset with --calibrate")
    if calibrate is not None and not int8:
        raise ConfigError("calibration is for int8: give --int8 too, or leave --calibrate out")
    check_loader(config or Config())
    bundle = _finder(workspace, config, on_note).find(str(model))
    source, info, said = bundle.source(), bundle.info, bundle.info.preprocessing
    precision: Literal["float32", "int8"] = "int8" if int8 else "float32"
    name = Path(model).name.replace("@", "-")
    directory = (
        Path(output)
        if output
        else Workspace.find(workspace).make().root / "exports" / f"{name}-{to}{'-int8' if int8 else ''}"
    )
    refuse_existing(directory)  # Before the work, not after it.
    form = onnx_form(source)
    if calibrate is not None:
        options = LoadOptions.of(config or Config())
        opened = open_dataset(calibrate, workspace=workspace)
        form = quantize_form(form, source, calibration_images(source.inference, opened, options, said))
    about = {"name": name, "model": info.model, "classes": list(info.classes), "licence": info.licence}
    others: dict[str, bytes] = {}
    if info.model in YOLOS:  # What is exported of them detects without the package, as a bundle of its own.
        kept = info.model_copy(update={"model": YOLO_ONNX})
        others = {ONNX: form[GRAPH], DESCRIPTION: kept.to_json().encode(), CARD: model_card(kept).encode()}
    write_export(directory, form, source, to=to, precision=precision, preprocessing=said, about=about, others=others)
    return directory
