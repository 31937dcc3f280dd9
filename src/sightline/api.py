"""One function a verb. The command line and the app only call these."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.config import Config, ExportFormatName, load_config
from sightline.data.dataset import Dataset
from sightline.data.ingest import Progress, Source, check_settings, write_dataset
from sightline.data.location import without_secrets
from sightline.data.schema import DatasetInfo, has_manifest, read_manifest
from sightline.data.storage import Folder
from sightline.data.target import DatasetTarget
from sightline.errors import ConfigError, TrackingError
from sightline.report.inspection import Inspection
from sightline.structures import Detections
from sightline.workspace import Workspace, check_name, check_writable, is_location

if TYPE_CHECKING:
    from sightline.data.formats.deeppcb_results import DeepPcbOutput
    from sightline.metrics.classification import ClassificationResult
    from sightline.metrics.result import DetectionResult
    from sightline.tracking.comparison import Comparison
    from sightline.tracking.listing import TrackedRun
    from sightline.training.callbacks import OnStep
    from sightline.training.run import RunResult


def ingest(
    source: str | Path,
    to: str,
    *,
    workspace: str | Path | None = None,
    config: Config | None = None,
    replace: bool = False,
    progress: Progress | None = None,
    recognised: Callable[[str, str], None] | None = None,
    **settings: Any,
) -> DatasetInfo:
    """Turn annotated images into a dataset.

    Args:
        source: A folder, file, bucket URL or database URL.
        to: A name in the workspace, or a path or URL.
        recognised: Told the format and what gave it away, before the work begins.
        settings: Any of the settings of `ingest`, such as format="voc" or split="train=0.9,val=0.1".

    Returns:
        What is in the dataset, and what could not be used.

    >>> import sightline
    >>> info = sightline.ingest("VOC2007", to="voc", split="train=0.9,val=0.1")  # doctest: +SKIP
    """
    from sightline.cluster.pools import check_ingest
    from sightline.data.formats.factory import open_reader

    config = _with_settings(config, "ingest", settings)
    target = DatasetTarget(Workspace.find(workspace).dataset_location(to), replace=replace)
    check_settings(config)
    check_ingest(config)
    target.refuse_existing()
    reader, format_name, why = open_reader(str(source), config.ingest)
    if recognised:
        recognised(format_name, why)
    if not is_location(to):
        Workspace.find(workspace).make()
    return write_dataset(Source(reader, without_secrets(str(source)), format_name), target, config, progress)


def synth(
    kind: Literal["boards", "shapes", "shape-classes"],
    to: str,
    *,
    images: int = 1000,
    seed: int = 0,
    size: int | None = None,
    workspace: str | Path | None = None,
    config: Config | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> DatasetInfo:
    """Make a dataset of synthetic images: circuit boards with defects, or simple shapes.

    >>> import sightline
    >>> info = sightline.synth("boards", to="boards", images=200, seed=1)  # doctest: +SKIP
    """
    from sightline.cluster.pools import check_ingest
    from sightline.data.synth.reader import SynthReader

    check_ingest(config or Config())
    target = DatasetTarget(Workspace.find(workspace).dataset_location(to), replace=replace)
    target.refuse_existing()
    reader = SynthReader(kind, images=images, seed=seed, size=size)
    source = Source(reader, f"synth {kind}, seed {seed}, {images} images of {reader.size} pixels", "synth")
    if not is_location(to):
        Workspace.find(workspace).make()
    return write_dataset(source, target, config or Config(), progress)


def open_dataset(reference: str | Path, *, workspace: str | Path | None = None) -> Dataset:
    """Open a dataset by name, path or URL.

    >>> import sightline
    >>> for sample in sightline.open_dataset("boards").select("test"):  # doctest: +SKIP
    ...     print(sample.file_name, sample.annotation.boxes)
    """
    return Dataset.open(Workspace.find(workspace).dataset_location(str(reference)))


def list_datasets(*, workspace: str | Path | None = None) -> list[DatasetInfo]:
    """The datasets of the workspace, sorted by name.

    >>> import sightline
    >>> [info.name for info in sightline.list_datasets()]  # doctest: +SKIP
    """
    directory = Workspace.find(workspace).datasets
    places = sorted(directory.iterdir()) if directory.is_dir() else []
    return [read_manifest(folder) for folder in map(Folder.open, places) if has_manifest(folder)]


def export_dataset(
    reference: str | Path,
    to: str | Path,
    *,
    format: ExportFormatName,
    workspace: str | Path | None = None,
    progress: Any = None,
) -> int:
    """Write a dataset as Pascal VOC, COCO or YOLO files into a new directory; returns the number of images.

    >>> import sightline
    >>> sightline.export_dataset("boards", "boards-coco", format="coco")  # doctest: +SKIP
    """
    from sightline.data.export import export_dataset as export

    return export(open_dataset(reference, workspace=workspace), Path(to), format, progress=progress)


def inspect(
    reference: str | Path, *, html: str | Path | None = None, workspace: str | Path | None = None, progress: Any = None
) -> Inspection:
    """Look at a dataset: counts, sizes, duplicates, suspicious boxes, rejects; also as one HTML page.

    >>> import sightline
    >>> sightline.inspect("boards", html="boards.html").num_duplicates  # doctest: +SKIP
    """
    from sightline.report.inspection import inspect_dataset
    from sightline.report.page import write_inspection_page

    dataset = open_dataset(reference, workspace=workspace)
    inspection = inspect_dataset(dataset, progress=progress)
    if html:
        write_inspection_page(dataset, inspection, Path(html))
    return inspection


def train(
    dataset: str | Path,
    *,
    workspace: str | Path | None = None,
    config: Config | None = None,
    name: str | None = None,
    register: str | None = None,
    fresh: bool = False,
    on_step: "OnStep | None" = None,
    on_scores: Callable[[int, dict[str, float]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_note: Callable[[str], None] | None = None,
    on_workers: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> "RunResult":
    """Train a model on a dataset, or go on with the unfinished run of the same settings.

    Args:
        name: What to call the run; default: a name made from its settings and dataset.
        register: Keep the best model in the registry under this name.
        fresh: Start anew, even if there is such a run.
        on_step: Told of every step.
        on_scores: Told the epoch and the scores of every evaluation.
        should_stop: Asked after every step; the run saves itself and raises `Stopped`.
        on_note: Told which model and weights were chosen and why, where that was left open, and what was loaded.
        on_workers: Told how many workers are alive, and how many there should be, whenever that changes.
        settings: Any of the settings of `train`, such as model="ssdlite" or epochs=10; `workers` is how many train,
            `oversubscribe` starts them even where the machine is too small for them.

    >>> import sightline
    >>> sightline.train("boards", model="nano", epochs=10).best_score  # doctest: +SKIP
    """
    from sightline.model_api import register as keep
    from sightline.tracking.mlflow_tracker import open_tracker
    from sightline.training.callbacks import Callbacks
    from sightline.training.identity import choose_name
    from sightline.training.launch import joined_rank
    from sightline.training.preflight import check_cores
    from sightline.training.resolve import resolve_training
    from sightline.training.run import follow_run, train_run

    opened = open_dataset(dataset, workspace=workspace)
    spread = {"count": settings.pop("workers", None), "oversubscribe": settings.pop("oversubscribe", None)}
    if register is not None and check_name(register) and not (config or Config()).tracking.enabled:
        raise ConfigError(f"--register {register} keeps the model in MLflow, and --no-track keeps nothing there")
    config = _with_settings(config, "workers", {key: value for key, value in spread.items() if value is not None})
    config = _with_settings(config, "train", settings)
    given: dict[str, Any] = {"on_step": on_step, "on_scores": on_scores, "should_stop": should_stop}
    given |= {"on_note": on_note, "on_workers": on_workers}
    callbacks = Callbacks(**{name: value for name, value in given.items() if value is not None})
    runs = Workspace.find(workspace).runs
    if joined_rank() > 0:
        return follow_run(opened, config, runs, name=name, callbacks=callbacks)
    check_cores(config)  # Before weights are downloaded.
    config, notes = resolve_training(config, opened, workspace=Workspace.find(workspace))
    for note in notes:
        callbacks.on_note(note)
    directory = runs / (check_name(name) if name else choose_name(runs, opened, config))
    check_writable(directory)
    tracker = open_tracker(config.tracking, Workspace.find(workspace).make().root)
    result = train_run(opened, config, directory, callbacks=callbacks, fresh=fresh, tracker=tracker)
    if register is None:
        return result
    try:
        kept = keep(str(directory.resolve()), name=register, workspace=workspace, config=config)
    except TrackingError as error:
        raise TrackingError(
            f"the run is whole, but its model is not registered. Later: sightline register {result.name} "
            f"--name {register}. {error}"
        ) from None
    return dataclasses.replace(result, registered=f"{kept.name}/{kept.version}")


def list_runs(
    *, workspace: str | Path | None = None, config: Config | None = None, limit: int | None = None
) -> "list[TrackedRun]":
    """The tracked runs, newest first.

    >>> import sightline
    >>> [(run.name, run.status, run.score) for run in sightline.list_runs()]  # doctest: +SKIP
    """
    from sightline.tracking.listing import list_runs as listed

    return listed((config or Config()).tracking, Workspace.find(workspace).root, limit=limit)


def compare_runs(*names: str, workspace: str | Path | None = None, config: Config | None = None) -> "Comparison":
    """Runs side by side: settings and machines where they differ, and all results.

    Args:
        names: Two or more names of runs (the newest of a name), or the first letters of their ids.

    >>> import sightline
    >>> sightline.compare_runs("boards-nano-1a2b3c4d", "boards-nano-5e6f7a8b").settings  # doctest: +SKIP
    """
    from sightline.tracking.comparison import compare
    from sightline.tracking.listing import choose_runs

    if len(names) < 2:
        raise ConfigError(f"comparing needs two runs or more, not {len(names)}: `sightline runs` lists them")
    return compare(choose_runs(list_runs(workspace=workspace, config=config), list(names)))


def evaluate(
    model: str | Path,
    dataset: str | Path,
    *,
    split: str = "test",
    iou: float | None = None,
    size: int | None = None,
    score_threshold: float | None = None,
    batch: int = 8,
    engine: str | None = None,
    deeppcb: "DeepPcbOutput | None" = None,
    workspace: str | Path | None = None,
    config: Config | None = None,
    progress: Any = None,
    on_note: Callable[[str], None] | None = None,
) -> "DetectionResult | ClassificationResult":
    """Score a model on a split of a dataset; precision, recall and F1 at the threshold that `detect` would use.

    Args:
        model: A run, a registered model, a path or a URL: see `load_model`.
        iou: One overlap for mAP, precision, recall and F1, instead of COCO's.
        size: Side of the square that images are fitted into, if not the one that the model was trained at.
        score_threshold: For precision, recall, F1 and the confusion matrix; default: the one that validation chose,
            else 0.3. It is never chosen on the images that are scored.
        batch: Images that go through the model at once.
        engine: What runs the model: see `load_model`; default: torch, or `auto` for a model that came as an ONNX file.
        deeppcb: Where to write what was found, in the form of DeepPCB's own evaluation.
        config: `loader` and `decode` say how images are read, `tracking` where models are registered.
        on_note: Called with the model that a name was taken for, where it could mean several, and with the threshold.

    >>> import sightline
    >>> sightline.evaluate("boards-nano-1a2b3c4d", "boards", split="test").map50  # doctest: +SKIP
    """
    from sightline.cluster.pools import check_loader
    from sightline.data.formats.deeppcb_results import DeepPcbResults
    from sightline.data.loader import LoadOptions
    from sightline.engines.opening import open_predictor
    from sightline.engines.settings import resolve_inference
    from sightline.models.predictor import threshold_note
    from sightline.registering.scoring import reference_predictor
    from sightline.training.evaluate import check_classes, make_metric
    from sightline.training.evaluate import evaluate as score
    from sightline.training.precision import pick_device
    from sightline.training.run_model import make_finder

    config = config or Config()
    check_loader(config)
    root = Workspace.find(workspace)
    bundle = make_finder(root, config.tracking, on_note or (lambda note: None)).find(str(model))
    opened = open_dataset(dataset, workspace=workspace)
    check_classes(bundle.info, opened)
    max_pixels = config.decode.max_pixels
    if engine is None:
        predictor = reference_predictor(bundle, size=size, max_pixels=max_pixels)
    else:
        given = load_config(flags={"detect": {"size": size}}).detect.model_copy(update={"engine": engine})
        device = pick_device("auto").type
        settings = resolve_inference(bundle, given, device=device, max_pixels=max_pixels)
        predictor = open_predictor(bundle, settings, cache=root.compiled)
    chosen = opened.select(split)
    threshold = predictor.resolve_threshold(score_threshold)
    if on_note and bundle.info.task == "detection":
        on_note(f"precision, recall and F1 at {threshold_note(bundle.info, score_threshold)}")
    metric = make_metric(predictor.task, opened, iou=iou, score_threshold=threshold)
    results = DeepPcbResults(deeppcb, opened.classes, score_threshold=threshold) if deeppcb else None

    def on_detections(position: int, detections: Detections) -> None:
        if results:
            results.add(chosen[position].file_name, detections.boxes, detections.scores, detections.labels)

    loader = LoadOptions.of(config, batch=batch)
    return score(predictor, chosen, metric, loader=loader, progress=progress, on_detections=on_detections)


def _with_settings(config: Config | None, section: str, settings: dict[str, Any]) -> Config:
    if not settings:
        return config or Config()
    values = (config or Config()).model_dump()
    values[section].update(settings)
    return load_config(flags=values)
