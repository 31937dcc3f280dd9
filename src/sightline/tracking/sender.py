"""Numbers sent in large batches by a thread of its own: training never waits for a server."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

_log = logging.getLogger("sightline.tracking")

BATCH = 900
"""MLflow takes 1,000 things in one request; some are left for tags."""
EVERY_S = 30.0
LIMIT = 200_000
"""Points kept while a server is away; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Point:
    """One number of one step."""

    name: str
    value: float
    step: int
    time_ms: int


class Sender:
    """A bounded queue and the thread that empties it.

    Args:
        send: Sends some points, or none of them: a sign of life. Whatever it raises is told once an outage.
    """

    def __init__(self, send: Callable[[list[Point]], None], *, every_s: float = EVERY_S, limit: int = LIMIT) -> None:
        self._send, self._every_s = send, every_s
        self._points: deque[Point] = deque(maxlen=limit)
        self._lock = threading.Lock()
        self._wake, self._ending = threading.Event(), threading.Event()
        self._troubled = False
        self._thread = threading.Thread(target=self._run, name="sightline-tracking", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, points: list[Point]) -> None:
        """Queue some points."""
        with self._lock:
            self._points.extend(points)

    def flush(self) -> None:
        """Let the thread send what is queued now."""
        self._wake.set()

    def close(self, timeout_s: float) -> bool:
        """Send the rest, for at most so long; whether everything was sent."""
        self._ending.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._points

    def _run(self) -> None:
        while not self._ending.is_set():
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._send_all()

    def _send_all(self) -> None:
        try:
            self._send_first()
            while self._points:
                self._send_first()
            self._troubled = False
        except Exception as error:
            if not self._troubled:
                _log.warning("%s. Training goes on; what could not be sent is kept and sent when it answers", error)
            self._troubled = True

    def _send_first(self) -> None:
        """Send a batch, and forget it once it has arrived."""
        with self._lock:
            batch = list(islice(self._points, BATCH))
        self._send(batch)
        sent = set(map(id, batch))
        with self._lock:  # While it was under way, a full queue may have dropped some of them.
            while self._points and id(self._points[0]) in sent:
                self._points.popleft()


def now_ms() -> int:
    """Milliseconds since 1970, as MLflow counts them."""
    return int(time.time() * 1000)
