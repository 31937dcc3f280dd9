"""The running Sightline as a wheel, for models that must bring it along while it is on no package index.

It is put together from the files of the imported package and the metadata of its installation, so it needs neither a
source tree nor a build tool, and works from an editable installation and from an installed wheel alike.
"""

import base64
import hashlib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import sightline

_NAME = "sightline"
_TAGS = "Wheel-Version: 1.0\nGenerator: sightline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every file, so that the same package gives the same bytes."""


def write_wheel(directory: Path) -> Path:
    """Write the wheel of the running package; gives its path."""
    installed = distribution(_NAME)
    info = f"{_NAME}-{installed.version}.dist-info"
    files = _package_files() | {
        f"{info}/METADATA": (installed.read_text("METADATA") or "").encode(),
        f"{info}/WHEEL": _TAGS.encode(),
        f"{info}/entry_points.txt": (installed.read_text("entry_points.txt") or "").encode(),
    }
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = directory / f"{_NAME}-{installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return path


def _package_files() -> dict[str, bytes]:
    root = Path(sightline.__file__).parent
    found = sorted(file for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {f"{_NAME}/{file.relative_to(root).as_posix()}": file.read_bytes() for file in found}


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
