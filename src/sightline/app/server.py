"""Serving the app: on loopback, or behind a token."""

import errno
import ipaddress
import logging
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sightline.app.token import QUERY, TokenCheck
from sightline.errors import ConfigError, MissingExtraError
from sightline.workspace import Workspace

PORT = 8501
TOKEN_VARIABLE = "SIGHTLINE_APP_TOKEN"
_SHORTEST_TOKEN = 16
_SCRIPT = Path(__file__).with_name("main.py")


def serve(
    workspace: Workspace,
    *,
    address: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    open_browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the app until it is stopped.

    Args:
        address: To listen on; anything but loopback needs a token.
        port: None takes 8501, or the next free one.
        token: That every request must bring; "new" makes one up.
        say: Told the address to open.

    Raises:
        ConfigError: The address is open to others and there is no token, or the port is taken.
    """
    token = _checked_token(token, address)
    listening = _listen(address, port)
    port = listening.getsockname()[1]
    os.environ["SIGHTLINE_HOME"] = str(workspace.root)
    try:
        import streamlit
        import uvicorn
        from starlette.middleware import Middleware
        from streamlit.web.bootstrap import load_config_options
    except ImportError:
        raise MissingExtraError("streamlit", "app") from None
    load_config_options(_settings(address, port))
    app = streamlit.App(_SCRIPT, middleware=[Middleware(TokenCheck, token=token)] if token else [])
    shown = f"[{address}]" if ":" in address else address
    url = f"http://{shown}:{port}/" + (f"?{QUERY}={token}" if token else "")
    for name in ("uvicorn", "uvicorn.access", "uvicorn.asgi", "uvicorn.error", "websockets"):
        # A filter, for Streamlit sets their levels when it starts.
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.WARNING)

    class Server(uvicorn.Server):
        async def startup(self, *args: Any, **options: Any) -> None:
            await super().startup(*args, **options)
            if self.started:
                say(f"the app is at {url} (Ctrl-C ends it)")
            if self.started and open_browser:
                webbrowser.open(url)

    try:
        Server(uvicorn.Config(app, host=address, port=port, access_log=False, timeout_graceful_shutdown=2)).run(
            sockets=[listening]
        )
    except KeyboardInterrupt:
        pass
    finally:
        streamlit.cache_resource.clear()  # Databases that are still open complain when Python ends.


def _settings(address: str, port: int) -> dict[str, Any]:
    return {
        "server.address": address,
        "server.port": port,
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": 200,
        # A page of somebody else's whose name leads to this machine is not let in; behind a token nobody is.
        "server.allowedHosts": ["localhost", "127.0.0.1", "::1", address] if is_loopback(address) else [],
        "runner.magicEnabled": False,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "theme.light.primaryColor": "#0072B2",
        "theme.dark.primaryColor": "#56B4E9",
        "theme.metricValueFontSize": "1.6rem",
    }


def _checked_token(token: str | None, address: str) -> str:
    token = token or os.environ.get(TOKEN_VARIABLE) or ""
    if token == "new":
        token = secrets.token_urlsafe(24)
    if not token and not is_loopback(address):
        raise ConfigError(
            f"{address!r} can be reached by others: give --token new to have every request checked, or leave out "
            "--address, and let people in by an SSH tunnel"
        )
    if token and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not _is_plain(token)):
        raise ConfigError(
            f"a token has at least {_SHORTEST_TOKEN} letters, digits, - and _; `--token new` makes one up"
        )
    return token


def _is_plain(token: str) -> bool:
    return token.replace("-", "").replace("_", "").isalnum()


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _listen(address: str, port: int | None) -> socket.socket:
    """A socket on the port, or on the first that is free: whoever only looks may come second."""
    for candidate in [port] if port else range(PORT, PORT + 50):
        try:
            family = socket.getaddrinfo(address, candidate, type=socket.SOCK_STREAM)[0][0]
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, candidate))
            listening.listen()
        except socket.gaierror:
            raise ConfigError(f"{address!r} is no address of this machine") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"{address!r} is no address of this machine") from None
            if error.errno == errno.EACCES:
                raise ConfigError(f"port {candidate} is for administrators only: give one above 1023") from None
            listening.close()
            continue
        return listening
    raise ConfigError(f"port {port or f'{PORT} to {PORT + 49}'} of {address} is taken: give another --port")
