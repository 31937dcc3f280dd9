"""What a worker on Ray does about a driver that it cannot reach; the rest takes a cluster: `integration`."""

import subprocess
import sys
import textwrap

from sightline.lifeline import PARENT_LOST

HEARTBEAT = """
    import threading, time
    from sightline.training.heartbeat import Activity
    from sightline.training.ray_worker import _beat
    class Lost:
        def remote(self, *told):
            raise ConnectionError("the driver's actor is gone")
    class Post:
        beat = Lost()
    threading.Thread(target=_beat, args=(Post(), 0, Activity(), threading.Event()), daemon=True).start()
    time.sleep(10)  # In the middle of a step that takes long.
    print("still here")
"""


def test_a_worker_that_loses_contact_with_the_driver_ends() -> None:
    """At once, whatever its main thread does: nobody would see it hang."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(HEARTBEAT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == ""
    assert done.returncode == PARENT_LOST
    assert "the driver's actor is gone" in done.stderr
