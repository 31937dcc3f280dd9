"""What all tests share: hypothesis without deadlines, for machines are slow when they are busy."""

import os

from hypothesis import settings

settings.register_profile("sightline", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("sightline")
