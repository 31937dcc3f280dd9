"""The one way from an encoded image to what a network takes: predict, evaluate, detect and serving all use it."""

from dataclasses import dataclass, replace

from sightline.data.decode import MAX_PIXELS, decode, decode_reduced
from sightline.data.magic import EncodedImage
from sightline.models.inference import InferenceModel
from sightline.models.info import Preprocessing
from sightline.models.letterbox import Letterbox
from sightline.structures import Pixels


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image as the network takes it.

    Attributes:
        canvas: H x W x 3 uint8 RGB.
        width: Of the upright original, in whose pixels boxes are given.
        height: Likewise.
    """

    canvas: Pixels
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """Brings images to a model's input size; it is picklable, for loaders run it in other processes.

    Attributes:
        letterbox: Scales and pads.
        reduced_decode: Whether JPEGs of at least twice the size that is needed are decoded at reduced scale.
        max_pixels: Larger images are refused from their header.
    """

    letterbox: Letterbox
    reduced_decode: bool = True
    max_pixels: int = MAX_PIXELS

    def prepare_encoded(self, data: EncodedImage) -> PreparedImage:
        """An encoded image, turned upright, as the network takes it.

        Raises:
            ImageError: It cannot be decoded.
        """
        if not self.reduced_decode:
            return self.prepare(decode(data, max_pixels=self.max_pixels))
        pixels, size = decode_reduced(data, self._smallest, max_pixels=self.max_pixels)
        return self.prepare(pixels, size=size)

    def prepare(self, pixels: Pixels, *, size: tuple[int, int] | None = None) -> PreparedImage:
        """An upright RGB image as the network takes it.

        Args:
            size: Width and height of the image, if the pixels are those of a smaller version of it.
        """
        width, height = size or (pixels.shape[1], pixels.shape[0])
        return PreparedImage(self.letterbox.place(pixels, width=width, height=height), width, height)

    def canvas(self, data: EncodedImage) -> Pixels:
        """The canvas alone, for loaders."""
        return self.prepare_encoded(data).canvas

    def _smallest(self, width: int, height: int) -> tuple[int, int]:
        return self.letterbox.fitted(width=width, height=height)


def preprocessing_of(model: InferenceModel) -> Preprocessing:
    """What is done to images before they go into a model, as its bundle says it."""
    return Preprocessing.of(replace(model.letterbox, square=not model.rectangular))


def make_preprocessor(
    model: InferenceModel, said: Preprocessing | None = None, *, max_pixels: int = MAX_PIXELS
) -> Preprocessor:
    """What prepares images for a model.

    Args:
        said: What the model's bundle says; None for a model that has none yet. A canvas that is not square is used only
            where the network allows it.
    """
    said = said or preprocessing_of(model)
    letterbox = replace(model.letterbox, square=said.square or not model.rectangular)
    return Preprocessor(letterbox, said.reduced_decode, max_pixels)
