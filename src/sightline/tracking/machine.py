"""The machine or cluster of a run: what decides how fast it was. Never host names, users or addresses."""

import os
import platform
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sightline import __version__
from sightline.data.parallel import num_cores

_LIBRARIES = ("torch", "torchvision", "ray", "mlflow-skinny", "numpy", "pyarrow", "pillow")
_PLATFORMS = (
    ("DATABRICKS_RUNTIME_VERSION", "databricks"),
    ("SNOWFLAKE_SERVICE_NAME", "snowflake"),
    ("CDSW_PROJECT_ID", "cloudera"),
    ("SM_TRAINING_ENV", "sagemaker"),
    ("AZUREML_RUN_ID", "azureml"),
    ("CLOUD_ML_JOB_ID", "vertex"),
    ("AWS_BATCH_JOB_ID", "aws-batch"),
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("SLURM_JOB_ID", "slurm"),
)
_NODE_TYPES = ("SIGHTLINE_NODE_TYPE", "DB_INSTANCE_TYPE", "SM_CURRENT_INSTANCE_TYPE")
_MB = 1 << 20


@dataclass(frozen=True)
class Placement:
    """How a run is spread; one worker in this process unless told otherwise.

    Attributes:
        threads: Threads of each worker.
        devices: What the workers compute on, such as "cpu" or a GPU's name.
        backend: What adds up gradients between workers: gloo, nccl, ….
        launcher: What started the workers: process, elastic, ray, ….
    """

    nodes: int = 1
    workers: int = 1
    threads: int = 1
    devices: tuple[str, ...] = ("cpu",)
    backend: str = "none"
    launcher: str = "process"


@dataclass(frozen=True)
class Machine:
    """One node, and how the run is spread over such nodes."""

    platform: str
    node_type: str
    cpu: str
    cores: int
    memory_mb: int
    system: str
    placement: Placement
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """As JSON takes it, nested."""
        return asdict(self)

    def to_tags(self) -> dict[str, str]:
        """Flat, as texts."""
        values = self.to_dict()
        placement, versions = asdict(self.placement), values.pop("versions")
        values.pop("placement")
        values |= {**placement, "devices": ", ".join(self.placement.devices)}
        assert isinstance(versions, dict)
        tags = {f"machine.{name}": str(value) for name, value in values.items() if value != ""}
        return tags | {f"version.{name}": text for name, text in versions.items()}


def this_machine(placement: Placement, *, environment: Mapping[str, str] = os.environ) -> Machine:
    """What can be known without asking anybody over a network."""
    return Machine(
        platform=_platform(environment),
        node_type=_node_type(environment),
        cpu=_cpu(),
        cores=num_cores(),
        memory_mb=_memory_mb(),
        system=f"{platform.system()} {platform.machine()}",
        placement=placement,
        versions=library_versions(),
    )


def peak_memory_mb() -> float:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MB if sys.platform == "darwin" else peak / 1024


def _platform(environment: Mapping[str, str]) -> str:
    if Path("/snowflake/session").is_dir():
        return "snowflake"
    return next((name for variable, name in _PLATFORMS if environment.get(variable)), "local")


def _node_type(environment: Mapping[str, str]) -> str:
    """What the platform tells in the environment; virtual machines of EC2 have it in their hardware description."""
    told = next((environment[name] for name in _NODE_TYPES if environment.get(name)), "")
    if not told and _read("/sys/class/dmi/id/sys_vendor") == "Amazon EC2":
        told = _read("/sys/class/dmi/id/product_name")
    return told


def _cpu() -> str:
    lines = _read("/proc/cpuinfo").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def _memory_mb() -> int:
    """Of the machine, or what its container may take."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("/sys/fs/cgroup/memory.max")
    return min(total, int(limit) if limit.isdigit() else total) // _MB


def library_versions() -> dict[str, str]:
    """Sightline, Python and the libraries that decide what a run gives and how fast it is."""
    found = {"sightline": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
