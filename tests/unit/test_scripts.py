"""What `make test` and `make audit` do beside Python."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from programs import need, need_mounts, need_namespaces

ROOT = Path(__file__).parents[2]


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """The PATH of a root user on Debian without a browser; `apt-get` notes how it was called."""
    for name, text in {"apt-get": f'echo "$@" >> {tmp_path}/apt.log', "id": "echo 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "ls"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    return tmp_path


def run_programs(system: Path, **environment: str) -> str:
    script = ROOT / "scripts" / "test-programs"
    done = subprocess.run(
        ["/bin/bash", script], env={"PATH": str(system), **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_system_packages_are_named_with_a_reason_before_they_are_installed(system: Path) -> None:
    said = run_programs(system)
    assert "chromium: tests of the app and of HTML reports" in said
    assert "SYSTEM_PACKAGES=no make test installs nothing" in said
    assert "gcc, libc6-dev: tests of disks that fail build a library" in said
    (installed,) = [line for line in (system / "apt.log").read_text().splitlines() if "install" in line]
    assert "install -yq --no-install-recommends chromium" in installed
    assert installed.endswith("gcc libc6-dev")


def test_a_compiler_that_is_there_is_not_installed(system: Path) -> None:
    (system / "cc").symlink_to("/bin/true")
    said = run_programs(system)
    assert "gcc" not in said
    assert "gcc" not in (system / "apt.log").read_text()


def test_without_system_packages_nothing_is_installed(system: Path) -> None:
    assert "not installing chromium" in run_programs(system, SYSTEM_PACKAGES="no")
    assert not (system / "apt.log").exists()


@pytest.mark.parametrize(
    ("ci", "packages", "outcome"),
    [("true", None, pytest.fail.Exception), ("true", "no", pytest.skip.Exception), (None, None, pytest.skip.Exception)],
)
def test_a_missing_program(
    ci: str | None, packages: str | None, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CI": ci, "SYSTEM_PACKAGES": packages}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    either = (pytest.fail.Exception, pytest.skip.Exception)  # A skip that is not expected would skip this test.
    with pytest.raises(either, match="chromium is not installed") as program:
        need("chromium", None)
    with pytest.raises(either, match="making PID namespaces is refused here") as namespaces:
        need_namespaces("false")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(either, match="mounting file systems is refused here") as mounts:
        need_mounts()
    assert program.type is namespaces.type is mounts.type is outcome


@pytest.fixture(scope="module")
def audit() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "audit.py"))


def test_the_bill_of_materials_lists_every_locked_package(audit: dict[str, Any]) -> None:
    lock = "torch==2.10.0 ; sys_platform == 'linux' \\\n    --hash=sha256:ab\n    # via sightline\nzope-event==5.0 \\\n"
    found = audit["make_sbom"](lock)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert [part["purl"] for part in found["components"]] == ["pkg:pypi/torch@2.10.0", "pkg:pypi/zope-event@5.0"]
    real = audit["make_sbom"](audit["read_locks"]())
    names = {part["name"] for part in real["components"]}
    assert {"torch", "mlflow-skinny", "hatchling", "uv", "starlette"} <= names


@pytest.mark.parametrize(
    ("report", "code", "said"),
    [
        (None, 2, "could not be queried"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0, "no known vulnerabilities in 1 packages"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}]}, 1, "X-1"),
        ({"dependencies": [{"name": "a", "skip_reason": "not found"}]}, 2, "1 of 1 packages could not be checked"),
    ],
)
def test_an_audit_that_could_not_ask_is_no_clean_bill(
    audit: dict[str, Any], report: dict[str, Any] | None, code: int, said: str
) -> None:
    found, lines = audit["judge"](report)
    assert found == code
    assert said in "\n".join(lines)


def test_without_a_network_the_audit_says_so(tmp_path: Path) -> None:
    """The scanner is replaced by one that ends as pip-audit does when it cannot connect."""
    (tmp_path / "pip_audit.py").write_text("import sys\nsys.exit('ConnectionError: no route to host')\n")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "audit.py", tmp_path / "sbom.json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "could not be queried" in done.stdout
    assert "no known vulnerabilities" not in done.stdout
    assert "no route to host" in done.stderr
    assert json.loads((tmp_path / "sbom.json").read_text())["components"]
