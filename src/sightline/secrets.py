"""Credentials, and how they stay out of everything that is written down, logged or shown."""

import os
import re
from typing import Any
from urllib.parse import unquote

HIDDEN = "***"

_NAMES = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|signature|authorization"
    r"|(?:api|access|account|private|shared)[_-]?key"
)
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_URI = re.compile(r"\b([a-z][a-z0-9+.-]*://)([^\s'\"<>]+)", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"\b([\w-]*(?:{_NAMES})[\w-]*|sig)(['\"]?\s*[=:]\s*)(?:(?:Bearer|Basic)\s+)?(\"[^\"]*\"|'[^']*'|[^\s&,;'\"]+)",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    r"\b(?:(?:Bearer|Basic)\s+[\w+/=.~-]{8,}|A[KS]IA[0-9A-Z]{16}|dapi[0-9a-f]{32}|gh[pousr]_\w{20,}|hf_\w{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_DIRECTORIES = ("PWD", "OLDPWD")
_MIN_ENVIRONMENT_VALUE = 8
"""Shorter values of the environment would be found in innocent words."""


def looks_secret(name: str) -> bool:
    """Whether something of this name should not be shown.

    >>> looks_secret("AWS_SECRET_ACCESS_KEY"), looks_secret("train.lr")
    (True, False)
    """
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """The text without passwords, tokens, and values of secret environment variables.

    >>> redact("cannot reach http://ann:pa55@host:5000/api?token=abc")
    'cannot reach http://***@host:5000/api?token=***'
    """
    for name, value in os.environ.items():
        if len(value) >= _MIN_ENVIRONMENT_VALUE and looks_secret(name) and name not in _DIRECTORIES:
            text = text.replace(value, HIDDEN)
    text = _URI.sub(lambda match: match[1] + _without_user(match[2]), text)
    return _TOKENS.sub(HIDDEN, _ASSIGNED.sub(rf"\g<1>\g<2>{HIDDEN}", text))


def redact_values(value: Any, name: str = "") -> Any:
    """The same nested value with secrets hidden, by the names of its keys and by what its texts hold."""
    if isinstance(value, dict):
        return {key: redact_values(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_values(inner, name) for inner in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and looks_secret(name) else redact(value)


def hide_parts(text: str, uri: str) -> str:
    """The text without a URI's password, even where it stands alone, and without other secrets."""
    user, at, _ = uri.partition("://")[2].rpartition("@")
    password = user.partition(":")[2] or user
    if at:
        for secret in (user, unquote(user), password, unquote(password)):
            text = text.replace(secret, HIDDEN)
    return redact(text)


def _without_user(rest: str) -> str:
    """What follows `://`; a password may hold slashes, a path with an @ has no colon before it."""
    user, at, behind = rest.rpartition("@")
    return f"{HIDDEN}@{behind}" if at and (":" in user or "/" not in user) else rest
