"""What a detection worker needs, and which jobs are refused before a model is loaded."""

from pathlib import Path
from typing import Any

import pytest
from fakes import Images, names

from sightline.cluster.preflight import PROCESS_MEMORY, Node
from sightline.config import load_config
from sightline.detection.detect import JobSpec, prepare
from sightline.detection.preflight import check_cores, check_detection, worker_memory
from sightline.detection.rows import ModelName
from sightline.errors import ConfigError
from sightline.models.bundle import Bundle

MB = 1 << 20


def spec_of(bundle: Bundle, source: Images, place: Path, **settings: Any) -> JobSpec:
    config = load_config(flags={"detect": {"engine": "torch", **settings}})
    return prepare(source, bundle, ModelName("nano", "1"), config, device="cpu", cache=place)


def test_memory_grows_with_the_model_the_batch_the_size_and_the_threads(bundle: Bundle, tmp_path: Path) -> None:
    def memory(model: int = MB, threads: int = 1, **settings: Any) -> int:
        return worker_memory(spec_of(bundle, names(1), tmp_path, **settings), model, threads=threads)

    least = memory(threads=1)
    assert memory(model=11 * MB) == least + 20 * MB
    assert memory(batch=8) > least
    assert memory(size=640) > memory(size=320) > least
    assert memory(threads=2) >= least


def test_jobs_that_fit_and_jobs_that_do_not(bundle: Bundle, tmp_path: Path) -> None:
    def check(workers: int, memory: int, **settings: Any) -> list[str]:
        notes: list[str] = []
        job = spec_of(bundle, names(1), tmp_path, workers=workers, **settings)
        check_detection(job, [Node(2, memory)], on_note=notes.append)
        return notes

    assert check(1, PROCESS_MEMORY) == [], "in this process, whose own memory is taken already"
    assert check(2, 4 * PROCESS_MEMORY) == []
    assert "3 workers share 2 cores" in check(3, 8 * PROCESS_MEMORY)[0]
    with pytest.raises(
        ConfigError, match=r"2 workers of .* --workers 1, a smaller --batch, --size or --tile, or --over"
    ):
        check(2, int(1.5 * PROCESS_MEMORY))
    assert "warning: 2 workers of" in check(2, int(1.5 * PROCESS_MEMORY), oversubscribe=True)[0]


def test_cores_are_checked_before_the_model_is_known() -> None:
    with pytest.raises(ConfigError, match="give --workers 2, or --oversubscribe"):
        check_cores(load_config(flags={"detect": {"workers": 5}}).detect, [Node(2)])
    check_cores(load_config(flags={"detect": {"workers": 5, "oversubscribe": True}}).detect, [Node(2)])


def test_a_job_is_the_same_with_it(bundle: Bundle, tmp_path: Path) -> None:
    ids = {spec_of(bundle, names(1), tmp_path, oversubscribe=given).job.id for given in (False, True)}
    assert len(ids) == 1
