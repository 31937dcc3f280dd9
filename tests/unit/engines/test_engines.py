"""Every engine gives the numbers of the model's own modules, at any batch and size; no training is needed for that."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lively import make_canvases, make_images, make_lively
from torch import Tensor

from families import QUICK, TESTED
from sightline.engines.engine import Engine
from sightline.engines.factory import choose_engine, open_engine
from sightline.engines.fuse import fuse_batchnorm
from sightline.engines.openvino_engine import OpenVinoEngine
from sightline.errors import ConfigError, MissingExtraError
from sightline.models.detector import Detector

COMPILED = ("onnxruntime", "openvino")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def families() -> list[object]:
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in TESTED]


def inputs_of(model: Detector, graph: str, images: Tensor) -> list[Tensor]:
    """Inputs of other sizes than those that the graph was exported with."""
    if graph != "box_head":
        return [images]
    return [torch.rand(5, *model.graphs()[graph].inputs[0].shape[1:])]


def assert_same_numbers(engine: Engine, model: Detector, images: Tensor) -> None:
    for name, graph in model.graphs().items():
        given = inputs_of(model, name, images)
        with torch.inference_mode():
            ours, theirs = map(torch.as_tensor, engine.run(name, *given)), graph.module(*given)
        for output, one, other in zip(graph.outputs, ours, theirs, strict=True):
            assert one.shape == other.shape, output
            scale = max(other.abs().max().item(), 1e-6)
            # OpenVINO takes fewer bits where it may. A grid is there for its size alone, and may be all but zero.
            allowed = 0.05 if name in model.inference.bfloat16 and engine.name == "openvino" else 1e-3
            assert output.startswith("grid") or (one - other).abs().max().item() <= allowed * scale, output


@pytest.mark.parametrize("name", TESTED)
def test_torch_gives_the_same_numbers(name: str) -> None:
    model = make_lively(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert_same_numbers(open_engine(model.source(), name="torch", threads=1), model, make_images(2, 64, 96))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", TESTED)
def test_no_batchnorm_is_left(name: str) -> None:
    model = make_lively(name)
    assert fuse_batchnorm(model) > 0
    assert not [path for path, module in model.named_modules() if isinstance(module, torch.nn.BatchNorm2d)]


@pytest.mark.parametrize("engine", COMPILED)
@pytest.mark.parametrize("name", families())
def test_compiled_gives_the_same_numbers_at_any_batch_and_size(name: str, engine: str, cache: Path) -> None:
    model = make_lively(name)
    opened = open_engine(model.source(name), name=engine, threads=1, cache=cache)
    for count, height, width in ((1, 128, 128), (3, 64, 160), (2, 192, 96)):
        assert_same_numbers(opened, model, make_images(count, height, width))


@pytest.mark.parametrize("engine", ["torch", *COMPILED])
def test_detections_are_those_of_the_model(engine: str, cache: Path) -> None:
    model, canvases = make_lively("nano"), make_canvases(2, 64, 96)
    opened = open_engine(model.source("nano"), name=engine, threads=1, cache=cache)
    for one, other in zip(opened.detect(canvases), model.detect(canvases), strict=True):
        # Fresh weights are less stable than learned ones, for which the integration test asks for more.
        allowed = 0.05 if engine == "openvino" else 1e-3
        np.testing.assert_allclose(one.scores[:50], other.scores[:50], atol=allowed, rtol=0)
    assert opened.detect(canvases[:0]) == []
    assert opened.name == engine


def test_outputs_of_one_thread_are_not_those_of_another(cache: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = make_lively("resnet18")
    engine = open_engine(model.source("resnet18"), name="openvino", threads=1, cache=cache)
    images = [make_canvases(1, 64, 64) + np.uint8(shift) for shift in range(0, 80, 10)]
    alone = [engine.detect(one)[0].scores for one in images]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            together = [found[0].scores for found in pool.map(engine.detect, images)]
            assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_auto_takes_the_fastest_that_is_installed(cache: Path) -> None:
    engine = open_engine(make_lively("nano").source("nano"), threads=1, cache=cache)
    assert choose_engine("cpu") == (engine.name, "the fastest on CPUs that is installed")
    assert choose_engine("cuda") == ("torch", "the model is on 'cuda'")


def test_callers_at_once_get_what_one_gets(cache: Path) -> None:
    """Each stream has buffers of its own."""
    source, images = make_lively("nano").source("nano"), make_canvases(8, 64, 96)
    alone = open_engine(source, name="openvino", threads=1, cache=cache)
    shared = open_engine(source, name="openvino", threads=2, streams=2, cache=cache)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda place: shared.detect(images[place : place + 1])[0], range(8)))
    for place, one in enumerate(found):
        expected = alone.detect(images[place : place + 1])[0]
        assert np.array_equal(one.labels, expected.labels)
        np.testing.assert_allclose(one.boxes, expected.boxes, atol=1e-3)


def test_the_first_run_of_a_graph_in_openvino_is_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once have waited for each other for ever: one for a static of the bindings, one for Python's lock."""
    model = make_lively("nano")
    engine = open_engine(model.source("nano"), name="openvino", threads=2, cache=cache, streams=2)
    assert isinstance(engine, OpenVinoEngine)
    infer, under_way, most = engine._infer, [0], [0]

    def slowly(name: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        time.sleep(0.1)
        under_way[0] -= 1
        return infer(name, inputs)

    monkeypatch.setattr(engine, "_infer", slowly)
    run = partial(engine.run, next(iter(model.graphs())), make_images(1, 64, 64))
    with ThreadPoolExecutor(2) as pool:
        first = [pool.submit(run) for _ in range(2)]
        assert [len(done.result()) > 0 for done in first] == [True, True]
        assert most == [1]
        assert all(done.result() for done in [pool.submit(run) for _ in range(2)])
        assert most == [2]


def test_signals_are_survived_after_engines_come_and_go(cache: Path) -> None:
    """In a process of its own: handlers of Python run on the stack that OpenVINO has set up, if there is one."""
    code = f"""
import signal
from pathlib import Path
from lively import make_lively
from sightline.engines.factory import open_engine

model = make_lively("nano")
one, two = (open_engine(model.source("nano"), name="openvino", threads=1, cache=Path({str(cache)!r})) for _ in "ab")
del one
del two
signal.signal(signal.SIGUSR1, lambda *_: print("survived"))
signal.raise_signal(signal.SIGUSR1)
"""
    here = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **here})
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


def test_bfloat16_where_it_is_asked_for(cache: Path) -> None:
    """Less exact, so it is not the same to the last digit; refused where the processor lacks it."""
    import openvino

    source, images = make_lively("fasterrcnn-mobilenet-320").source("320"), make_images(1, 128, 128).numpy()
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(ConfigError, match="no instructions for bfloat16"):
            open_engine(source, name="openvino", bfloat16=True, cache=cache)
        return
    exact = open_engine(source, name="openvino", threads=1, cache=cache).run("features", images)
    quick = open_engine(source, name="openvino", threads=1, bfloat16=True, cache=cache).run("features", images)
    # Fresh weights make the most of rounding, so it is the whole that is compared, not the worst number.
    assert 0 < np.linalg.norm(quick[0] - exact[0]) / np.linalg.norm(exact[0]) < 0.2


def test_torch_threads_are_put_back() -> None:
    open_engine(make_lively("nano").source(), name="torch", threads=2).detect(make_canvases(1, 64, 64))
    assert torch.get_num_threads() == 1


def test_torch_stays_on_one_thread_until_the_last_engine_that_asked_is_closed(cache: Path) -> None:
    torch.set_num_threads(3)
    source = make_lively("fasterrcnn-mobilenet-320").source("streams")
    first, second = (open_engine(source, name="openvino", threads=2, streams=2, cache=cache) for _ in range(2))
    assert torch.get_num_threads() == 1
    first.close()
    assert torch.get_num_threads() == 1
    second.close()
    assert torch.get_num_threads() == 3


def test_wrong_settings_are_refused() -> None:
    source = make_lively("nano").source()
    with pytest.raises(ConfigError, match="'tensorrt' is not known: take one of auto, torch, onnxruntime, openvino"):
        open_engine(source, name="tensorrt")
    with pytest.raises(ConfigError, match="threads is 0"):
        open_engine(source, name="torch", threads=0)
    with pytest.raises(ConfigError, match="'torch' does not run in bfloat16: take openvino"):
        open_engine(source, name="torch", bfloat16=True)
    with pytest.raises(ConfigError, match="'openvino' runs on the CPU and the model is on 'cuda'"):
        open_engine(source, name="openvino", device="cuda")


@pytest.mark.parametrize(("engine", "package"), [("onnxruntime", "onnxruntime"), ("openvino", "openvino")])
def test_a_missing_package_names_the_extra(
    engine: str, package: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)  # As Python does for what cannot be imported.
    with pytest.raises(MissingExtraError, match=r"sightline\[engines\]"):
        open_engine(make_lively("nano").source("nano"), name=engine, cache=cache)
