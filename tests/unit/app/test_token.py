"""Nothing is answered without the token, which only `--no-token` on loopback switches off."""

import asyncio
import stat
from collections.abc import MutableMapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.app.server import ServeOptions, _checked_token, _redirect_file, is_loopback
from sightline.app.token import COOKIE, TokenCheck
from sightline.errors import ConfigError

TOKEN = "0123456789abcdef-XYZ"
NAME = f"{COOKIE}-8501"
Sent = list[MutableMapping[str, Any]]


def ask(
    path: str = "/", query: str = "", *, kind: str = "http", method: str = "GET", **headers: str
) -> tuple[bool, Sent]:
    """Whether the app behind was reached, and what was sent."""
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    named = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "query_string": query.encode(), "method": method, "headers": named}
    scope["server"] = ("127.0.0.1", 8501)
    asyncio.run(TokenCheck(app, token=TOKEN)(scope, receive, send))
    return bool(reached), sent


@pytest.mark.parametrize("path", ["/", "/detections", "/media/abc.png", "/_stcore/health", "/_stcore/upload_file/1/2"])
def test_nothing_is_answered_without_it(path: str) -> None:
    reached, sent = ask(path)
    assert not reached
    assert sent[0]["status"] == 401
    assert TOKEN.encode() not in sent[1]["body"]


def test_a_websocket_is_closed() -> None:
    assert ask("/_stcore/stream", kind="websocket") == (False, [{"type": "websocket.close", "code": 1008}])
    assert ask("/_stcore/stream", kind="websocket", cookie=f"{NAME}={TOKEN}")[0]


def test_a_browser_brings_it_once_and_keeps_a_cookie() -> None:
    reached, sent = ask("/runs", f"token={TOKEN}")
    headers = dict(sent[0]["headers"])
    assert (reached, sent[0]["status"], headers[b"location"]) == (False, 303, b"/runs")
    cookie = headers[b"set-cookie"].decode()
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask("/runs", cookie=cookie.split(";")[0])[0]


@pytest.mark.parametrize("other", ["foo", 'a={"x":1}', "version=1", f"{COOKIE}-8502=another", "=", "a=b=c"])
def test_cookies_of_other_programs_do_not_matter(other: str) -> None:
    assert ask("/", cookie=f"{other}; {NAME}={TOKEN}")[0]
    assert not ask("/", cookie=f"{other}; {COOKIE}-8502={TOKEN}")[0]


def test_programs_bring_it_in_a_header() -> None:
    assert ask(authorization=f"Bearer {TOKEN}")[0]
    assert not ask(authorization=f"Basic {TOKEN}")[0]


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "///evil.example", "/\t/evil.example"])
def test_it_sends_nobody_elsewhere(path: str) -> None:
    location = dict(ask(path, f"token={TOKEN}")[1][0]["headers"])[b"location"]
    assert location.startswith(b"/")
    assert not location.startswith((b"//", b"/\\"))
    assert b"\t" not in location


def test_it_is_not_taken_from_the_address_of_an_upload() -> None:
    assert ask("/_stcore/upload_file/1/2", f"token={TOKEN}", method="PUT")[1][0]["status"] == 401


@given(st.text(alphabet=st.characters(codec="latin-1", exclude_characters=";"), max_size=60).map(str.strip))
def test_no_other_token_is_taken(given_token: str) -> None:
    assert given_token == TOKEN or not ask(cookie=f"{NAME}={given_token}")[0]
    assert given_token == TOKEN or not ask(authorization=f"Bearer {given_token}")[0]


ADDRESSES = {"127.0.0.1": True, "::1": True, "localhost": True, "127.5.6.7": True}
ADDRESSES |= dict.fromkeys(("0.0.0.0", "::", "192.168.1.4", "example.com"), False)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGHTLINE_APP_TOKEN", raising=False)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_has_a_token_loopback_too(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_loopback(address) == ADDRESSES[address]
    made = {_checked_token(ServeOptions(address, token=given)) for given in (None, "new", None)}
    assert len(made) == 3
    assert min(map(len, made)) >= 32
    monkeypatch.setenv("SIGHTLINE_APP_TOKEN", TOKEN)
    assert _checked_token(ServeOptions(address)) == TOKEN


@pytest.mark.parametrize("address", ADDRESSES)
def test_only_loopback_can_do_without_one(address: str) -> None:
    options = ServeOptions(address, no_token=True)
    if ADDRESSES[address]:
        assert _checked_token(options) == ""
    else:
        with pytest.raises(ConfigError, match="leave out --no-token"):
            _checked_token(options)


def test_a_token_and_none_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--token and --no-token"):
        _checked_token(ServeOptions(token=TOKEN, no_token=True))
    monkeypatch.setenv("SIGHTLINE_APP_TOKEN", TOKEN)
    assert _checked_token(ServeOptions(no_token=True)) == ""


@pytest.mark.parametrize("token", ["short", "with spaces in between it", "semi;colon-in-a-cookie"])
def test_tokens_that_can_be_guessed_or_break_a_header_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="a token has"):
        _checked_token(ServeOptions(token=token))


def test_the_browser_is_opened_without_the_token_on_its_command_line() -> None:
    with ExitStack() as opened:
        location = _redirect_file(f"http://127.0.0.1:8501/?token={TOKEN}", opened)
        file = Path(location.removeprefix("file://"))
        assert TOKEN not in location
        assert f"url=http://127.0.0.1:8501/?token={TOKEN}" in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.exists()
