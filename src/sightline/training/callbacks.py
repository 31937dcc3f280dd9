"""What a caller of `train` is told while the run goes on."""

from collections.abc import Callable
from dataclasses import dataclass

from sightline.training.messages import (
    CheckpointSaved,
    Evaluated,
    Message,
    Note,
    RunProgress,
    StepCompleted,
    WorkersAlive,
)

OnStep = Callable[[RunProgress, int, dict[str, float], int], None]
"""Called with the progress, the steps of the whole run, the loss and its terms, and the images of the step."""


@dataclass(frozen=True)
class Callbacks:
    """What a caller wants to be told of a run while it goes on; by default nothing, and the run is never stopped."""

    on_step: OnStep = lambda progress, num_steps, losses, images: None
    on_scores: Callable[[int, dict[str, float]], None] = lambda epoch, scores: None
    should_stop: Callable[[], bool] = lambda: False
    on_note: Callable[[str], None] = lambda note: None
    on_checkpoint: Callable[[], None] = lambda: None
    on_workers: Callable[[int, int], None] = lambda alive, wanted: None

    def handle(self, message: Message) -> None:
        """Call what a message is for."""
        match message:
            case StepCompleted(progress=progress, num_steps=num_steps, losses=losses, images=images):
                self.on_step(progress, num_steps, losses, images)
            case Evaluated(epoch=epoch, scores=scores):
                self.on_scores(epoch, scores)
            case CheckpointSaved():
                self.on_checkpoint()
            case Note(text=text):
                self.on_note(text)
            case WorkersAlive(alive=alive, wanted=wanted):
                self.on_workers(alive, wanted)
