"""Writes a software bill of materials of the lock files, and scans them for known vulnerabilities with pip-audit.

`make audit` runs it in an environment of its own. Exit codes: 0 no vulnerability is known, 1 some are, 2 the database
could not be queried for all packages, so nothing is known.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
LOCKS = ("core.txt", "torch.txt", "tools.txt")
"""What users get; tools of tests and lint are not part of the product."""
PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


def main(sbom: Path) -> int:
    """Write the bill of materials, scan, and report."""
    sbom.write_text(json.dumps(make_sbom(read_locks()), indent=2) + "\n", "utf-8")
    print(f"bill of materials (CycloneDX): {sbom}")
    code, lines = judge(scan())
    print("\n".join(lines))
    return code


def read_locks() -> str:
    """The lock files, one after another."""
    return "\n".join((REQUIREMENTS / name).read_text("utf-8") for name in LOCKS)


def make_sbom(lock: str) -> dict[str, Any]:
    """A CycloneDX document of the pinned packages."""
    pinned = sorted({(name.lower(), version) for name, version in PINNED.findall(lock)})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "sightline", "bom-ref": "sightline"}},
        "components": [
            {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
            | {"bom-ref": f"pkg:pypi/{name}@{version}"}
            for name, version in pinned
        ],
    }


def scan() -> dict[str, Any] | None:
    """What pip-audit found; None if it could not finish. Its exit code is 1 in either case."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        files = [argument for name in LOCKS for argument in ("--requirement", str(REQUIREMENTS / name))]
        options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off"]
        subprocess.run(
            [sys.executable, "-m", "pip_audit", *options, *files, "--format", "json", "--output", str(report)]
        )
        return json.loads(report.read_text("utf-8")) if report.is_file() else None


def judge(report: dict[str, Any] | None) -> tuple[int, list[str]]:
    """The exit code, and what to say."""
    if report is None:
        return 2, ["The vulnerability database could not be queried (see above): nothing is known. Try with a network."]
    packages = report["dependencies"]
    skipped = [f"not checked: {entry['name']}: {entry['skip_reason']}" for entry in packages if "skip_reason" in entry]
    known = [
        f"{entry['name']} {entry['version']}: {vulnerability['id']}, fixed in {vulnerability['fix_versions'] or 'none'}"
        for entry in packages
        for vulnerability in entry.get("vulns", [])
    ]
    if known:
        return 1, known + skipped
    if skipped:
        return 2, [
            *skipped,
            f"{len(skipped)} of {len(packages)} packages could not be checked: nothing is known of them.",
        ]
    return 0, [f"no known vulnerabilities in {len(packages)} packages"]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
