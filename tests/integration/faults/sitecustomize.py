"""Python imports this in every process that has its folder on PYTHONPATH: lets the loss of rank 1 go wrong on demand.

While the file that SIGHTLINE_TEST_NAN names exists, `nano` on rank 1 has a loss that is not a number.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "sightline.models.nano"


class Finder(importlib.abc.MetaPathFinder):
    """Finds the model as always, and changes it once it is loaded."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_spoil(module: ModuleType) -> None:
            load(module)
            spoil(module)

        spec.loader.exec_module = load_and_spoil  # type: ignore[method-assign]
        return spec


def spoil(module: Any) -> None:
    import torch.distributed as dist

    right = module.NanoDetector.loss

    def loss(*given: Any) -> Any:
        terms = right(*given)
        if Path(os.environ["SIGHTLINE_TEST_NAN"]).exists() and dist.is_initialized() and dist.get_rank() == 1:
            terms[0].total.data.fill_(float("nan"))
        return terms

    module.NanoDetector.loss = loss


if "SIGHTLINE_TEST_NAN" in os.environ:
    sys.meta_path.insert(0, Finder())
