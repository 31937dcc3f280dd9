"""A disk that fails as a test wants it to."""

import errno
import os
from typing import Any

import pytest

ALWAYS = 10**6


class FailingDisk:
    """Some function fails for paths that contain a word, as often as it is told.

    Attributes:
        failures: How often it is yet to fail.
        number: What it says then.
        failed: How often it has failed.
    """

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, function: str, word: str, *, failures: int = 0) -> None:
        self.failures, self.number, self.failed = failures, errno.EIO, 0
        real = getattr(owner, function)

        def failing(*given: Any, **named: Any) -> Any:
            if self.failures and given and word in str(given[0]):
                self.failures -= 1
                self.failed += 1
                raise OSError(self.number, os.strerror(self.number), str(given[0]))
            return real(*given, **named)

        patch.setattr(owner, function, failing)
