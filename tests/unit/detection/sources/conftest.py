import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `source_builders` is shared by the tests beside it.

from source_builders import Bucket

from sightline.retry import STORAGE_RETRY


@pytest.fixture
def bucket():
    """A place in fsspec's memory filesystem, emptied afterwards."""
    place = Bucket()
    yield place
    place.clear()


@pytest.fixture(autouse=True)
def impatient():
    """Failures are tried again for a moment only; the policy is frozen, and many modules hold it."""
    usual = vars(STORAGE_RETRY).copy()
    vars(STORAGE_RETRY).update(give_up_after_s=0.05, max_wait_s=0.01)
    yield
    vars(STORAGE_RETRY).update(usual)
