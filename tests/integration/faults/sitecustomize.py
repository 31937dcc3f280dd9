"""Python imports this in every process that has its folder on PYTHONPATH: lets things go wrong on demand.

While the file that SIGHTLINE_TEST_NAN names exists, `nano` on rank 1 has a loss that is not a number; while one of the
same name with `.hang` exists, its main thread stands still. Workers of
detection die over the images whose names are lines of the file that SIGHTLINE_TEST_POISON names; over those that are
named with `:hang` behind it they stand still, and those with `:break` break the model for the whole process.
SIGHTLINE_TEST_GIVE_UP_S says for how many seconds what may pass by itself is tried again.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class Finder(importlib.abc.MetaPathFinder):
    """Finds a module as always, and changes it once it is loaded."""

    def __init__(self, module: str, spoil: Callable[[Any], None]) -> None:
        self._module, self._spoil = module, spoil

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_spoil(module: ModuleType) -> None:
            load(module)
            self._spoil(module)

        spec.loader.exec_module = load_and_spoil  # type: ignore[method-assign]
        return spec


def spoil_loss(module: Any) -> None:
    import torch.distributed as dist

    right, file = module.NanoDetector.loss, Path(os.environ["SIGHTLINE_TEST_NAN"])

    def loss(*given: Any) -> Any:
        terms = right(*given)
        if not dist.is_initialized() or dist.get_rank() != 1:
            return terms
        while file.with_suffix(".hang").exists():
            time.sleep(0.1)
        if file.exists():
            terms[0].total.data.fill_(float("nan"))
        return terms

    module.NanoDetector.loss = loss


def poison_images(module: Any) -> None:
    right = module.Worker._prepare

    def prepare(self: Any, item: Any) -> Any:
        file = Path(os.environ["SIGHTLINE_TEST_POISON"])
        poison, name = file.read_text().split() if file.exists() else [], Path(item.uri).name
        if name in poison:
            os.abort()
        if f"{name}:hang" in poison:
            time.sleep(3600)
        if f"{name}:break" in poison:
            import broken_model

            broken_model.break_model()
        return right(self, item)

    module.Worker._prepare = prepare


def give_up_soon(module: Any) -> None:
    module.STORAGE_RETRY = module.RetryPolicy(give_up_after_s=float(os.environ["SIGHTLINE_TEST_GIVE_UP_S"]))


if "SIGHTLINE_TEST_GIVE_UP_S" in os.environ:
    sys.meta_path.insert(0, Finder("sightline.retry", give_up_soon))
if "SIGHTLINE_TEST_NAN" in os.environ:
    sys.meta_path.insert(0, Finder("sightline.models.nano", spoil_loss))
if "SIGHTLINE_TEST_POISON" in os.environ:
    sys.meta_path.insert(0, Finder("sightline.detection.worker", poison_images))
