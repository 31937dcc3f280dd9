import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `builders` is shared by the tests below.

from builders import Ingest


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    """Ingest into a workspace of this test, in this process unless it says otherwise."""
    return Ingest(tmp_path / "workspace")
