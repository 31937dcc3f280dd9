"""One policy for what may pass by itself: a disk, a bucket, a database or a network that fails for a while.

A failure is tried again with growing, random pauses, and ends the run when it persists. What cannot pass, such as an
image that does not decode, is not tried again: that is the caller's to tell apart.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

Result = TypeVar("Result")
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """How long a failure is tried again.

    Attributes:
        give_up_after_s: From the first failure; the last one is raised then.
        max_wait_s: The longest pause; pauses double from a tenth of a second, each shortened at random.
    """

    give_up_after_s: float = 60.0
    max_wait_s: float = 5.0

    def call(self, function: Callable[[], Result], *, what: str, passes: Callable[[BaseException], bool]) -> Result:
        """What the function returns, at last.

        Args:
            what: What is tried, for the log.
            passes: Whether an error may pass by itself; any other is raised at once.
        """
        failed: list[float] = []

        def is_over(state: RetryCallState) -> bool:
            failed.append(monotonic())
            return failed[-1] - failed[0] >= self.give_up_after_s

        def log(state: RetryCallState) -> None:
            assert state.outcome is not None
            _LOGGER.warning("%s failed and is tried again: %s", what, state.outcome.exception())

        retrying = Retrying(
            retry=retry_if_exception(passes),
            wait=wait_random_exponential(multiplier=0.1, max=self.max_wait_s),
            stop=is_over,  # Not tenacity's own, which counts from the first call: that may hang before it fails.
            before_sleep=log,
            reraise=True,
        )
        return retrying(function)


STORAGE_RETRY = RetryPolicy()
"""For everything that is read or written: datasets, sources, targets."""
