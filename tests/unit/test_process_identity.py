"""Which processes are known to be dead, and which may live: in containers, after a boot, on another machine."""

import os
import subprocess
import sys

import pytest

from programs import need_namespaces
from sightline import process_identity
from sightline.process_identity import is_abandoned, is_dead, this_host, unique_name

NAMESPACE, START = this_host().rsplit("-", 1)


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("host", "alive", "ended"),
    [
        (this_host(), False, True),
        (f"{NAMESPACE}-{int(START) + 1}", True, True),  # The id is another process's by now.
        (f"{'0' * len(NAMESPACE)}-{START}", False, False),  # Of another boot, container or machine.
        ("elsewhere", False, False),
        ("", False, False),
        ("unknown-0", False, False),
    ],
    ids=["here", "used again", "elsewhere", "a host name", "nothing", "unknown"],
)
def test_who_is_dead(host: str, alive: bool, ended: bool) -> None:
    assert is_dead(host, os.getpid()) == alive
    assert is_dead(host, ended_pid()) == ended
    assert is_dead(host, 2**40) == ended


def test_a_container_of_the_same_name_is_elsewhere() -> None:
    """It has its own processes under the same ids, and the same name of the host."""
    script = "from sightline.process_identity import this_host; print(this_host())"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    need_namespaces(*unshare, "true")
    found = subprocess.run([*unshare, sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert found.stdout.strip().rsplit("-", 1)[0] != NAMESPACE
    assert not is_dead(found.stdout.strip(), ended_pid())
    strange = subprocess.run([*unshare[:-1], sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert strange.stdout.strip() == "unknown-0", "`/proc` is of another namespace"


def test_names_of_files() -> None:
    name = unique_name()
    assert name != unique_name()
    assert len(name) < 64
    assert set(name) <= set("0123456789abcdef-")
    assert not is_abandoned(name)
    assert is_abandoned(f"{this_host()}-{ended_pid()}-00")
    for strange in (".nfs000001", ".DS_Store", "", "a-b-c", "host-1-00", f"{this_host()}-x-00"):
        assert not is_abandoned(strange)


def test_without_proc_nobody_is_known_to_be_dead(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    host, pid = this_host(), ended_pid()
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    assert this_host() == "unknown-0"
    assert not is_dead(host, pid)
    assert not is_dead(this_host(), pid)
    assert not is_abandoned(unique_name())
