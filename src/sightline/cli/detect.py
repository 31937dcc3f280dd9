"""Commands about detection over many images: detect, detections, query."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.session import (
    ConfigFile,
    Debug,
    Json,
    Session,
    Sets,
    TrackingUri,
    WorkspaceOption,
    asked_to_stop,
    local_time,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from sightline.detection.detect import DetectResult
    from sightline.detection.estimate import Estimate
    from sightline.detection.past import PastJob

_MOST_CLASSES = 20


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("detect")(detect)
    app.command("detections")(detections)
    app.command("query")(query)


def detect(
    model: Annotated[str, typer.Argument(help="A run, a registered model, a path or a URL.", show_default=False)],
    source: Annotated[
        str,
        typer.Argument(
            help="Folder, pattern, list (.txt), archive, dataset, Parquet or Arrow table, bucket or database URL.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", help="A name, directory, .duckdb file or database URL.", show_default="a name by the job"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="One runs here, several on Ray.", show_default="1")] = None,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster: host:port, or auto.", show_default="one is started here")
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Start workers even if cores or memory are not enough.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="torch, onnxruntime or openvino.", show_default="the fastest")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="bfloat16 (OpenVINO) is quicker, less exact.", show_default="auto")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Lowest score to keep.", show_default="what validation chose")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side that images are fitted into.", show_default="as trained")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Images at once.", show_default="by device")] = None,
    tile: Annotated[int | None, typer.Option(help="Cut larger images into tiles.", show_default=False)] = None,
    overlap: Annotated[float | None, typer.Option(help="Of tiles, as a share.", show_default="0.2")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first images.", show_default=False)] = None,
    where: Annotated[
        str | None, typer.Option(help="For datasets and tables: a condition in SQL.", metavar="\"split='test'\"")
    ] = None,
    query: Annotated[str | None, typer.Option(help="SQL query, for a database.", show_default=False)] = None,
    retry_rejected: Annotated[
        bool,
        typer.Option("--retry-rejected", help="Look at all rejected images again."),
    ] = False,
    max_rejected: Annotated[
        float | None, typer.Option(help="Exit code 4 above this share of rejected images.", show_default="if all are")
    ] = None,
    save_images: Annotated[int | None, typer.Option(help="Keep so many pictures with boxes.", show_default="0")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on with new images until stopped.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take; write nothing.")] = False,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a model over many images; the same command again does only what is left or new."""
    from dataclasses import asdict

    from sightline import detect_api
    from sightline.cli.detecting import DetectionView
    from sightline.errors import Stopped

    session = Session(workspace, json, debug, config, sets)
    flags: dict[str, Any] = {"workers": workers, "address": address, "engine": engine, "threshold": threshold}
    flags |= {"precision": precision, "oversubscribe": oversubscribe or None}
    flags |= {"size": size, "batch": batch, "tile": tile, "overlap": overlap, "max_rejected": max_rejected}
    settings = session.config(
        detect={**flags, "save_images": save_images},
        source={"limit": limit, "where": where, "query": query},
        tracking={"uri": tracking_uri},
    )
    if dry_run:
        found = detect_api.estimate_detection(model, source, workspace=workspace, config=settings, on_note=session.say)
        session.finish({**asdict(found), "seconds": found.seconds}, lambda: _show_estimate(session, found))
        return
    with asked_to_stop() as asked, DetectionView(session) as line:
        try:
            result = detect_api.detect(
                model,
                source,
                to,
                workspace=workspace,
                config=settings,
                retry_rejected=retry_rejected,
                watch=watch,
                on_progress=line.on_progress,
                on_note=session.say,
                should_stop=lambda: bool(asked()),
            )
        except Stopped:
            session.say("stopped; what is committed stays, and the same command goes on from here")
            raise SystemExit(128 + asked()) from None
    session.finish(result.to_json(), lambda: _show_result(session, result))


def detections(workspace: WorkspaceOption = None, json: Json = False, debug: Debug = False) -> None:
    """List past detection jobs."""
    from dataclasses import asdict

    from sightline import detect_api

    session = Session(workspace, json, debug)
    found = detect_api.list_detections(workspace=workspace)
    session.finish([asdict(job) for job in found], lambda: _show_jobs(session, found))


def query(
    sql: Annotated[
        str,
        typer.Argument(help="A query over `images` and `detections`; both have a column `job`.", show_default=False),
    ],
    job: Annotated[str | None, typer.Option(help="Only this job.", show_default="all of the workspace")] = None,
    limit: Annotated[int, typer.Option(help="Show so many rows.", min=1)] = 100,
    restricted: Annotated[
        bool, typer.Option("--restricted", help="For SQL by others: no files, network, extensions or settings.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Confirm the database files of these jobs outside the workspace.")
    ] = False,
    workspace: WorkspaceOption = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Ask past detections with SQL, by DuckDB.

    The SQL runs unrestricted, with your permissions: it can read and write other files. Pass --restricted for SQL that
    you did not write.
    """
    from sightline import detect_api

    session = Session(workspace, json, debug)
    found = detect_api.query(
        sql,
        job=job,
        limit=limit + 1,
        restricted=restricted,
        trust=trust,
        workspace=workspace,
        on_note=session.say,
    )
    session.finish(found.slice(0, limit).to_pylist(), lambda: _show_table(session, found, limit))


def _show_estimate(session: Session, found: "Estimate") -> None:
    from sightline.report.quantity import bytes_text

    session.say(f"{found.images:,} images; {found.measured} of them were looked at, {found.rejected} rejected")
    session.say(
        f"about {found.images_per_s:,.1f} images/s with {found.workers} workers and engine {found.engine}: "
        f"{_duration(found.seconds)} for all, and the start"
    )
    session.say(f"memory of a worker {bytes_text(found.memory)}; rows to be written about {bytes_text(found.written)}")


def _show_result(session: Session, result: "DetectResult") -> None:
    from rich.markup import escape
    from rich.table import Table

    from sightline.report.name import one_line

    found = result.summary
    if found.classes:
        table = Table(box=None)
        for column in ("class", "detections", "images", "mean score"):
            table.add_column(column, justify="left" if column == "class" else "right")
        for row in found.classes[:_MOST_CLASSES]:
            name = escape(one_line(row.label, limit=40))
            table.add_row(name, f"{row.detections:,}", f"{row.images:,}", f"{row.mean_score:.2f}")
        session.console.print(table)
    if len(found.classes) > _MOST_CLASSES:
        session.say(f"and {len(found.classes) - _MOST_CLASSES} classes more")
    for reason, count in found.reasons.items():
        session.say(f"rejected: {count:,} x {reason}")
    session.say(
        f"{found.images:,} images have rows: {found.detections:,} detections from a score of "
        f"{result.job.settings.threshold:.3f} on, {found.rejected:,} images rejected"
    )
    if result.counts.images:
        session.say(
            f"this run: {result.counts.images:,} images in {_duration(result.seconds)}, "
            f"{result.images_per_s:,.1f} images/s with the start"
        )
    else:
        session.say("nothing was new, so nothing was done")
    session.say(f"rows are in {result.target}")
    if result.pictures:
        session.say(f"pictures are in {result.pictures}")
    sql = "select label, count(*) from detections group by label"
    session.say(f'ask them with: sightline query "{sql}" --job {result.name}')


def _show_jobs(session: Session, found: "list[PastJob]") -> None:
    from rich.markup import escape
    from rich.table import Table

    if not found:
        session.say("no detections yet: make some with `sightline detect MODEL SOURCE`")
        return
    table = Table(box=None)
    for column in ("name", "model", "images", "rejected", "detections", "finished", "rows in"):
        is_text = column in ("name", "model", "finished", "rows in")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column == "name")
    for job in found:
        counts = (f"{count:,}" for count in (job.images, job.rejected, job.detections))
        finished = local_time(job.finished) if job.finished else "not yet"
        table.add_row(escape(job.name), escape(job.model), *counts, finished, escape(job.target))
    session.console.print(table)


def _show_table(session: Session, found: "pa.Table", limit: int) -> None:
    from rich.markup import escape
    from rich.table import Table

    from sightline.report.name import one_line

    table = Table(box=None)
    for field in found.schema:
        is_number = str(field.type).startswith(("int", "uint", "float", "double", "decimal"))
        table.add_column(escape(field.name), justify="right" if is_number else "left")
    for row in found.slice(0, limit).to_pylist():
        table.add_row(*(escape(one_line(_cell(value), limit=80)) for value in row.values()))
    session.console.print(table)
    if found.num_rows > limit:
        session.say(f"only the first {limit:,} rows are shown: --limit shows more")


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
