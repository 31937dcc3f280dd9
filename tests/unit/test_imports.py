"""Importing does nothing, and dependencies point one way."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import sightline

PACKAGE = Path(sightline.__file__).parent
LAYERS = [
    {"errors", "lifeline", "process_identity", "retry"},
    {"secrets"},
    {"structures", "config", "workspace"},
    {"data", "metrics", "tracking", "cluster"},
    {"models"},
    {"engines"},
    {"training", "report"},
    {"registering", "detection"},
    {"api", "model_api", "detect_api", "report_api", "demo"},
    {"app"},
    {"cli", "__main__"},
]
OWNERS = {
    "torch": {"data/worker.py", "models", "engines", "training"},
    "duckdb": {"detection"},
    "torchvision": {"models"},
    "mlflow": {"tracking/pyfunc_model.py", "tracking/pyfunc_shim.py"},
    "pandas": {"tracking/pyfunc_model.py"},
    "streamlit": {"app"},
    "ray": {"training/ray_launcher.py", "training/ray_worker.py", "detection/ray_pool.py", "cluster"},
}
"""Files and folders that may import a heavy library at their top, for they are imported only when it is needed."""
HEAVY = {
    "torch",
    "torchvision",
    "ray",
    "mlflow",
    "streamlit",
    "pandas",
    "sqlalchemy",
    "duckdb",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "nncf",
}


def imported_by(module: Path) -> set[tuple[str, bool]]:
    """(dotted name, whether at import time) of every import in a file."""
    tree = ast.parse(module.read_text("utf-8"))
    top = {id(node) for node in tree.body}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, id(node) in top) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add((node.module, id(node) in top))
    return found


def layer_of(dotted: str) -> int | None:
    part = dotted.split(".")[1] if "." in dotted else ""
    return next((number for number, names in enumerate(LAYERS) if part in names), None)


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(module: Path) -> None:
    dotted = "sightline." + ".".join(module.relative_to(PACKAGE).with_suffix("").parts)
    own = layer_of(dotted)
    if dotted == "sightline.__init__":
        return
    assert own is not None, f"{dotted} is in no layer: add it to LAYERS"
    for name, _ in imported_by(module):
        other = layer_of(name) if name.startswith("sightline.") else None
        assert other is None or other <= own, f"{dotted} imports {name}, which lies above it"


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_where_they_are_used(module: Path) -> None:
    own = str(module.relative_to(PACKAGE))
    for name, at_import in imported_by(module):
        library = name.split(".")[0]
        owned = {own, own.split("/")[0]} & OWNERS.get(library, set())
        assert not (at_import and library in HEAVY and not owned), f"{own} imports {name}"


def test_only_tracking_knows_mlflow() -> None:
    knowing = {module for module in PACKAGE.rglob("*.py") if any("mlflow" in name for name, _ in imported_by(module))}
    outside = {module for module in knowing if module.relative_to(PACKAGE).parts[0] != "tracking"}
    assert {name for module in outside for name, _ in imported_by(module) if name.split(".")[0] == "mlflow"} == set()


def test_every_imported_library_is_declared() -> None:
    """What comes along with another package today may not come with its next version."""
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [entry for name, group in project["optional-dependencies"].items() if name != "dev" for entry in group]
    declared = {canonical(re.split(r"[\[<>=~! ]", entry)[0]) for entry in [*project["dependencies"], *extras]}
    imported = {name.split(".")[0] for module in PACKAGE.rglob("*.py") for name, _ in imported_by(module)}
    providers = metadata.packages_distributions()
    undeclared = {
        name
        for name in imported - sys.stdlib_module_names - {"sightline"}
        if not {canonical(provider) for provider in providers.get(name, [name])} & declared
    }
    assert undeclared == set()


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def run_python(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_import_writes_nothing_logs_nothing_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = """
import json, logging, os, sys, threading
environment, handlers = dict(os.environ), list(logging.root.handlers)
import sightline
print(json.dumps({
    "modules": sorted({name.split(".")[0] for name in sys.modules}),
    "environment": dict(os.environ) == environment,
    "logging": logging.root.handlers == handlers,
    "threads": threading.active_count(),
}))
"""
    found = json.loads(run_python(code, tmp_path))
    assert not HEAVY & set(found["modules"])
    assert found["environment"]
    assert found["logging"]
    assert found["threads"] == 1
    assert list(tmp_path.iterdir()) == []


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = """
import sys
sys.argv = ["sightline", "--help"]
from sightline.cli.main import app
try:
    app()
except SystemExit:
    pass
print("LOADED", *sorted({name.split(".")[0] for name in sys.modules}))
"""
    loaded = set(run_python(code, tmp_path).split("LOADED")[1].split())
    assert not loaded & (HEAVY | {"numpy", "pyarrow", "PIL", "pydantic", "altair"})


@pytest.mark.parametrize("name", sightline.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(sightline, name) is not None


def test_no_folder_has_the_name_of_a_function() -> None:
    """Importing a folder puts it in the package under its name: `sightline.train` would no longer be the verb."""
    assert not {path.stem for path in PACKAGE.iterdir()} & set(sightline.__all__)


def test_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sightline.nonsense
