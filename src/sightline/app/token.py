"""A token that every request must bring: pages, pictures, uploads and the websocket."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, quote

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

QUERY, COOKIE = "token", "sightline-token"
_CLOSED_BY_POLICY = 1008


class TokenCheck:
    """Answers 401 to all that do not bring the token, before anything else sees them.

    A browser brings it once in the address (`/?token=…`), is given a cookie and sent to the same page without it;
    programs may send `Authorization: Bearer …`.
    """

    def __init__(self, app: App, *, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan" or self._is_known(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _CLOSED_BY_POLICY})
        elif scope["method"] == "GET" and self._same(_asked(scope)):
            await _answer(send, 303, b"", location=scope["path"], cookie=f"{_cookie(scope)}={self.token}")
        else:
            await _answer(send, 401, b"this app asks for its token: open the address that `sightline app` printed\n")

    def _is_known(self, scope: Scope) -> bool:
        headers = {name.lower(): value for name, value in scope["headers"]}
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and self._same(given.decode("latin-1")):
            return True
        # By hand: Python's own reader gives up at cookies of other programs, which all ports of a machine share.
        pairs = (pair.partition("=") for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"))
        return any(name.strip() == _cookie(scope) and self._same(value.strip()) for name, _, value in pairs)

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def _cookie(scope: Scope) -> str:
    """Its name: two apps on one machine have two."""
    return f"{COOKIE}-{(scope.get('server') or ('', 0))[1]}"


def _asked(scope: Scope) -> str:
    query: bytes = scope["query_string"]
    return parse_qs(query.decode("latin-1")).get(QUERY, [""])[0]


async def _answer(send: Send, status: int, body: bytes, *, location: str = "", cookie: str = "") -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    if location:
        # A path only: what begins with two slashes would be another machine.
        headers.append((b"location", b"/" + quote(location.lstrip("/\\")).encode()))
    if cookie:
        headers.append((b"set-cookie", f"{cookie}; Path=/; HttpOnly; SameSite=Strict".encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
