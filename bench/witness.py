"""The `sightline` command with a witness: what has happened is appended to a file the moment it has.

python bench/witness.py JOURNAL train DATASET …

Lines are `event detail`: `resumed STEP`, `step STEP`, `scoring STEP`, `saving DIRECTORY`, and `saved PLACE` once the
save has returned. Each is one write that a SIGKILL cannot take back, so whoever reads the journal after a kill knows
which saves had returned before it. Nothing else differs from the real command.
"""

import os
import sys
from pathlib import Path
from typing import Any


def note(journal: int, event: str, detail: object) -> None:
    """Append a line."""
    os.write(journal, f"{event} {detail}\n".encode())


def watch_saves(journal: int) -> None:
    """Note when a save begins, and when it has returned."""
    from sightline.training.checkpoint import Checkpoint, CheckpointDirectory

    save = CheckpointDirectory.save

    def witnessed(self: CheckpointDirectory, checkpoint: Checkpoint) -> Path:
        note(journal, "saving", self.path.name)
        place = save(self, checkpoint)
        note(journal, "saved", f"{self.path.name}/{place.name}")
        return place

    CheckpointDirectory.save = witnessed  # type: ignore[method-assign]


def watch_steps(journal: int) -> None:
    """Note where a run goes on, its steps and its evaluations."""
    from sightline.training.loop import Trainer
    from sightline.training.messages import Message, RunProgress, StepCompleted

    run = Trainer.run

    def witnessed(self: Trainer) -> RunProgress:
        pass_on, evaluate = self.context.send, self.evaluate

        def send(message: Message) -> None:
            if isinstance(message, StepCompleted):
                note(journal, "step", message.progress.step)
            pass_on(message)

        def score(model: Any) -> dict[str, float]:
            note(journal, "scoring", self.progress.step)
            return evaluate(model)

        self.context.send, self.evaluate = send, score
        note(journal, "resumed", self.progress.step)
        return run(self)

    Trainer.run = witnessed  # type: ignore[method-assign]


def main() -> None:
    """Run the command."""
    journal = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    watch_saves(journal)
    watch_steps(journal)
    sys.argv = ["sightline", *sys.argv[2:]]
    from sightline.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
