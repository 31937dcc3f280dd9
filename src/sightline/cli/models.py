"""Commands about models that are kept: models, register, import."""

from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.session import ConfigFile, Debug, Json, Session, Sets, TrackingUri, WorkspaceOption

if TYPE_CHECKING:
    from sightline.config import Config

Reference = Annotated[
    str, typer.Argument(help="NAME/VERSION, NAME@ALIAS, NAME, a run, a path or a URL.", show_default=False)
]
Registered = Annotated[str, typer.Argument(metavar="NAME/VERSION", help="NAME@ALIAS too.", show_default=False)]
Split = Annotated[str, typer.Option(help="Which images of the dataset.")]
Force = Annotated[bool, typer.Option("--force", help="Even if it is worse than the one that has the alias.")]

models_app = typer.Typer(
    help="List registered models; show, compare, promote or delete some.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("register")(register)
    app.command("import")(import_weights)
    app.add_typer(models_app, name="models")


@models_app.callback()
def models(
    context: typer.Context,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List registered models; show, compare, promote or delete some."""
    from dataclasses import asdict

    from sightline import model_api
    from sightline.cli.model_tables import show_list

    if context.invoked_subcommand:
        return
    session = Session(workspace, json, debug, config, sets)
    found = model_api.list_models(workspace=workspace, config=_settings(session, tracking_uri))
    session.finish([asdict(version) for version in found], lambda: show_list(session, found))


@models_app.command("show")
def show(
    model: Reference,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What a model is: figures, classes, where it comes from; every file of it is checked."""
    from sightline import model_api
    from sightline.cli.model_tables import show_bundle

    session = Session(workspace, json, debug, config, sets)
    settings = _settings(session, tracking_uri)
    bundle = model_api.find_bundle(model, workspace=workspace, config=settings, on_note=session.say)
    shown = {"path": str(bundle.path), "hash": bundle.hash, **bundle.info.model_dump(mode="json")}
    session.finish(shown, lambda: show_bundle(session, bundle))


@models_app.command("compare")
def compare(
    models: Annotated[list[str], typer.Argument(help="Two models or more, named as for `show`.", show_default=False)],
    dataset: Annotated[str, typer.Option(help="What they are scored on.", show_default=False)],
    split: Split = "test",
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score models on the same images and put them side by side."""
    from dataclasses import asdict

    from sightline import model_api
    from sightline.cli.model_tables import show_comparison

    session = Session(workspace, json, debug, config, sets)
    with session.progress("scoring") as progress:
        found = model_api.compare_models(
            *models,
            dataset=dataset,
            split=split,
            workspace=workspace,
            config=_settings(session, tracking_uri),
            progress=progress,
            on_note=session.say,
        )
    session.finish(asdict(found), lambda: show_comparison(session, found))


@models_app.command("promote")
def promote(
    model: Registered,
    alias: Annotated[str, typer.Option(help="The alias that it gets.")] = "champion",
    dataset: Annotated[
        str | None, typer.Option(help="What it and the present holder are scored on.", show_default=False)
    ] = None,
    split: Split = "test",
    force: Force = False,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Give an alias to a version, unless the version that has it is better on a dataset."""
    from dataclasses import asdict

    from sightline import model_api
    from sightline.cli.model_tables import show_promotion

    session = Session(workspace, json, debug, config, sets)
    with session.progress("scoring") as progress:
        found = model_api.promote(
            model,
            alias,
            dataset=dataset,
            split=split,
            force=force,
            workspace=workspace,
            config=_settings(session, tracking_uri),
            progress=progress,
        )
    session.finish(asdict(found), lambda: show_promotion(session, found))


@models_app.command("delete")
def delete(
    model: Annotated[str, typer.Argument(metavar="NAME[/VERSION]", help="All versions without one.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove a version, or a model with all versions, from the registry."""
    from sightline import model_api
    from sightline.errors import ConfigError

    session = Session(workspace, json, debug, config, sets)
    settings = _settings(session, tracking_uri)
    doomed = model_api.versions_to_delete(model, workspace=workspace, config=settings)
    labels = [version.label for version in doomed]
    if not yes:
        if not session.can_ask:
            raise ConfigError(f"this would delete {', '.join(labels)}: say --yes, for nobody is here to be asked")
        typer.confirm(f"Delete {', '.join(labels)} from the registry?", abort=True, err=True)
    model_api.delete_model(model, workspace=workspace, config=settings)
    session.finish({"deleted": labels}, lambda: session.say(f"deleted {', '.join(labels)}; its run stays"))


def register(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run, or a path or URL.", show_default=False)],
    name: Annotated[str, typer.Option(help="The registered model that it becomes a version of.", show_default=False)],
    alias: Annotated[str | None, typer.Option(help="Such as champion.", show_default=False)] = None,
    dataset: Annotated[
        str | None, typer.Option(help="What the alias's present holder is compared on.", show_default="its own")
    ] = None,
    split: Split = "test",
    force: Force = False,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep a run's model in the registry, as the next version of a name."""
    from dataclasses import asdict

    from sightline import model_api

    session = Session(workspace, json, debug, config, sets)
    with session.progress("scoring") as progress:
        found = model_api.register(
            model,
            name,
            alias=alias,
            dataset=dataset,
            split=split,
            force=force,
            workspace=workspace,
            config=_settings(session, tracking_uri),
            progress=progress,
            on_note=session.say,
        )
    session.finish(
        asdict(found), lambda: session.say(f"{model} is now {found.label} (bundle {str(found.bundle)[:12]})")
    )


def import_weights(
    file: Annotated[
        str, typer.Argument(help="A state_dict (.pt, .pth, .safetensors), or a YOLO in ONNX.", show_default=False)
    ],
    to: Annotated[str, typer.Option(metavar="DIR|NAME", help="A new directory, or a name to register it under.")],
    model: Annotated[
        str | None,
        typer.Option(help="Its architecture, such as fasterrcnn-mobilenet; not for ONNX.", show_default=False),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            "--names",
            help="a,b,c, a file with one on each line, or a YAML file with names.",
            show_default="what an ONNX file brings",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=32, help="Side that images are fitted into.", show_default="as trained, else the usual"),
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Of an ONNX file.", show_default="what it brings, else unknown")
    ] = None,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a model of somebody's weights, or of a YOLO in ONNX; no code in the file is run."""
    from sightline import model_api
    from sightline.models.licence import licence_note

    session = Session(workspace, json, debug, config, sets)
    found = model_api.import_model(
        file,
        to,
        model=model,
        classes=classes,
        size=size,
        licence=licence,
        workspace=workspace,
        config=_settings(session, tracking_uri),
    )
    shown = {"path": str(found.path), "hash": found.hash, **found.info.model_dump(mode="json")}
    said = f"{file} is now a {found.info.model} in {found.path}; size {found.info.size}, licence: {found.info.licence}"
    session.finish(shown, lambda: session.say(said))
    if owed := licence_note(found.info.model, found.info.licence):
        session.say(owed)


def _settings(session: Session, tracking_uri: str | None) -> "Config":
    return session.config(tracking={"uri": tracking_uri})
