"""What MLflow stores can be installed and loaded where Sightline is not."""

import json
import os
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import sightline
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model
from sightline.tracking.pyfunc_files import write_pyfunc
from sightline.tracking.wheel import write_wheel

LOAD = """
import json, sys
import mlflow.pyfunc, pandas, sightline
from sightline.data.decode import encode_jpeg
import numpy as np
model = mlflow.pyfunc.load_model(sys.argv[1])
image = encode_jpeg(np.zeros((64, 64, 3), np.uint8))
found = model.predict(pandas.DataFrame({"image": [image]}), params={"threshold": 0.0001})
print(json.dumps({"file": sightline.__file__, "columns": list(found.columns)}))
"""


def test_a_stored_model_runs_with_the_sightline_that_it_brings(tmp_path: Path) -> None:
    model = make_model("nano", num_classes=2, size=64)
    bundle = save_bundle(tmp_path / "net", model.state_dict(), describe(model, name="nano", classes=("a", "b")), {})
    elsewhere = tmp_path / "elsewhere"
    with write_pyfunc(bundle.path, extras=["engines"]) as directory:
        wanted = (directory / "requirements.txt").read_text().splitlines()[0]
        assert wanted == f"wheels/sightline-{sightline.__version__}-py3-none-any.whl[engines]"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*install, "--target", elsewhere, wanted], cwd=directory, check=True)
        environment = {**os.environ, "PYTHONPATH": str(elsewhere), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", LOAD, directory], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert Path(answer["file"]).is_relative_to(elsewhere)
    assert answer["columns"] == ["image", "label", "score", "xmin", "ymin", "xmax", "ymax"]


def test_the_wheel_has_all_files_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    wheel, again = write_wheel(tmp_path), write_wheel(tmp_path / "again")
    assert wheel.read_bytes() == again.read_bytes()
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        found = message_from_bytes(archive.read(metadata))
    package = Path(sightline.__file__).parent
    assert {f"sightline/{path.relative_to(package)}" for path in package.rglob("*.html")} < names
    assert (found["Name"], found["Version"]) == ("sightline", sightline.__version__)
    assert {"engines", "yolo"} <= set(found.get_all("Provides-Extra", []))
