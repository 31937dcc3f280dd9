"""`sightline runs` before there is any run."""

import json
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
sys.argv = ["sightline", "runs"]
from sightline.cli.main import main
try:
    main()
except SystemExit:
    pass
print("LOADED", *sorted({name.split(".")[0] for name in sys.modules}))
"""


def sightline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sightline", *arguments], cwd=cwd, capture_output=True, text=True)


def test_an_empty_workspace_says_what_to_do_next_and_makes_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True)
    said, loaded = done.stdout.split("LOADED")
    assert "sightline train DATASET" in said
    assert not {"mlflow", "torch"} & set(loaded.split())
    assert json.loads(sightline("runs", "--json", cwd=tmp_path).stdout) == []
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_is_one_sentence(tmp_path: Path) -> None:
    for arguments, code, words in (
        (["compare", "a"], 2, "needs two runs"),
        (["compare", "a", "b"], 3, "there is no run 'a'"),
        (["a", "b"], 2, "sightline runs compare a b"),
        (["a"], 2, "`sightline report a` writes a page about a run"),
    ):
        done = sightline("runs", *arguments, cwd=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert words in " ".join(done.stderr.replace("│", " ").split())
