"""The short form of `make chaos`: the real command, killed and torn, ends as if nothing had happened."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from chaos import Chaos
from witnessed_run import Loss, Run, check_saved, newest_saved, prepare, step_of


def test_kills_and_torn_files_lose_nothing(tmp_path: Path) -> None:
    run, undisturbed = prepare(tmp_path, epochs=2, images=40)
    run.checkpoint_every_s = 0.05
    chaos = Chaos(run, undisturbed, random.Random(1))
    chaos.kill_at_random(count=1, latest_s=1.0)
    chaos.kill_after_save([0.0])
    assert [kill.series for kill in chaos.kills] == ["at random", "after a save"]
    chaos.finish()
    assert chaos.tear_files(offsets=2) > 10
    lives = run.lives
    chaos.kill_after_save([0.0])  # The run has ended: the command has nothing left to train, and a new run is killed.
    assert run.lives > lives
    assert len(chaos.kills) == 3


def test_a_loss_is_noticed(tmp_path: Path) -> None:
    """What was written down as saved and is not there."""
    run = Run(tmp_path, tmp_path / "nothing", epochs=1)
    (tmp_path / "runs" / "a" / "checkpoints").mkdir(parents=True)
    run.journal.write_text("resumed 0\nstep 1\nsaving checkpoints\nsaved checkpoints/step-00000001\n")
    assert step_of(newest_saved(run.events())) == 1
    with pytest.raises(Loss, match="step-00000001 was saved"):
        check_saved(run)
