"""Proof, while a run goes on, that its workers train one model on all images."""

import hashlib
from collections import Counter
from collections.abc import Callable

from torch import nn

from sightline.data.loader import Batch
from sightline.errors import TrainingError
from sightline.training.collective import Collective


class Verifier:
    """After every epoch: the same weights on every worker, and every image seen exactly once by one of them.

    What was seen goes into checkpoints, so an epoch is judged as a whole though it was stopped, or killed, and another
    number of workers went on with it.
    """

    def __init__(self, num_images: int, on_note: Callable[[str], None]) -> None:
        self._num_images, self._on_note = num_images, on_note
        self._before: list[str] = []
        self._seen: list[str] = []

    def begin(self, epoch: int, *, start: int) -> None:
        """An epoch begins, or goes on from a position; what came before it counts if it is known."""
        self._epoch, self._seen = epoch, []
        self._expected = self._num_images - start + len(self._before)

    def saw(self, batch: Batch) -> None:
        """Note the images of this worker's share of a step."""
        self._seen += batch.image_ids

    def seen_by_all(self, collective: Collective) -> list[str]:
        """The images of this epoch so far, of all workers; for a checkpoint."""
        return self._before + [image for share in collective.gather(self._seen) for image in share]

    def go_on(self, seen: list[str]) -> None:
        """Take up an epoch of which a checkpoint says what was seen."""
        self._before = seen

    def check(self, model: nn.Module, collective: Collective) -> None:
        """Compare all workers.

        Raises:
            TrainingError: They differ, or an image was missed or seen twice.
        """
        told = collective.gather((hash_weights(model), self._seen))
        self._check_weights([digest for digest, _ in told])
        self._check_images([self._before, *(seen for _, seen in told)])
        counts = [f"rank {rank} {len(seen):,}" for rank, (_, seen) in enumerate(told)]
        earlier = [f"before the last start {len(self._before):,}"] if self._before else []
        self._on_note(
            f"verified epoch {self._epoch + 1}: weights {told[0][0][:12]} on all workers; images seen: "
            f"{', '.join(counts + earlier)}"
        )
        self._before, self._seen = [], []

    def _check_weights(self, digests: list[str]) -> None:
        different = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise TrainingError(
                f"after epoch {self._epoch + 1} the weights of rank {', '.join(different)} are not those of rank 0: "
                "the last checkpoint is of rank 0; report this with the run's config.json"
            )

    def _check_images(self, seen: list[list[str]]) -> None:
        """Every image that the epoch still had to see, exactly once."""
        times = Counter(image for share in seen for image in share)
        twice = sum(count > 1 for count in times.values())
        if twice or len(times) != self._expected:
            raise TrainingError(
                f"epoch {self._epoch + 1} saw {len(times):,} of {self._expected:,} images, {twice:,} of them more than "
                "once"
            )


def hash_weights(model: nn.Module) -> str:
    """SHA-256 over all weights and statistics, to the bit."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
