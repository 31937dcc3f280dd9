"""Image classifiers: torchvision's networks with a head for the classes at hand."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.models.classifier_inference import ClassifierInference
from sightline.models.detector import Detector, LossTerm, Target, zero_loss
from sightline.models.graph import IMAGES, Graph
from sightline.models.normalise import Normalise


class Classifier(Detector):
    """Gives every image one label; as a detection it is a box around the whole image."""

    task = "classification"

    def __init__(self, network: nn.Module, *, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size
        self.normalise = Normalise()
        last = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
        self.heads = (f"network.{last}.",)

    @property
    def inference(self) -> ClassifierInference:
        """See `Detector.inference`."""
        return ClassifierInference(self.size)

    def logits(self, images: Tensor) -> Tensor:
        """Scores of every class, B x classes, before softmax."""
        return self.network(self.normalise(images))  # type: ignore[no-any-return]

    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """Cross entropy over the images."""
        if len(images) == 0:
            nothing = zero_loss(self)
            return [LossTerm("classification", nothing, nothing.detach())]
        labels = torch.tensor([target.label for target in targets], device=images.device)
        total = functional.cross_entropy(self.logits(images), labels, reduction="sum")
        return [LossTerm("classification", total, torch.tensor(float(len(labels)), device=images.device))]

    def graphs(self) -> dict[str, Graph]:
        """One: the scores before softmax."""
        return {"logits": Graph(_Logits(self.normalise, self.network), (IMAGES,), ("logits",))}


class _Logits(nn.Module):
    """8-bit images to scores before softmax."""

    def __init__(self, normalise: Normalise, network: nn.Module) -> None:
        super().__init__()
        self.normalise, self.network = normalise, network

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """B x 3 x H x W to B x classes."""
        return (self.network(self.normalise(images)),)
