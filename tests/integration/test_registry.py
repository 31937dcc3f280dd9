"""Models kept in a real MLflow: SQLite in the workspace, and a server on loopback."""

import base64
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sightline
from sightline.cli.main import app
from sightline.config import Config, load_config
from sightline.data.decode import encode_jpeg
from sightline.data.manifest import write_manifest
from sightline.errors import ConfigError, DamagedError, GateError, NotFoundError
from sightline.models.bundle import describe, open_bundle, save_bundle
from sightline.models.factory import make_model
from sightline.registering.gate import promote
from sightline.registering.scoring import ModelComparison, Scored
from sightline.tracking.library import open_client
from sightline.tracking.registry import ModelVersion, open_registry

SMALL = {"size": 64, "epochs": 3, "batch": 4, "threads": 1, "lr": 0.01}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a dataset, a run that has learned something, and a model that has not."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("my work")
    sightline.synth("shapes", "shapes", images=60, seed=1, workspace=place)
    settings = load_config(flags={"train": SMALL})
    result = sightline.train("shapes", workspace=place, config=settings, name="learned", register="trained")
    assert result.registered == "trained/1"
    assert result.best_score > 0
    classes = sightline.open_dataset("shapes", workspace=place).classes
    for number in range(2):
        torch.manual_seed(number)
        model = make_model("nano", num_classes=len(classes), size=64)
        info = describe(model, name="nano", classes=tuple(classes))
        save_bundle(place / f"fresh-{number}", model.state_dict(), info, {})
    return place


@pytest.fixture
def home(work: Path, tmp_path: Path) -> Path:
    """The same with a registry of its own."""
    shutil.copytree(work, tmp_path / "home", ignore=shutil.ignore_patterns("mlflow*", "models", "checkpoints"))
    return tmp_path / "home"


def image() -> bytes:
    return encode_jpeg(np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8))


def with_server(port: int) -> Config:
    return load_config(flags={"tracking": {"uri": f"http://ann:hidden-word@127.0.0.1:{port}"}})


PYFUNC = """
import json, sys
import mlflow, pandas
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
images = [bytes.fromhex(text) for text in sys.argv[3:]]
found = model.predict(pandas.DataFrame({"image": images}), params={"threshold": 0.001})
print(json.dumps({"columns": list(found.columns), "rows": found.to_dict("records")}))
"""


def pyfunc(uri: str, name: str, *images: bytes, cwd: Path) -> Any:
    """What MLflow's own loader gives in a fresh process that knows nothing of the workspace."""
    environment = {**os.environ, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PYFUNC, uri, name, *(data.hex() for data in images)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_life_of_a_model(home: Path, config: Config, uri: str, tmp_path: Path) -> None:
    first = sightline.register("learned", "boards", alias="champion", workspace=home, config=config)
    assert (first.version, first.aliases, first.facts["dataset"]) == ("1", ("champion",), "shapes")
    again = sightline.register("learned", "boards", workspace=home, config=config)
    assert again == first  # The same bundle is the same version.
    second = sightline.register(home / "fresh-0", "boards", workspace=home, config=config)
    listed = sightline.list_models(workspace=home, config=config)
    assert [(entry.name, entry.version) for entry in listed] == [("boards", "2"), ("boards", "1")]

    # Another workspace, as on another machine.
    bundle = open_bundle(home / "runs" / "learned" / "model")
    other = load_config(flags={"tracking": {"uri": uri}})
    for name, wanted in (("boards", first), ("boards@champion", first), ("boards/2", second)):
        notes: list[str] = []
        model = sightline.load_model(name, workspace=tmp_path / "other", config=other, on_note=notes.append)
        assert model.bundle.hash == wanted.bundle
        assert model.bundle.path == tmp_path / "other" / "models" / str(wanted.bundle)
        named = [note for note in notes if not note.startswith("engine ")]
        assert named == (["model 'boards' is boards/1 @champion of the registry"] if name == "boards" else [])
    samples = [bytes(sample.image) for sample in sightline.open_dataset("shapes", workspace=home)]
    answers = sightline.load_model(bundle.path, workspace=home).predict(samples, threshold=0.001)
    place, wanted = max(enumerate(answers), key=lambda answer: len(list(answer[1].rows())))

    found = pyfunc(uri, "models:/boards@champion", samples[place], image(), cwd=tmp_path)
    assert found["columns"] == ["image", "label", "score", "xmin", "ymin", "xmax", "ymax"]
    rows = [row for row in found["rows"] if row["image"] == 0]
    assert len(rows) == len(list(wanted.rows())) > 0
    assert {row["label"] for row in rows} <= set(bundle.info.classes)
    for row, expected in zip(rows, wanted.rows(), strict=True):
        assert list(row.values())[2:] == pytest.approx(expected[1:], abs=1e-3)

    with pytest.raises(NotFoundError, match=r"no model boards/7 in the registry: there are boards/2, boards/1 @champ"):
        sightline.load_model("boards/7", workspace=home, config=config)
    with pytest.raises(NotFoundError, match="no version of model 'boards' has the alias 'best'"):
        sightline.load_model("boards@best", workspace=home, config=config)
    assert [entry.version for entry in sightline.delete_model("boards/2", workspace=home, config=config)] == ["2"]
    assert [entry.version for entry in sightline.list_models(workspace=home, config=config)] == ["1"]
    sightline.delete_model("boards", workspace=home, config=config)
    assert sightline.list_models(workspace=home, config=config) == []
    with pytest.raises(NotFoundError, match="no model has that name"):
        sightline.load_model("boards@champion", workspace=home, config=config)


def test_the_life_of_a_model_in_the_workspace(home: Path, tmp_path: Path) -> None:
    check_life_of_a_model(home, Config(), f"sqlite:///{home}/mlflow.db", tmp_path)


def test_the_life_of_a_model_on_a_server(server: tuple[int, Path], home: Path, tmp_path: Path) -> None:
    port, stored = server
    check_life_of_a_model(home, with_server(port), f"http://127.0.0.1:{port}", tmp_path)
    assert not (home / "mlflow.db").exists()
    files = [file for file in stored.rglob("*") if file.is_file()]
    assert not [file for file in files if b"hidden-word" in file.read_bytes()]


def test_what_mlflow_stores_is_a_bundle_behind_a_constant_file(home: Path) -> None:
    sightline.register("learned", "boards-1.2", workspace=home)
    (place,) = home.glob("mlflow-artifacts/models/*/artifacts")
    names = {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}
    shim = Path(sightline.__file__).parent / "tracking" / "pyfunc_shim.py"
    assert (place / "pyfunc_shim.py").read_bytes() == shim.read_bytes()
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth"))]
    assert open_bundle(place / "artifacts" / "bundle").hash == open_bundle(home / "runs/learned/model").hash
    wheel = f"wheels/sightline-{sightline.__version__}-py3-none-any.whl"
    required = (place / "requirements.txt").read_text()
    assert required.splitlines()[0] == wheel
    assert "sightline==" not in required + (place / "conda.yaml").read_text() + (place / "python_env.yaml").read_text()
    assert (place / wheel).is_file()
    example = json.loads((place / "serving_input_example.json").read_text())["dataframe_split"]
    assert base64.b64decode(example["data"][0][0]).startswith(b"\xff\xd8")
    assert "signature:" in (place / "MLmodel").read_text()


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_nothing_of_a_registry_runs(home: Path, tmp_path: Path) -> None:
    mark, cache = tmp_path / "ran", home / "models"
    sightline.register("learned", "boards", alias="champion", workspace=home)
    (place,) = home.glob("mlflow-artifacts/models/*/artifacts")
    with open(place / "pyfunc_shim.py", "a") as shim:
        shim.write(f"\nimport pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    for name in ("python_model.pkl", "artifacts/python_model.pkl"):
        (place / name).write_bytes(pickle.dumps(Payload(mark)))
    sightline.load_model("boards@champion", workspace=home).predict(image())
    sightline.train("shapes", workspace=home, weights="boards/1", name="tuned", **{**SMALL, "epochs": 1})
    assert not mark.exists()
    pyfunc(f"sqlite:///{home}/mlflow.db", "models:/boards@champion", image(), cwd=tmp_path)
    assert mark.exists()  # MLflow's own loader trusts the registry.
    mark.unlink()

    shutil.rmtree(cache)
    bundle = place / "artifacts" / "bundle"
    torch.save(Payload(mark), bundle / "weights.safetensors")
    uses = [
        lambda: sightline.load_model("boards@champion", workspace=home),
        lambda: sightline.evaluate("boards/1", "shapes", workspace=home),
        lambda: sightline.train("shapes", workspace=home, weights="boards@champion"),
    ]
    for use in uses:
        with pytest.raises(DamagedError, match="is not as it was written"):
            use()
    (bundle / "manifest.json").unlink()
    write_manifest(bundle)  # Whoever can write there can write that too; the registered hash is another.
    for use in uses:
        with pytest.raises(DamagedError, match="somebody changed it"):
            use()
    assert not mark.exists()
    assert list(cache.iterdir()) == []


def test_a_model_of_another_program_is_not_opened(home: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "python_model.pkl").write_bytes(pickle.dumps(Payload(mark)))
    client = open_client(f"sqlite:///{home}/mlflow.db")
    client.create_registered_model("theirs")
    client.create_model_version("theirs", foreign.as_uri())
    with pytest.raises(NotFoundError, match="another program registered it"):
        sightline.load_model("theirs", workspace=home)
    (entry,) = sightline.list_models(workspace=home)
    assert entry.bundle is None
    assert not mark.exists()


def test_the_gate(home: Path) -> None:
    sightline.register(home / "fresh-0", "boards", alias="champion", workspace=home)
    sightline.register(home / "fresh-1", "boards", workspace=home)
    sightline.register("learned", "boards", workspace=home)
    with pytest.raises(ConfigError, match="say with --dataset"):
        sightline.promote("boards/3", "champion", workspace=home)
    equal = sightline.promote("boards/2", "champion", dataset="shapes", split="train", workspace=home)
    assert equal.version.aliases == ("champion",)
    better = sightline.promote("boards/3", dataset="shapes", split="train", workspace=home)
    assert better.compared is not None
    new, old = better.compared.models
    assert (new.label, old.label) == ("boards/3", "boards/2")
    assert new.score is not None
    assert old.score is not None
    assert new.score > old.score
    with pytest.raises(GateError) as caught:
        sightline.promote("boards/1", "champion", dataset="shapes", split="train", workspace=home)
    message = str(caught.value)
    assert message.startswith("boards/1 is worse on 'shapes', split train")
    assert f"mAP {old.score:.4f}" in message
    assert f"mAP {new.score:.4f}" in message
    on_train: dict[str, str] = {"dataset": "shapes", "split": "train"}
    with pytest.raises(GateError, match="boards/1 is registered, but without the alias 'champion': boards/1 is worse"):
        sightline.register(home / "fresh-0", "boards", alias="champion", workspace=home, **on_train)
    assert sightline.load_model("boards@champion", workspace=home).bundle.hash == new.bundle
    forced = sightline.promote("boards/1", "champion", force=True, workspace=home)
    assert (forced.version.aliases, forced.compared) == (("champion",), None)


def test_an_alias_that_moved_while_models_were_scored_is_left_alone(home: Path) -> None:
    registry = open_registry(Config().tracking, home, make=True)
    assert registry is not None
    for place in ("fresh-0", "fresh-1", "runs/learned"):
        sightline.register(home / place, "boards", workspace=home)
    first, second, third = (registry.by_number("boards", number) for number in "123")
    registry.set_alias(first, "champion")

    def compare(new: ModelVersion, old: ModelVersion) -> ModelComparison:
        registry.set_alias(third, "champion")  # As another process would, while this one scores.
        scored = [Scored(one.label, str(one.bundle), "nano", "map", {"map": 0.5}, {}) for one in (new, old)]
        return ModelComparison("shapes", "test", 1, tuple(scored))

    with pytest.raises(GateError, match=r"moved the alias 'champion' of 'boards' from 1 to 3 .* run the command again"):
        promote(registry, second, "champion", compare=compare)
    assert registry.by_alias("boards", "champion") == registry.by_number("boards", "3")


def test_a_name_of_both_a_run_and_a_model(home: Path) -> None:
    notes: list[str] = []
    sightline.register(home / "fresh-0", "learned", workspace=home)
    found = sightline.load_model("learned", workspace=home, on_note=notes.append)
    assert found.bundle.hash == open_bundle(home / "fresh-0").hash
    note, _engine = notes
    run = home / "runs" / "learned" / "model"
    assert note == f"model 'learned' is learned/1 of the registry, not the run of the same name (write {run})"
    assert sightline.load_model(run, workspace=home).bundle.hash == open_bundle(run).hash
    # What is registered by the name of a run is the run.
    assert sightline.register("learned", "learned", workspace=home).version == "2"


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a@b", "x'; --", "<b>", "a b", "\x1b[31m"])
def test_hostile_names(home: Path, name: str) -> None:
    with pytest.raises((ConfigError, NotFoundError)):
        sightline.register("learned", name, workspace=home)
    with pytest.raises((ConfigError, NotFoundError)):
        sightline.load_model(f"{name}@champion", workspace=home)
    with pytest.raises(ConfigError):
        sightline.register("learned", "boards", alias=name or "1", workspace=home)
    assert not (home / "mlflow.db").exists()


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SIGHTLINE_HOME": str(home)}
    (home.parent / "here").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "sightline", *arguments],
        cwd=home.parent / "here",
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert list((home.parent / "here").iterdir()) == []
    return done


def test_the_commands(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command(home, "register", "learned", "--name", "boards", "--alias", "champion")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("learned is now boards/1 @champion (bundle ")
    sightline.register(home / "fresh-0", "boards", workspace=home)
    done = command(home, "models", "promote", "boards/2", "--dataset", "shapes", "--split", "train")
    assert done.returncode == 5
    assert "boards/2 is worse on 'shapes'" in done.stderr

    monkeypatch.setenv("SIGHTLINE_HOME", str(home))
    runner = CliRunner()
    lines = runner.invoke(app, ["models"]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "boards/2", "boards/1"]
    shown = runner.invoke(app, ["models", "show", "boards@champion", "--json"])
    assert json.loads(shown.stdout)["hash"] == open_bundle(home / "runs" / "learned" / "model").hash
    assert "triangle" in runner.invoke(app, ["models", "show", "boards@champion"]).stdout
    compare = ["models", "compare", "boards/1", "boards/2", "--dataset", "shapes", "--split", "train"]
    found = json.loads(runner.invoke(app, [*compare, "--json"]).stdout)["models"]
    assert found[0]["figures"]["map"] > found[1]["figures"]["map"]
    assert {"map50", "f1", "images_per_s"} <= found[0]["figures"].keys()
    assert list(found[0]["per_class"]) == list(sightline.open_dataset("shapes", workspace=home).classes)
    assert "images/s" in runner.invoke(app, compare).stdout
    refused = runner.invoke(app, ["models", "delete", "boards/2"])
    assert isinstance(refused.exception, ConfigError)
    assert "--yes" in str(refused.exception)
    assert len(sightline.list_models(workspace=home)) == 2
    assert runner.invoke(app, ["models", "delete", "boards", "--yes"]).stdout.startswith(
        "deleted boards/2, boards/1 @ch"
    )
    assert "no models yet" in runner.invoke(app, ["models"]).stdout


@pytest.mark.parametrize(("answer", "left", "code"), [("n", 1, 1), ("y", 0, 0)])
def test_at_a_terminal_deleting_is_asked_for(home: Path, answer: str, left: int, code: int) -> None:
    sightline.register(home / "fresh-0", "boards", workspace=home)
    outer, inner = os.openpty()
    command = [sys.executable, "-m", "sightline", "models", "delete", "boards", "--workspace", str(home)]
    process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, close_fds=True)
    os.close(inner)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(outer, 1024)
    assert b"Delete boards/1 from the registry?" in said
    os.write(outer, f"{answer}\n".encode())
    while True:
        try:
            said += os.read(outer, 1024)
        except OSError:  # The other end is closed.
            break
    os.close(outer)
    assert process.wait(60) == code, said
    assert b"Traceback" not in said
    assert len([version for version in sightline.list_models(workspace=home) if version.name == "boards"]) == left
