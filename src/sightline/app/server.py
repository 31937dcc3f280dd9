"""Serving the app: behind a token, on loopback too, since other users of the machine can reach that."""

import errno
import html
import ipaddress
import logging
import os
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.app.browse_root import BROWSE_VARIABLE
from sightline.app.token import QUERY, TokenCheck
from sightline.errors import ConfigError, MissingExtraError, NotFoundError
from sightline.workspace import Workspace

PORT = 8501
TOKEN_VARIABLE = "SIGHTLINE_APP_TOKEN"
_SHORTEST_TOKEN = 16
_SCRIPT = Path(__file__).with_name("main.py")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How the app is served.

    Attributes:
        address: To listen on.
        port: None takes 8501, or the next free one.
        token: That every request must bring; None takes SIGHTLINE_APP_TOKEN, else a new random one.
        no_token: Answer without a token, on loopback only.
        browse: The directory below which visitors may open folders; None does not let them open any.
        open_browser: Open the app in a browser.
    """

    address: str = "127.0.0.1"
    port: int | None = None
    token: str | None = None
    no_token: bool = False
    browse: Path | None = None
    open_browser: bool = False


def serve(workspace: Workspace, options: ServeOptions, *, say: Callable[[str], None] = print) -> None:
    """Serve the app until it is stopped.

    Args:
        say: Called with the address to open.

    Raises:
        ConfigError: An option is wrong, or the port is taken.
        NotFoundError: The directory to browse does not exist.
    """
    address, token = options.address, _checked_token(options)
    _pass_on(workspace, options.browse)
    listening = _listen(address, options.port)
    port = listening.getsockname()[1]
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
        async def startup(self, *args: Any, **given: Any) -> None:
            await super().startup(*args, **given)
            if self.started:
                say(f"the app is at {url} (Ctrl-C ends it)")
            if self.started and options.open_browser:
                webbrowser.open(_redirect_file(url, opened))

    opened = ExitStack()
    try:
        Server(uvicorn.Config(app, host=address, port=port, access_log=False, timeout_graceful_shutdown=2)).run(
            sockets=[listening]
        )
    except KeyboardInterrupt:
        pass
    finally:
        opened.close()
        streamlit.cache_resource.clear()  # Databases that are still open complain when Python ends.


def _settings(address: str, port: int) -> dict[str, Any]:
    return {
        "server.address": address,
        "server.port": port,
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": 200,
        # On loopback, a page on the internet whose host name resolves to this machine is refused even with the cookie.
        "server.allowedHosts": ["localhost", "127.0.0.1", "::1", address] if is_loopback(address) else [],
        "runner.magicEnabled": False,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "theme.light.primaryColor": "#0072B2",
        "theme.dark.primaryColor": "#56B4E9",
        "theme.metricValueFontSize": "1.6rem",
    }


def _pass_on(workspace: Workspace, browse: Path | None) -> None:
    """Set what the pages read from the environment: Streamlit runs them as a script, without arguments."""
    os.environ["SIGHTLINE_HOME"] = str(workspace.root)
    os.environ.pop(BROWSE_VARIABLE, None)
    if browse is not None:
        root = browse.expanduser().resolve()
        if not root.is_dir():
            raise NotFoundError(f"--browse {str(browse)!r} is not a directory: name the one that holds the images")
        os.environ[BROWSE_VARIABLE] = str(root)


def _redirect_file(url: str, opened: ExitStack) -> str:
    """A private file that sends the browser to the URL: other users see command lines, and the URL has the token."""
    descriptor, name = tempfile.mkstemp(prefix="sightline-", suffix=".html")
    opened.callback(Path(name).unlink, missing_ok=True)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(url)}">\n')
    return Path(name).as_uri()


def _checked_token(options: ServeOptions) -> str:
    """The token, or an empty string without one."""
    if options.no_token:
        if options.token:
            raise ConfigError("--token and --no-token contradict each other: give one of them")
        if not is_loopback(options.address):
            raise ConfigError(
                f"{options.address!r} can be reached from other machines: leave out --no-token, or leave out --address "
                "and use an SSH tunnel"
            )
        return ""
    token = options.token or os.environ.get(TOKEN_VARIABLE) or "new"
    if token == "new":
        return secrets.token_urlsafe(24)
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not _is_plain(token):
        raise ConfigError(
            f"a token has at least {_SHORTEST_TOKEN} letters, digits, - and _; without --token, one is generated"
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
