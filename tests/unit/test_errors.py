"""Errors survive the way back from a worker."""

import pickle

import pytest

from sightline import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.ImageError("truncated image", "12 bytes", stage="read"),
        errors.MissingExtraError("SQLAlchemy", "sql"),
        errors.ConfigError("no"),
        errors.TooManyRejectedError("no"),
        errors.GateError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: errors.SightlineError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.exit_code) == (type(error), str(error), error.exit_code)
    assert vars(copy) == vars(error)


def test_what_a_script_must_tell_apart_has_an_exit_code_of_its_own() -> None:
    kinds = (errors.ConfigError, errors.NotFoundError, errors.TooManyRejectedError, errors.GateError)
    assert [kind.exit_code for kind in kinds] == [2, 3, 4, 5]
