"""What a killed process leaves of the small files beside the checkpoints never keeps a run from going on."""

from pathlib import Path

import pytest

from sightline.training.step_log import StepLog
from sightline.training.timing import PARTS, Timing


def test_timing_adds_up_over_processes(tmp_path: Path) -> None:
    for _ in range(3):
        timing = Timing(tmp_path, dict.fromkeys(PARTS, 2.0))
        timing.images += 10
        timing.save()
    assert timing.images == 30
    assert timing.seconds["data"] == 6.0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.99])
def test_torn_timing_begins_anew(tmp_path: Path, share: float) -> None:
    timing = Timing(tmp_path, dict.fromkeys(PARTS, 2.0))
    timing.save()
    whole = (tmp_path / "timing.json").read_bytes()
    (tmp_path / "timing.json").write_bytes(whole[: int(share * len(whole))])
    assert Timing(tmp_path, dict.fromkeys(PARTS, 1.0)).seconds["data"] == 1.0


@pytest.mark.parametrize("torn", [b"3,0.3,1", b"3,0.3,1.5,0.1,", b"\0\0\0\0", b"3,0.3,1.5,0.1,e", b"\xff\xfe"])
def test_torn_rows_are_left_out(tmp_path: Path, torn: bytes) -> None:
    log = StepLog(tmp_path)
    log.go_on_from(0)
    log.add(1, 0.1, 1.5, 0.1, 9.0)
    log.add(2, 0.2, 1.4, 0.1, 9.0)
    log.save()
    with open(tmp_path / "steps.csv", "ab") as stream:
        stream.write(torn)
    assert [row[0] for row in log.read()] == [1.0, 2.0]
    log.go_on_from(1)
    assert [row[0] for row in log.read()] == [1.0]
