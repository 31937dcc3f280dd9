"""Commands about datasets: ingest, synth, datasets, inspect, export-dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sightline.cli.session import ConfigFile, Debug, Json, Session, Sets, WorkspaceOption

if TYPE_CHECKING:
    from sightline.data.schema import DatasetInfo, SplitInfo

Name = Annotated[str, typer.Argument(help="Name of a dataset, or a path or URL to one.", show_default=False)]
To = Annotated[str, typer.Option("--to", help="Name for the dataset, or a path or URL.", show_default=False)]
Replace = Annotated[bool, typer.Option("--replace", help="Overwrite a dataset of that name.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("ingest")(ingest)
    app.command("datasets")(datasets)
    app.command("inspect")(inspect)
    app.command("export-dataset")(export_dataset)
    app.command("synth")(synth)


def ingest(
    source: Annotated[str, typer.Argument(help="Folder, file, bucket URL or database URL.", show_default=False)],
    to: To,
    format: Annotated[
        Literal["auto", "voc", "coco", "yolo", "deeppcb", "folder", "table"] | None,
        typer.Option(help="How the images are annotated.", show_default="auto"),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Fractions for all images.", metavar="train=0.8,val=0.2", show_default=False)
    ] = None,
    stratify: Annotated[
        bool | None, typer.Option("--stratify", help="Keep the classes' shares equal between splits.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Class names in order.", metavar="A,B,C", show_default=False)
    ] = None,
    images: Annotated[str | None, typer.Option(help="Folder of the images, if elsewhere.", show_default=False)] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of a table.", metavar="image=IMG,class=TYPE", show_default=False)
    ] = None,
    box_format: Annotated[
        Literal["xyxy", "xywh", "cxcywh"] | None,
        typer.Option(help="What the numbers of a table's boxes are.", show_default="what the data determine"),
    ] = None,
    query: Annotated[str | None, typer.Option(help="SQL query, for a database.", show_default=False)] = None,
    verify: Annotated[
        Literal["full", "header"] | None,
        typer.Option(help="Decode every image, or read sizes only.", show_default="full"),
    ] = None,
    max_rejected: Annotated[
        float | None, typer.Option(help="Fail above this share of unusable images.", show_default="1.0")
    ] = None,
    replace: Replace = False,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn annotated images into a dataset."""
    from sightline import api

    session = Session(workspace, json, debug, config, sets)
    flags: dict[str, Any] = {
        "format": format,
        "split": split,
        "stratify": stratify,
        "classes": _names(classes),
        "images": images,
        "columns": _pairs(columns),
        "box_format": box_format,
        "query": query,
        "verify": verify,
        "max_rejected": max_rejected,
    }
    settings = session.config(ingest=flags)
    with session.progress("ingesting") as progress:
        info = api.ingest(
            source,
            to,
            workspace=workspace,
            config=settings,
            replace=replace,
            progress=progress,
            recognised=lambda name, why: session.say(f"read as {name}: {why}"),
        )
    session.finish(info.model_dump(mode="json"), lambda: _show_dataset(session, info))


def synth(
    kind: Annotated[
        Literal["boards", "shapes", "shape-classes"],
        typer.Argument(help="Circuit boards with defects; shapes with boxes; shapes to classify.", show_default=False),
    ],
    to: Annotated[str | None, typer.Option("--to", help="Name for the dataset.", show_default="the kind")] = None,
    images: Annotated[int, typer.Option(help="How many.")] = 1000,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal images.")] = 0,
    size: Annotated[int | None, typer.Option(help="Side in pixels.", show_default="640; shapes 64")] = None,
    split: Annotated[
        str | None, typer.Option(help="Fractions for all images.", metavar="train=0.8,val=0.2", show_default=False)
    ] = None,
    replace: Replace = False,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a dataset of synthetic images; nothing is downloaded."""
    from sightline import api

    session = Session(workspace, json, debug, config, sets)
    settings = session.config(ingest={"split": split})
    with session.progress(f"making {kind}", total=images) as progress:
        info = api.synth(
            kind,
            to or kind,
            images=images,
            seed=seed,
            size=size,
            workspace=workspace,
            config=settings,
            replace=replace,
            progress=progress,
        )
    session.finish(info.model_dump(mode="json"), lambda: _show_dataset(session, info))


def datasets(workspace: WorkspaceOption = None, json: Json = False, debug: Debug = False) -> None:
    """List the datasets of the workspace."""
    from sightline import api

    session = Session(workspace, json, debug)
    found = api.list_datasets(workspace=workspace)
    session.finish([info.model_dump(mode="json") for info in found], lambda: _show_list(session, found))


def inspect(
    name: Name,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page here.", show_default=False)
    ] = None,
    workspace: WorkspaceOption = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Look at a dataset: counts, box sizes, duplicates, suspicious boxes, rejects."""
    from sightline import api
    from sightline.report.terminal import print_inspection

    session = Session(workspace, json, debug)
    with session.progress("inspecting") as progress:
        inspection = api.inspect(name, html=html, workspace=workspace, progress=progress)
    session.finish(inspection.to_json(), lambda: print_inspection(session.console, inspection))
    if html:
        session.say(f"page written to {html}")


def export_dataset(
    name: Name,
    format: Annotated[Literal["voc", "coco", "yolo"], typer.Option(help="Format to write.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="A new directory.", show_default=False)],
    workspace: WorkspaceOption = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a dataset as Pascal VOC, COCO or YOLO files."""
    from sightline import api

    session = Session(workspace, json, debug)
    with session.progress("writing") as progress:
        count = api.export_dataset(name, to, format=format, workspace=workspace, progress=progress)
    result = {"directory": str(to), "format": format, "images": count}
    session.finish(result, lambda: session.say(f"{count} images written to {to} as {format}"))


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",")] if text else None


def _pairs(text: str | None) -> dict[str, str] | None:
    if not text:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not (role.strip() and column.strip()) for role, _, column in pairs):
        raise typer.BadParameter(f"{text!r} is not like image=IMG,class=TYPE", param_hint="--columns")
    return {role.strip(): column.strip() for role, _, column in pairs}


def _show_dataset(session: Session, info: "DatasetInfo") -> None:
    boxes = f", {info.num_boxes:,} boxes" if info.task == "detection" else ""
    session.say(f"{info.name}: {info.num_images:,} images{boxes}, {len(info.classes)} classes")
    for name, split in _in_usual_order(info):
        session.say(f"  {name:<8} {split.images:>8,} images" + (f" {split.boxes:>9,} boxes" if boxes else ""))
    for action, reasons in info.rejected.items():
        for reason, count in reasons.items():
            session.say(f"  {action}: {count:,} x {reason}")
    session.say(f"look at it with: sightline inspect {info.name}")


def _in_usual_order(info: "DatasetInfo") -> "list[tuple[str, SplitInfo]]":
    usual = ["train", "val", "test"]
    return sorted(info.splits.items(), key=lambda item: (usual.index(item[0]) if item[0] in usual else 3, item[0]))


def _show_list(session: Session, found: list["DatasetInfo"]) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not found:
        session.say("no datasets yet: make one with `sightline ingest SOURCE --to NAME` or `sightline synth boards`")
        return
    table = Table(box=None)
    for column in ("name", "images", "boxes", "classes", "rejected", "splits"):
        table.add_column(
            column, justify="left" if column in ("name", "splits") else "right", no_wrap=column != "splits"
        )
    for info in found:
        counts = (info.num_images, info.num_boxes, len(info.classes), info.num_rejected_images)
        splits = ", ".join(f"{name} {split.images:,}" for name, split in _in_usual_order(info))
        table.add_row(escape(info.name), *(f"{count:,}" for count in counts), escape(splits))
    session.console.print(table)
