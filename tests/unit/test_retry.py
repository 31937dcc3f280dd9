"""What may pass by itself is tried again, and only that."""

import logging
import time

import pytest

from sightline.retry import RetryPolicy


class Flaky:
    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "read"


def passes(error: BaseException) -> bool:
    return isinstance(error, OSError)


def test_a_failure_that_passes(caplog: pytest.LogCaptureFixture) -> None:
    flaky = Flaky(OSError("EIO"), OSError("EIO again"))
    with caplog.at_level(logging.WARNING, "sightline"):
        assert RetryPolicy(max_wait_s=0.01).call(flaky, what="reading x", passes=passes) == "read"
    assert flaky.calls == 3
    assert [record.getMessage() for record in caplog.records] == [
        "reading x failed and is tried again: EIO",
        "reading x failed and is tried again: EIO again",
    ]


def test_a_failure_that_persists_is_raised_as_it_is() -> None:
    flaky = Flaky(*(OSError(str(number)) for number in range(10_000)))
    with pytest.raises(OSError, match=r"^\d+$"):
        RetryPolicy(give_up_after_s=0.2, max_wait_s=0.01).call(flaky, what="reading", passes=passes)
    assert flaky.calls > 2


def test_a_call_that_takes_long_to_fail_is_tried_again() -> None:
    """Time counts from the first failure: a mount may take minutes to give up."""
    flaky = Flaky(OSError("EIO"))

    def slow() -> str:
        time.sleep(0.1 if flaky.errors else 0)
        return flaky()

    assert RetryPolicy(give_up_after_s=0.05, max_wait_s=0.01).call(slow, what="reading", passes=passes) == "read"


def test_what_cannot_pass_is_raised_at_once() -> None:
    flaky = Flaky(ValueError("not an image"))
    with pytest.raises(ValueError, match="not an image"):
        RetryPolicy().call(flaky, what="decoding", passes=passes)
    assert flaky.calls == 1
