"""Commands about models: train, evaluate."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sightline.cli.session import ConfigFile, Debug, Json, Session, Sets, TrackingUri, WorkspaceOption, asked_to_stop
from sightline.cli.training import TrainingView

if TYPE_CHECKING:
    from sightline.training.run import RunResult


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("train")(train)
    app.command("evaluate")(evaluate)


def train(
    dataset: Annotated[str, typer.Argument(help="Name of a dataset, or a path or URL to one.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="Which model.", show_default="auto")] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="What it starts from: coco, imagenet, none, a file or a model.", show_default="what is at hand"
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How often every image is seen.", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Images in one step.", show_default=False)] = None,
    size: Annotated[int | None, typer.Option(help="Side that images are fitted into.", show_default=False)] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal runs.", show_default="0")] = None,
    batchnorm: Annotated[
        str | None, typer.Option(help="BatchNorm over the batch (sync), a worker's share (local), or frozen.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers that share every batch.", show_default="1")] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="On a Ray cluster.", show_default="1 where there are GPUs")
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            help="Who starts them: inline (in this process), torchrun (on this machine), ray.", show_default="auto"
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster: host:port, auto, or local to start one.", show_default=False)
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Start workers even if cores or memory are not enough.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="After every epoch, compare all workers' weights and images.")
    ] = False,
    scale_lr: Annotated[
        bool, typer.Option("--scale-lr", help="Raise the learning rate with the batch (it is meant for 4).")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What to call the run.", show_default="by its settings")] = None,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Keep its model in the registry.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, even if this run is unfinished.")] = False,
    tracking_uri: TrackingUri = None,
    no_track: Annotated[bool, typer.Option("--no-track", help="Do not keep the run in MLflow.")] = False,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model; the same command again goes on with an unfinished run."""
    from dataclasses import asdict

    from sightline import api
    from sightline.errors import Stopped

    session = Session(workspace, json, debug, config, sets)
    flags: dict[str, Any] = {"model": model, "epochs": epochs, "batch": batch, "size": size, "lr": lr, "seed": seed}
    flags |= {"weights": weights, "batchnorm": batchnorm, "scale_lr": scale_lr or None}
    spread = {"count": workers, "launcher": launcher, "address": address, "gpus_per_worker": gpus_per_worker}
    settings = session.config(
        train=flags,
        workers={**spread, "verify": verify or None, "oversubscribe": oversubscribe or None},
        tracking={"uri": tracking_uri, "enabled": False if no_track else None},
    )
    with asked_to_stop() as asked, TrainingView(session, settings.train.epochs) as line:
        try:
            result = api.train(
                dataset,
                workspace=workspace,
                config=settings,
                name=name,
                register=register,
                fresh=fresh,
                on_step=line.on_step,
                on_scores=line.on_scores,
                should_stop=lambda: bool(asked()),
                on_note=session.say,
                on_workers=line.on_workers,
            )
        except Stopped:
            session.say("stopped; the checkpoint is saved, and the same command goes on from here")
            raise SystemExit(128 + (asked() or signal.SIGTERM)) from None
    session.finish(asdict(result), lambda: _show_run(session, result, dataset))


def evaluate(
    model: Annotated[str, typer.Argument(help="A run, a registered model, a path or a URL.", show_default=False)],
    dataset: Annotated[str, typer.Argument(help="Name of a dataset, or a path or URL to one.", show_default=False)],
    split: Annotated[str, typer.Option(help="Which images.")] = "test",
    iou: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="One overlap for mAP and F1 (DeepPCB: 0.33).", show_default="COCO's ten"),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=32, help="Side that images are fitted into.", show_default="as trained")
    ] = None,
    score_threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="For precision, recall, F1, confusion.", show_default="what validation chose"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images at once.")] = 8,
    engine: Annotated[
        str | None,
        typer.Option(
            help="What runs it: torch, onnxruntime, openvino, or auto.", show_default="torch; ONNX files: auto"
        ),
    ] = None,
    write_deeppcb: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write what was found as DeepPCB's evaluation reads it.", show_default=False),
    ] = None,
    deeppcb_for: Annotated[
        Literal["map", "f"], typer.Option(help="Its mAP wants every box, its F-score those above the threshold.")
    ] = "map",
    deeppcb_types: Annotated[
        Literal["name", "number"], typer.Option(help="Its description wants names; its annotations have numbers.")
    ] = "name",
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a model on a dataset."""
    import json as json_module

    from sightline import api
    from sightline.data.formats.deeppcb_results import DeepPcbOutput

    session = Session(workspace, json, debug, config, sets)
    settings = session.config()
    output = DeepPcbOutput(write_deeppcb, deeppcb_for, deeppcb_types) if write_deeppcb else None
    with session.progress("evaluating") as progress:
        result = api.evaluate(
            model,
            dataset,
            split=split,
            iou=iou,
            size=size,
            score_threshold=score_threshold,
            batch=batch,
            engine=engine,
            deeppcb=output,
            workspace=workspace,
            config=settings,
            progress=progress,
            on_note=session.say,
        )
    session.finish(json_module.loads(result.to_json()), lambda: _show_scores(session, result, write_deeppcb))


def _show_run(session: Session, result: "RunResult", dataset: str) -> None:
    if result.resumed_at_step:
        session.say(f"went on from step {result.resumed_at_step:,}")
    parts = {name.replace("_", "/" if name.startswith("forward") else "-"): s for name, s in result.seconds.items()}
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in parts.items() if value >= 0.5)
    session.say(f"best score {result.best_score:.3f} in epoch {result.best_epoch} of {result.epochs}; {seconds}")
    session.say(f"curve and pictures are in {result.directory}")
    if result.tracked_in:
        session.say(f"compare it with: sightline runs (MLflow at {result.tracked_in})")
    if result.registered:
        session.say(f"its model is now {result.registered}: sightline models show {result.registered}")
    session.say(f"score it with: sightline evaluate {result.name} {dataset}")


def _show_scores(session: Session, result: Any, written: Path | None) -> None:
    from sightline.report.scores import print_scores

    print_scores(session.console, result)
    if written:
        session.say(f"{result.num_images:,} files for DeepPCB's evaluation in {str(written)!r}")
