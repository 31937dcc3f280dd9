"""The verbs about detection over many images: detect, estimate, list, query."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.config import Config, DetectConfig, SourceConfig, load_config
from sightline.errors import NotFoundError, StorageError, TooManyRejectedError
from sightline.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

    from sightline.detection.browse import JobBrowser
    from sightline.detection.detect import DetectResult, JobSpec
    from sightline.detection.estimate import Estimate
    from sightline.detection.item import ImageList
    from sightline.detection.past import PastJob
    from sightline.detection.runner import Progress
    from sightline.detection.sources.folder import FolderSource
    from sightline.detection.targets.target import Target

Images = str | Path | Sequence[str | Path]
_WATCH_EVERY_S = 5.0


def detect(
    model: str | Path,
    source: Images,
    to: str | Path | None = None,
    *,
    workspace: str | Path | None = None,
    config: Config | None = None,
    retry_rejected: bool = False,
    watch: bool = False,
    on_progress: "Callable[[Progress], None] | None" = None,
    on_note: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> "DetectResult":
    """Run a model over many images; every image has exactly one row in the end, however often this is called.

    The same job again does only what is new or has changed; run twice at once, the two share the work.

    Args:
        model: See `load_model`.
        source: A folder, a pattern, a list, an archive, a dataset, a table, or a database with `query`.
        to: A name in the workspace, a directory, a .duckdb file or the URL of a database; default: a name made from
            source and model.
        retry_rejected: Look at all images again that were rejected, not only at those that could not be read.
        watch: Ask the source for new images for ever.
        on_progress: Told how far it is, several times a second.
        on_note: Told what was chosen and why, and of workers that died.
        should_stop: Asked several times a second; raises `Stopped`.
        settings: Any of the settings of `detect` and `source`, such as workers=4 or where="split='test'".

    Raises:
        NotFoundError: There is no image, and never was.
        WorkerError: Workers cannot start, or get nowhere. A thread that hangs over an image is left behind then, and
            Python waits for it when the program ends; the command line does not.
        TooManyRejectedError: More than `max_rejected` of the images could not be used, or all of them where nothing is
            said; their rows say why.

    >>> import sightline
    >>> result = sightline.detect("boards@champion", "photos/", to="boards-today")  # doctest: +SKIP
    >>> [(found.label, found.detections) for found in result.summary.classes]  # doctest: +SKIP
    """
    import dataclasses

    from sightline.cluster.local_node import current_nodes
    from sightline.detection.detect import cluster, run_job
    from sightline.detection.past import record
    from sightline.detection.pictures import Pictures
    from sightline.detection.preflight import check_cores, check_detection
    from sightline.detection.runner import Watcher
    from sightline.detection.targets.factory import is_duckdb, open_target
    from sightline.detection.targets.parquet import ParquetTarget

    root, config = Workspace.find(workspace), _settled(config, settings)
    note = on_note or (lambda text: None)
    given = {"on_progress": on_progress, "on_note": on_note, "should_stop": should_stop}
    prefix = config.detect.table_prefix
    target: Target | None = None if to is None else open_target(str(to), root, table_prefix=prefix)
    config = _in_cluster(config, note)
    with cluster(config.detect) as device:
        nodes = current_nodes()
        check_cores(config.detect, nodes)
        spec = _prepare(model, source, root, config, device, note)
        check_detection(spec, nodes, on_note=note)
        root.make()
        target = target or open_target(spec.job.usual_name, root)
        if is_duckdb(target.location):
            _trust_target(target.location, root, note)
        name = _name(target, spec, root)
        directory = target.directory if isinstance(target, ParquetTarget) else root.detections / name
        pictures = Pictures(
            directory / "pictures",
            config.detect.save_images,
            spec.worker.source,
            spec.bundle.info.classes,
            config.decode.max_pixels,
        )
        told: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        watcher = Watcher(on_commit=pictures.take, **told)
        with closing(target):
            result = run_job(
                spec,
                target,
                name=name,
                watcher=watcher,
                retry_rejected=retry_rejected,
                watch_every_s=_WATCH_EVERY_S if watch else None,
            )
            _check_found(result.summary.images, spec)
            if not _is_own(target, root):
                record(root, name, target.read_manifest() or {}, prefix=prefix)
    if pictures.saved:
        result = dataclasses.replace(result, pictures=str(pictures.directory))
    _check_rejected(result, config.detect)
    return result


def estimate_detection(
    model: str | Path,
    source: Images,
    *,
    workspace: str | Path | None = None,
    config: Config | None = None,
    on_note: Callable[[str], None] | None = None,
    **settings: Any,
) -> "Estimate":
    """What `detect` would take: counts the images, looks at a few, and writes nothing.

    >>> import sightline
    >>> sightline.estimate_detection("boards@champion", "photos/").images_per_s  # doctest: +SKIP
    """
    from sightline.detection.detect import cluster
    from sightline.detection.estimate import estimate

    note = on_note or (lambda text: None)
    root, config = Workspace.find(workspace), _in_cluster(_settled(config, settings), note)
    with cluster(config.detect) as device:
        spec = _prepare(model, source, root, config, device, note)
        found = estimate(spec)
    _check_found(found.images, spec)
    return found


def list_detections(*, workspace: str | Path | None = None) -> "list[PastJob]":
    """The detection jobs of the workspace, the last finished first.

    >>> import sightline
    >>> [(job.name, job.images, job.detections) for job in sightline.list_detections()]  # doctest: +SKIP
    """
    from sightline.detection.past import list_jobs

    return list_jobs(Workspace.find(workspace))


def browse(job: str, *, workspace: str | Path | None = None) -> "JobBrowser":
    """A past job to look around in: figures and images of any selection of it, asked with DuckDB.

    Args:
        job: Name of a job of the workspace.

    >>> import sightline
    >>> job = sightline.browse("boards-today")  # doctest: +SKIP
    >>> [row["uri"] for row in job.images(order="unsure", count=5)]  # doctest: +SKIP
    """
    from sightline.detection.browse import JobBrowser

    return JobBrowser(Workspace.find(workspace), _job(job, workspace))


def list_images(
    source: "Images | FolderSource", *, limit: int, where: str | None = None, workspace: str | Path | None = None
) -> "ImageList":
    """The first images of anything that `detect` takes, to be read one by one.

    >>> import sightline
    >>> [item.uri for item in sightline.list_images("photos/", limit=10).items]  # doctest: +SKIP
    """
    from itertools import islice

    from sightline.detection.item import ImageList
    from sightline.detection.sources.factory import open_source

    opened, _ = open_source(source, SourceConfig(where=where), Workspace.find(workspace))
    return ImageList(opened, tuple(islice(opened.items(), limit)))


def query(
    sql: str,
    *,
    job: str | None = None,
    limit: int | None = None,
    restricted: bool = False,
    trust: bool = False,
    workspace: str | Path | None = None,
    on_note: Callable[[str], None] | None = None,
) -> "pa.Table":
    """Ask past jobs with SQL: the views `images` and `detections` hold the rows of all, or of one.

    By default the SQL may do whatever DuckDB can do with your permissions, such as reading and writing other files.

    Args:
        job: Name of a job; default: all jobs of the workspace.
        limit: At most so many rows.
        restricted: For SQL that you did not write: no access to files, network, extensions or settings.
        trust: Confirm that you know the database files outside the workspace that these jobs are stored in.
        on_note: Called with the reason for every job that is left out; default: a Python warning.

    >>> import sightline
    >>> sightline.query("select label, count(*) from detections group by 1").to_pandas()  # doctest: +SKIP
    """
    from sightline.detection.past import left_out, query_jobs, trust_databases

    root = Workspace.find(workspace)
    jobs = list_detections(workspace=workspace) if job is None else [_job(job, workspace)]
    if trust:
        trust_databases(jobs)
    reasons = left_out(jobs, root)
    if len(reasons) < len(jobs):  # Or else the query fails, and the error has all reasons.
        for reason in reasons.values():
            (on_note or _warn)(f"left out: {reason}")
    return query_jobs(jobs, sql, root, limit=limit, restricted=restricted)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


def _trust_target(location: str, workspace: Workspace, note: Callable[[str], None]) -> None:
    """A database file that the user named on the command line or in Python is one that the user knows."""
    from sightline.detection.trust import is_trusted, trust

    if not is_trusted(location, workspace):
        try:
            trust(location)
        except StorageError as error:
            note(f"queries of this job will need --trust: {error}")


def _job(name: str, workspace: str | Path | None) -> "PastJob":
    found = next((job for job in list_detections(workspace=workspace) if job.name == name), None)
    if found is None:
        raise NotFoundError(f"there is no detection job {name!r}: `sightline detections` lists them")
    return found


def _prepare(
    model: str | Path, source: Images, root: Workspace, config: Config, device: str, note: Callable[[str], None]
) -> "JobSpec":
    from sightline.detection.detect import prepare
    from sightline.detection.rows import ModelName
    from sightline.detection.sources.factory import open_source
    from sightline.models.predictor import threshold_note
    from sightline.training.run_model import make_finder

    opened, why = open_source(source, config.source, root)
    note(f"source: {why}")
    bundle, version = make_finder(root, config.tracking, note).resolve(str(model))
    called = bundle.info.run.name if bundle.info.run else Path(str(model)).name
    named = ModelName(version.name, version.version) if version else ModelName(called, bundle.hash[:12])
    spec = prepare(opened, bundle, named, config, device=device, cache=root.compiled)
    chosen = f", {threshold_note(bundle.info, config.detect.threshold)}" if bundle.info.task == "detection" else ""
    note(f"model: {named.model}/{named.version} ({bundle.info.model}), engine {spec.job.settings.engine}{chosen}")
    return spec


def _is_own(target: "Target", root: Workspace) -> bool:
    """Whether it is a job's directory in the workspace."""
    from sightline.detection.targets.parquet import ParquetTarget

    return isinstance(target, ParquetTarget) and target.directory.parent.resolve() == root.detections.resolve()


def _name(target: "Target", spec: "JobSpec", root: Workspace) -> str:
    """What the job is called: as its directory in the workspace, else by what it is and where its rows go."""
    from sightline.detection.past import make_room, name_elsewhere

    if not _is_own(target, root):
        return name_elsewhere(root, spec.job, target.location, prefix=spec.config.table_prefix)
    name = Path(target.location).name
    make_room(root, name)
    return name


def _in_cluster(config: Config, on_note: Callable[[str], None]) -> Config:
    """The settings with the address of the cluster that this process belongs to, where none was given."""
    from sightline.cluster.address import find_cluster

    address = None if config.detect.address else find_cluster()
    if address is None:
        return config
    on_note(f"detecting on the Ray cluster of this process ({address})")
    return config.model_copy(update={"detect": config.detect.model_copy(update={"address": address})})


def _settled(config: Config | None, settings: dict[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {"source": {}, "detect": {}}
    for key, value in settings.items():
        sections["source" if key in SourceConfig.model_fields else "detect"][key] = value
    given = (config or Config()).model_dump()
    merged = {name: {**given[name], **values} for name, values in sections.items()}
    return load_config(flags={**given, **merged})


def _check_found(images: int, spec: "JobSpec") -> None:
    """A source that never had an image is a mistake more often than not."""
    from sightline.data.decode import SUFFIXES

    if not images:
        raise NotFoundError(
            f"no images were found in {spec.job.source!r}: folders, patterns and archives are searched for files "
            f"that end in {', '.join(sorted(SUFFIXES))}, other sources for rows. Check the source; --watch waits for "
            "images that are still to come"
        )


def _check_rejected(result: "DetectResult", config: DetectConfig) -> None:
    found, allowed = result.summary, config.max_rejected
    if allowed is None:
        too_many, rule = found.rejected == found.images, "that is no error with --max-rejected 1 only"
    else:
        too_many, rule = found.rejected > allowed * found.images, f"at most {allowed:.1%} were allowed"
    if too_many:
        reason = next(iter(found.reasons), "")
        raise TooManyRejectedError(
            f"{found.rejected:,} of {found.images:,} images were rejected, most for {reason!r}; {rule}. Their rows in "
            f"{result.target} say why"
        )
