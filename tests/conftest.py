"""What all tests share: hypothesis without deadlines, for machines are slow when they are busy; no cached weights."""

import os
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

settings.register_profile("sightline", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("sightline")
sys.path.insert(0, str(Path(__file__).parent))  # `families` is shared by the tests below.

# What `--model auto` takes depends on the weights that torch has downloaded before; in tests it has none.
os.environ["TORCH_HOME"] = os.path.join(tempfile.gettempdir(), "sightline-tests-without-weights")  # noqa: PTH118
# Databases that tests confirm are not added to the user's own list.
os.environ["XDG_STATE_HOME"] = os.path.join(tempfile.gettempdir(), "sightline-tests-state")  # noqa: PTH118
