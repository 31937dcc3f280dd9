"""The machine: what the platform tells, never who or where."""

import getpass
import json
import platform

import pytest

from sightline.tracking.machine import Placement, peak_memory_mb, this_machine


@pytest.mark.parametrize(
    ("environment", "name", "node_type"),
    [
        ({"DATABRICKS_RUNTIME_VERSION": "17.3", "DB_INSTANCE_TYPE": "m5.xlarge"}, "databricks", "m5.xlarge"),
        ({"SM_TRAINING_ENV": "{}", "SM_CURRENT_INSTANCE_TYPE": "ml.g5.2xlarge"}, "sagemaker", "ml.g5.2xlarge"),
        ({"SNOWFLAKE_SERVICE_NAME": "TRAIN"}, "snowflake", None),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SIGHTLINE_NODE_TYPE": "n2-standard-8"},
            "kubernetes",
            "n2-standard-8",
        ),
        ({}, "local", None),
    ],
)
def test_platform_and_node_type(environment: dict[str, str], name: str, node_type: str | None) -> None:
    machine = this_machine(Placement(), environment=environment)
    assert machine.platform == name
    assert node_type in (None, machine.node_type)


def test_facts_are_complete_and_name_nobody() -> None:
    placement = Placement(nodes=2, workers=4, threads=3, devices=("cpu",), backend="gloo", launcher="elastic")
    machine = this_machine(placement)
    tags = machine.to_tags()
    assert tags["machine.workers"] == "4"
    assert tags["machine.backend"] == "gloo"
    assert int(tags["machine.cores"]) > 0
    assert int(tags["machine.memory_mb"]) > 100
    assert tags["machine.cpu"]
    assert {"version.python", "version.torch", "version.mlflow-skinny", "version.sightline"} <= tags.keys()
    text = json.dumps([machine.to_dict(), tags])
    assert platform.node() not in text
    assert f'"{getpass.getuser()}"' not in text


def test_peak_memory_is_in_megabytes() -> None:
    assert 20 < peak_memory_mb() < 100_000
