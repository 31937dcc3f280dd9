"""Conditions in SQL run restricted."""

import pyarrow as pa
import pytest

from sightline.detection.sources.where import Condition


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("enable_external_access", False), ("autoinstall_known_extensions", False), ("lock_configuration", True)],
)
def test_a_condition_runs_without_access_and_with_locked_settings(setting: str, expected: bool) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    rows = Condition(f"a = 2 and current_setting('{setting}') = {expected}", batch.schema).rows(batch)
    assert rows == [1]
