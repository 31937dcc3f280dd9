"""Which numbers of processes that read images are refused, and that this comes before anything starts."""

from pathlib import Path

import pytest

import sightline
from sightline.cluster.pools import check_ingest, check_loader
from sightline.cluster.preflight import Node
from sightline.config import Config, load_config
from sightline.data.parallel import num_cores
from sightline.errors import ConfigError, NotFoundError

MANY = 2 * num_cores() + 1


def test_processes_of_ingest() -> None:
    for workers in (0, 1, MANY - 1):
        check_ingest(load_config(flags={"ingest": {"workers": workers}}))
    many = {"workers": MANY}
    advice = (
        rf"{MANY} processes .* give --set ingest.workers={num_cores()}, or --set ingest.oversubscribe=true to start"
    )
    with pytest.raises(ConfigError, match=advice):
        check_ingest(load_config(flags={"ingest": many}))
    check_ingest(load_config(flags={"ingest": {**many, "oversubscribe": True}}))


@pytest.mark.parametrize(
    ("processes", "workers", "cores", "fitting"),
    [(0, 8, 4, None), (8, 1, 4, None), (9, 1, 4, 4), (2, 4, 4, None), (3, 4, 4, 1), (3, 8, 4, 1), (10, 2, 8, 4)],
)
def test_processes_of_loaders(processes: int, workers: int, cores: int, fitting: int | None) -> None:
    """Those of all workers together."""
    config, nodes = _loader(processes), [Node(cores=cores)]
    if fitting is None:
        check_loader(config, workers=workers, nodes=nodes)
        return
    advice = f"{processes * workers} loader processes .* give --set loader.processes={fitting}, or --set workers.overs"
    with pytest.raises(ConfigError, match=advice):
        check_loader(config, workers=workers, nodes=nodes)
    check_loader(_loader(processes, oversubscribe=True), workers=workers, nodes=nodes)


def test_they_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Before the source, the model or the dataset is looked at: there is none."""
    for verb in (
        lambda config: sightline.ingest(tmp_path / "nothing", "x", workspace=tmp_path, config=config),
        lambda config: sightline.evaluate("nothing", "nothing", workspace=tmp_path, config=config),
        lambda config: sightline.compare_models("a", "b", dataset="nothing", workspace=tmp_path, config=config),
        lambda config: sightline.export_model(
            "nothing", to="onnx", int8=True, calibrate="nothing", workspace=tmp_path, config=config
        ),
    ):
        with pytest.raises(ConfigError, match=f"^{MANY} .*processes are more than 2 for each of"):
            verb(load_config(flags={"ingest": {"workers": MANY}, "loader": {"processes": MANY}}))
        with pytest.raises(NotFoundError):
            verb(Config())
    with pytest.raises(ConfigError, match=r"ingest\.workers="):
        sightline.synth("shapes", "x", workspace=tmp_path, config=load_config(flags={"ingest": {"workers": MANY}}))
    assert list(tmp_path.iterdir()) == []


def _loader(processes: int, *, oversubscribe: bool = False) -> Config:
    return load_config(flags={"loader": {"processes": processes}, "workers": {"oversubscribe": oversubscribe}})
