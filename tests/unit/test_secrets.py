"""Credentials are hidden wherever they stand, and nothing else is."""

from pathlib import Path

import pytest

from sightline.config import load_config
from sightline.errors import ConfigError
from sightline.secrets import HIDDEN, hide_parts, looks_secret, redact, redact_values

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("http://ann:hunter2@host:5000/api", "hunter2"),
        ("https://hunter2@dbc.example.com", "hunter2"),
        ("postgresql+psycopg://ann:hun/te@r2@db/mlflow", "hun/te@r2"),
        ("cannot open 'mysql://ann:hunter2@db/x': refused", "hunter2"),
        ("GET https://host/a?x=1&token=hunter2&y=2", "hunter2"),
        ("https://store/blob?sv=1&sig=hunter2%3D", "hunter2"),
        ("Authorization: Bearer hunter2hunter2", "hunter2"),
        ("{'password': 'hunter2'}", "hunter2"),
        ("api_key=hunter2", "hunter2"),
        ("AWS AKIAIOSFODNN7EXAMPLE said no", "AKIAIOSFODNN7EXAMPLE"),
        (f"sent {JWT}", JWT),
        ("dapi0123456789abcdef0123456789abcdef", "dapi0123"),
    ],
)
def test_secrets_are_hidden(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)
    assert HIDDEN in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://host:5000/api/2.0?run=1",
        "sqlite:////home/ann/my work/mlflow.db",
        "s3://bucket/path@v2/file",
        "mailto ann@example.com",
        f"no such file: {Path.cwd()}/x",  # Which the environment has as PWD.
        "/Users/ann@example.com/boards",
        "the loss is not finite at step 3: class 1.5",
    ],
)
def test_innocent_texts_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_values_of_the_environment_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "correct-horse")
    monkeypatch.setenv("COLOR", "turquoise")
    assert redact("server said correct-horse, turquoise") == f"server said {HIDDEN}, turquoise"


def test_nested_values_by_their_names_and_by_what_they_hold() -> None:
    values = {"train": {"lr": 0.1, "api_token": "abc"}, "uri": ["http://a:b@host/x"], "password": "", "n": None}
    hidden = {"train": {"lr": 0.1, "api_token": HIDDEN}, "uri": [f"http://{HIDDEN}@host/x"], "password": "", "n": None}
    assert redact_values(values) == hidden


def test_a_password_that_stands_alone_in_an_error() -> None:
    uri = "http://ann:hunter%402@host"
    assert "hunter" not in hide_parts("pool(host='ann:hunter%402@host'): user hunter@2 refused", uri)


def test_no_setting_of_ours_looks_secret() -> None:
    names = [f"{section}.{name}" for section, values in load_config().model_dump().items() for name in values]
    assert [name for name in names if looks_secret(name)] == []


@pytest.mark.parametrize("text", ["tracking.uri http://ann:hunter2@host", "tracking.enabled=http://ann:hunter2@host"])
def test_wrong_settings_are_told_without_secrets(text: str) -> None:
    with pytest.raises(ConfigError, match="host") as caught:
        load_config(sets=(text,))
    assert "hunter2" not in str(caught.value)
