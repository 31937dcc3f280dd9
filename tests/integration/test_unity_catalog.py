"""Models registered in Unity Catalog, through MLflow's own client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from unity_catalog import TOKEN, Catalog, serve

import sightline
from sightline.errors import ConfigError, NotFoundError
from sightline.models.bundle import Bundle, describe, save_bundle
from sightline.models.factory import make_model

NAME = "main.vision.boards"


@pytest.fixture
def catalog(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """Runs are kept in the workspace, models in Unity Catalog."""
    with serve(f"sqlite:///{tmp_path}/catalog.db", bucket) as (url, found):
        monkeypatch.setenv("MLFLOW_REGISTRY_URI", "databricks-uc")
        monkeypatch.setenv("DATABRICKS_HOST", url)
        monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
        monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
        yield found


def make_bundle(place: Path, seed: int) -> Bundle:
    torch.manual_seed(seed)
    model = make_model("nano", num_classes=2, size=64)
    info = describe(model, name="nano", classes=("cat", "dog"))
    return save_bundle(place, model.state_dict(), info, {"README.md": b"a card"})


def test_the_life_of_a_model_in_unity_catalog(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, current = tmp_path / "home", tmp_path / "current"
    current.mkdir()
    monkeypatch.chdir(current)
    first, second = (make_bundle(tmp_path / f"net-{seed}", seed) for seed in range(2))
    assert sightline.list_models(workspace=home) == []
    kept = sightline.register(first.path, NAME, alias="champion", workspace=home)
    assert (kept.label, kept.bundle, kept.facts["model"]) == (f"{NAME}/1 @champion", first.hash, "nano")
    assert sightline.register(first.path, NAME, workspace=home) == kept
    assert sightline.register(second.path, NAME, workspace=home).version == "2"
    sightline.register(second.path, "main.vision.other", workspace=home)

    labels = [version.label for version in sightline.list_models(workspace=home)]
    assert labels == [f"{NAME}/2", f"{NAME}/1 @champion", "main.vision.other/1"]
    elsewhere = tmp_path / "elsewhere"  # As on another machine.
    for reference, wanted in ((NAME, first), (f"{NAME}@champion", first), (f"{NAME}/2", second)):
        assert sightline.load_model(reference, engine="torch", workspace=elsewhere).bundle.hash == wanted.hash
    assert "POST model-versions/generate-temporary-credentials" in catalog.calls
    assert not list(current.iterdir())  # MLflow's default is a database there.

    promoted = sightline.promote(f"{NAME}/2", "champion", force=True, workspace=home)
    assert promoted.version.aliases == ("champion",)
    assert [version.version for version in sightline.delete_model(f"{NAME}/1", workspace=home)] == ["1"]
    assert [version.label for version in sightline.list_models(NAME, workspace=home)] == [f"{NAME}/2 @champion"]
    sightline.delete_model(NAME, workspace=home)
    with pytest.raises(NotFoundError, match="no model has that name"):
        sightline.load_model(f"{NAME}@champion", workspace=home)


def test_names_of_unity_catalog_have_three_parts(catalog: Catalog, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "net", 0)
    with pytest.raises(ConfigError, match=r"'boards' is not a name of Unity Catalog.*CATALOG\.SCHEMA\.MODEL"):
        sightline.register(bundle.path, "boards", workspace=tmp_path)
    # A run has a name without dots, and is found all the same.
    make_bundle(tmp_path / "runs" / "first" / "model", 0)
    assert sightline.load_model("first", engine="torch", workspace=tmp_path).bundle.path.parent.name == "first"
