"""Programs that some tests need and pip cannot bring."""

import os

import pytest


def need(program: str, found: str | None) -> str:
    """The program; where it is missing, the test is skipped, or fails in CI unless SYSTEM_PACKAGES=no asks for that."""
    if found is None:
        message = f"{program} is not installed: scripts/test-programs brings it when run as root"
        if os.environ.get("CI") == "true" and os.environ.get("SYSTEM_PACKAGES") != "no":
            pytest.fail(message)
        pytest.skip(message)
    return found
