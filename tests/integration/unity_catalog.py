"""A server that answers as Databricks' Unity Catalog does, over a real MLflow registry in SQLite.

It has the endpoints that MLflow's own Unity Catalog client calls, and refuses what Unity Catalog refuses: names that
are not CATALOG.SCHEMA.MODEL, a search for versions by anything but one name, and tag keys with `. , - = / :`. What it
finds in a search has no tags and no aliases. Files lie in a bucket, which is read with temporary credentials only.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

PREFIX = "/api/2.0/mlflow/unity-catalog/"
TOKEN = "uc-test-token"


class RefusedError(Exception):
    """A request that Unity Catalog does not take."""


class Catalog:
    """The endpoints; `calls` is what was asked, in order."""

    def __init__(self, database: str, bucket: str) -> None:
        self._client, self._bucket = MlflowClient(tracking_uri=database, registry_uri=database), bucket
        self.calls: list[str] = []

    def answer(self, method: str, path: str, given: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(f"{method} {path}")
        endpoints: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "POST registered-models/create": self._create_model,
            "GET registered-models/get": lambda given: {"registered_model": self._model(given["name"])},
            "GET registered-models/search": self._search_models,
            "DELETE registered-models/delete": lambda given: self._done(
                self._client.delete_registered_model(given["name"])
            ),
            "POST registered-models/alias": lambda given: self._done(
                self._client.set_registered_model_alias(given["name"], given["alias"], given["version"])
            ),
            "DELETE registered-models/alias": lambda given: self._done(
                self._client.delete_registered_model_alias(given["name"], given["alias"])
            ),
            "POST model-versions/create": self._create_version,
            "POST model-versions/finalize": lambda given: {"model_version": self._version(given)},
            "GET model-versions/get": lambda given: {"model_version": self._version(given)},
            "GET model-versions/search": self._search_versions,
            "DELETE model-versions/delete": lambda given: self._done(
                self._client.delete_model_version(given["name"], given["version"])
            ),
            "GET model-versions/get-download-uri": lambda given: {"artifact_uri": self._storage(given)},
            "POST model-versions/generate-temporary-credentials": self._credentials,
            "GET registered-models:is-databricks-sdk-models-artifact-repository-enabled": lambda _: {},
        }
        if "name" in given and given["name"].count(".") != 2:
            raise RefusedError(f"{given['name']!r} is not a valid name: expected <catalog>.<schema>.<model>")
        if f"{method} {path}" not in endpoints:
            raise RefusedError(f"there is no endpoint {method} {path}")
        return endpoints[f"{method} {path}"](given)

    def _create_model(self, given: dict[str, Any]) -> dict[str, Any]:
        self._client.create_registered_model(given["name"])
        return {"registered_model": self._model(given["name"])}

    def _model(self, name: str) -> dict[str, Any]:
        found = self._client.get_registered_model(name)
        return {"name": name, "aliases": [{"alias": alias, "version": str(at)} for alias, at in found.aliases.items()]}

    def _search_models(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.keys() - {"max_results", "page_token"}:
            raise RefusedError(f"unknown fields: {sorted(given)}")
        page = self._client.search_registered_models(max_results=1, page_token=given.get("page_token"))
        return {"registered_models": [{"name": model.name} for model in page], "next_page_token": _text(page.token)}

    def _search_versions(self, given: dict[str, Any]) -> dict[str, Any]:
        if not re.fullmatch(r"name ?= ?'[^'.]+(\.[^'.]+){2}'", given.get("filter", "")):
            raise RefusedError("Missing filter: please specify a filter in the format `name = 'model_name'`")
        page = self._client.search_model_versions(
            given["filter"], max_results=1, page_token=given.get("page_token"), order_by=["version_number ASC"]
        )
        found = [self._version({"name": entry.name, "version": entry.version}) for entry in page]
        for entry in found:
            del entry["tags"], entry["aliases"]
        return {"model_versions": found, "next_page_token": _text(page.token)}

    def _create_version(self, given: dict[str, Any]) -> dict[str, Any]:
        tags = {tag["key"]: tag["value"] for tag in given.get("tags", [])}
        if bad := [key for key in tags if set(key) & set(".,-=/:")]:
            raise RefusedError(f"tag key {bad[0]!r} is not valid: it must not contain any of . , - = / :")
        made = self._client.create_model_version(given["name"], given["source"], tags=tags)
        return {"model_version": self._version({"name": made.name, "version": made.version})}

    def _version(self, given: dict[str, Any]) -> dict[str, Any]:
        found = self._client.get_model_version(given["name"], given["version"])
        return {
            "name": found.name,
            "version": str(found.version),
            "creation_timestamp": found.creation_timestamp,
            "status": "READY",
            "source": found.source,
            "storage_location": self._storage(given),
            "aliases": [{"alias": alias, "version": str(found.version)} for alias in found.aliases],
            "tags": [{"key": key, "value": value} for key, value in found.tags.items()],
        }

    def _storage(self, given: dict[str, Any]) -> str:
        return f"{self._bucket}/models/{given['name']}/{given['version']}"

    def _credentials(self, given: dict[str, Any]) -> dict[str, Any]:
        keys = {"access_key_id": "temporary-key", "secret_access_key": "temporary", "session_token": "temporary"}
        return {"credentials": {"aws_temp_credentials": keys}}

    @staticmethod
    def _done(_: None) -> dict[str, Any]:
        return {}


def _text(token: bytes | str | None) -> str:
    return token.decode() if isinstance(token, bytes) else token or ""


def _handler(catalog: Catalog) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            given = json.loads(body) if body else dict(parse_qsl(url.query))
            try:
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    raise RefusedError("invalid access token")
                status, answer = 200, catalog.answer(self.command, url.path.removeprefix(PREFIX), given)
            except MlflowException as error:
                status, answer = error.get_http_status_code(), {"error_code": error.error_code, "message": str(error)}
            except Exception as error:  # A connection that breaks off would be tried again for minutes.
                status, answer = 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": repr(error)}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def serve(database: str, bucket: str) -> Iterator[tuple[str, Catalog]]:
    """The URL of such a server on loopback, and its catalog."""
    catalog = Catalog(database, bucket)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(catalog))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", catalog
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
