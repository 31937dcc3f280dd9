import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `source_builders` is shared by the tests beside it.

from source_builders import Bucket


@pytest.fixture
def bucket():
    """A place in fsspec's memory filesystem, emptied afterwards."""
    place = Bucket()
    yield place
    place.clear()


@pytest.fixture(autouse=True)
def always_impatient(impatient):
    """No test of a source waits a minute for one that is gone."""
