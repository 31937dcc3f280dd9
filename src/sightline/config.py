"""Every setting and its default, in one place.

Defaults < TOML file < `--set section.key=value` < named flags. Unknown keys are refused.
"""

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.errors import ConfigError, NotFoundError
from sightline.secrets import redact, redact_values

FormatName = Literal["auto", "voc", "coco", "yolo", "deeppcb", "folder", "table"]
BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
ExportFormatName = Literal["voc", "coco", "yolo"]


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DecodeConfig(Section):
    """How images are read."""

    max_pixels: int = Field(89_000_000, gt=0)
    """Images with more pixels than this are refused from their header, before any memory is taken."""


class IngestConfig(Section):
    """How annotated images become a dataset."""

    format: FormatName = "auto"
    """Annotation format of the source; `auto` looks and says what it found."""
    split: str | None = None
    """Fractions such as "train=0.8,val=0.2", for all images. Default: the source's own splits, else `default_split`."""
    default_split: str = "train=0.8,val=0.1,test=0.1"
    """Fractions for images to which the source gives no split."""
    stratify: bool = False
    """Keep the share of every class equal between the splits; reads the source twice."""
    classes: tuple[str, ...] | None = None
    """Class names in order. Default: the source's own order, else sorted by name."""
    images: str | None = None
    """Where the images are, when they are not where the format puts them."""
    columns: dict[str, str] = Field(default_factory=dict)
    """For tables: which column holds `image`, `path`, `name`, `split`, `class`, `xmin`, … when the name differs."""
    box_format: BoxFormat | None = None
    """For tables: what the four numbers of a box are: corners, left top width height, or center width height."""
    query: str | None = None
    """For databases: the SQL query that gives the rows."""
    verify: Literal["full", "header"] = "full"
    """`full` decodes every image; `header` reads only sizes (an unreadable image is found later, in training)."""
    max_rejected: float = Field(1.0, ge=0, le=1)
    """Fail when a larger share of the images than this cannot be used."""
    workers: int = Field(0, ge=0)
    """Processes to use; 0 means one for each core."""
    oversubscribe: bool = False
    """Start more than two processes per core instead of refusing them."""


class LoaderConfig(Section):
    """How training and evaluation read images; batch sizes are `train.batch` and `evaluate --batch`."""

    threads: int = Field(1, ge=0)
    """Threads that decode and augment; 0 decodes in the caller's."""
    processes: int = Field(0, ge=0)
    """Processes that decode and augment, instead of threads."""
    prefetch: int = Field(4, gt=0)
    """Batches kept ready."""


class AugmentConfig(Section):
    """Random changes to training images; probabilities are 0 to 1, and the boxes always follow the pixels."""

    hflip: float = Field(0.5, ge=0, le=1)
    """Probability of a mirror image."""
    vflip: float = Field(0.0, ge=0, le=1)
    """Probability of an upside-down image."""
    rotate90: float = Field(0.0, ge=0, le=1)
    """Probability of a turn by 90, 180 or 270 degrees."""
    crop: float = Field(0.0, ge=0, le=1)
    """Probability of cutting out a part of the image."""
    crop_min: float = Field(0.5, gt=0, le=1)
    """The smallest part to cut out, as a share of each side."""
    scale: float = Field(0.0, ge=0, lt=1)
    """Images are made larger or smaller by up to this share (0.2: 0.8 to 1.2 times)."""
    translate: float = Field(0.0, ge=0, lt=1)
    """Images are moved by up to this share of each side."""
    brightness: float = Field(0.0, ge=0, lt=1)
    """Brightness changes by up to this share."""
    contrast: float = Field(0.0, ge=0, lt=1)
    """Contrast changes by up to this share."""
    saturation: float = Field(0.0, ge=0, lt=1)
    """Saturation changes by up to this share."""
    mosaic: float = Field(0.0, ge=0, le=1)
    """Probability that four images are joined into one; never for classification."""
    min_visible: float = Field(0.25, ge=0, le=1)
    """A box of which a smaller share than this is left in the picture is dropped."""

    @property
    def active(self) -> bool:
        """Whether anything can happen to an image at all."""
        return any(value for name, value in self if name not in ("crop_min", "min_visible"))


class TrainConfig(Section):
    """How a model is trained."""

    model: str = "auto"
    """Which model: nano, ssdlite, fasterrcnn-mobilenet, …; resnet18, resnet50 or mobilenet to classify. `auto` takes a
    detector whose COCO weights are at hand, else nano; resnet18 to classify."""
    weights: str = "auto"
    """What it starts from: `coco`, `imagenet` (downloaded if need be), `none`, a file, or a run of ours. `auto` takes
    published weights if they have been downloaded before."""
    weights_hash: str | None = None
    """SHA-256 of the weights' file; a run fills it in. If given, the file must have it."""
    size: int | None = Field(None, ge=32)
    """Side of the square that images are fitted into; default: the model's usual one."""
    epochs: int = Field(20, gt=0)
    """How often every image is seen."""
    batch: int = Field(4, gt=0)
    """Images in one step, over all workers."""
    accumulate: int = Field(1, gt=0)
    """Parts in which a worker's share of the batch goes through the model, to save memory; the gradients are those of
    the whole. More than one costs a second forward pass."""
    lr: float | None = Field(None, gt=0)
    """Highest learning rate. For this and the next two, default: what is usual for the model and its weights."""
    scale_lr: bool = False
    """Whether the learning rate is meant for a batch of 4, and grows with a larger one."""
    optimizer: Literal["adamw", "sgd"] | None = None
    """Which optimizer."""
    weight_decay: float | None = Field(None, ge=0)
    """Pull of weights towards zero; norms and biases are left out."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup: float = Field(0.05, ge=0, lt=1)
    """Share of the run in which the learning rate rises."""
    clip: float = Field(10.0, ge=0)
    """Longest gradient; 0 for no limit."""
    ema: float = Field(0.998, ge=0, lt=1)
    """Decay of the moving average of weights, which is what is scored and kept; 0 for none."""
    patience: int = Field(0, ge=0)
    """Stop after so many epochs without a better score; 0 never does."""
    evaluate_every: int = Field(1, gt=0)
    """Epochs between evaluations; the last one is always scored."""
    hold_back: float = Field(0.1, ge=0, lt=1)
    """Share of the training images that choose the best epoch instead, where the dataset has no split `val`."""
    iou: float | None = Field(None, gt=0, lt=1)
    """The overlap at which epochs are compared and the threshold is chosen (DeepPCB: 0.33); default: 0.5."""
    freeze: tuple[str, ...] = ()
    """Parameters whose names begin with one of these are not trained."""
    batchnorm: Literal["sync", "local", "frozen"] | None = None
    """Whether BatchNorm uses the whole batch, each worker's share of it, or keeps its statistics. Default: `frozen` for
    detectors of torchvision that start from weights, else `sync`."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """In which numbers the model computes; weights stay float32. `auto`: bfloat16 on GPUs that have it,
    and on CPUs that have it for models that gain by it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes a GPU if there is one."""
    seed: int = Field(0, ge=0)
    """Equal seeds give equal runs."""
    threads: int = Field(0, ge=0)
    """Threads of torch in each worker; 0 shares out the cores that other processes leave free at the start."""
    checkpoint_every_s: float = Field(60.0, gt=0)
    """Seconds between checkpoints; an epoch that is scored is always saved."""


class WorkersConfig(Section):
    """How many workers train a model, and who starts them; the outcome does not depend on it."""

    count: int = Field(1, gt=0)
    """Workers that share every batch."""
    launcher: Literal["auto", "inline", "local", "ray"] = "auto"
    """`inline`: one worker in this process. `local`: subprocesses on this machine. `ray`: Ray Train. `auto`: ray if
    there is a cluster (an address, RAY_ADDRESS, a connection), else local for several workers, else inline."""
    address: str | None = None
    """Of a Ray cluster: host:port, `auto` for the one this machine belongs to, `local` to start one here."""
    gpus_per_worker: float | None = Field(None, ge=0)
    """Default: one for each worker where there are GPUs."""
    oversubscribe: bool = False
    """Start workers even if the cores or the memory are not enough for them."""
    hang_after_s: float = Field(30.0, gt=0)
    """A worker that sends no heartbeat for this long is ended, and all begin again at the last checkpoint. So is one
    whose main thread stands still in a step for this long and for 20 times its slowest step, or elsewhere for 20 times
    this long."""
    verify: bool = False
    """Compare the weights of all workers after every epoch, and check that each image was seen once."""


class SourceConfig(Section):
    """Which images `detect` looks at."""

    where: str | None = None
    """For datasets and tables: a condition in SQL over their columns, such as "split='test'"."""
    limit: int | None = Field(None, gt=0)
    """Only so many images, the first of the source."""
    query: str | None = None
    """For databases: the SQL query that gives the rows."""
    image: str | None = None
    """For tables: the column with the image as bytes or base64; default: found by name."""
    path: str | None = None
    """For tables: the column with paths or URLs of images; default: found by name."""
    key: str | None = None
    """For tables: the column that tells rows apart; default: found by name, else the path. Files: or "row number"."""
    root: str | None = None
    """The folder that relative paths of tables and lists begin at; default: that of the table or list."""
    missing: Literal["error", "reject"] = "error"
    """Images that are gone with all others of their folder: end the run, for a disk may be away, or reject each."""


class DetectConfig(Section):
    """How a model is run over many images."""

    engine: Literal["auto", "torch", "onnxruntime", "openvino"] = "auto"
    """What runs the model; `auto` takes the fastest that fits."""
    precision: Literal["auto", "bfloat16"] = "auto"
    """`auto` keeps scores within 0.01 and edges within a pixel; `bfloat16` (OpenVINO) is quicker and less exact."""
    threshold: float | None = Field(None, ge=0, le=1)
    """Lowest score to keep; default: the one that validation chose, else 0.3."""
    size: int | None = Field(None, ge=32)
    """Side that images are fitted into; default: as trained."""
    tile: int | None = Field(None, ge=32)
    """Cut images that are larger than this into tiles of so many pixels, and detect on every tile."""
    overlap: float = Field(0.2, ge=0, lt=1)
    """Share of a tile that it has in common with the next."""
    rectangular: bool | None = None
    """Whether images go into models that allow it without padding them to a square; default: as the bundle says."""
    reduced_decode: bool | None = None
    """Whether JPEGs at least twice as large as the model's input are decoded at reduced scale; default: likewise."""
    batch: int | None = Field(None, gt=0)
    """Images that go through the model at once; default: 1 on a CPU, 16 on a GPU."""
    workers: int = Field(1, gt=0)
    """One runs in this process, several on Ray."""
    address: str | None = None
    """Of a Ray cluster: host:port, `auto` for the one this machine belongs to; default: one is started here."""
    gpus_per_worker: float | None = Field(None, ge=0)
    """Default: one for each worker where there are enough."""
    oversubscribe: bool = False
    """Start workers even if the cores or the memory are not enough for them."""
    threads: int = Field(0, ge=0)
    """Threads of a worker's engine; 0 shares the cores out."""
    chunk: int | None = Field(None, gt=0)
    """Images committed at once; default: 8 at first, and more as the job grows."""
    lease_s: float = Field(30.0, gt=0)
    """A run that gives no sign of life for so long loses the chunks it was working on to others."""
    stall_s: float = Field(300.0, gt=0)
    """A worker that finishes no image for so long is ended."""
    max_rejected: float | None = Field(None, ge=0, le=1)
    """Exit code 4 when a larger share of the images than this was rejected; default: when all of them were."""
    save_images: int = Field(0, ge=0)
    """Keep so many pictures with boxes beside the detections."""
    table_prefix: str = ""
    """What the names of a database's tables begin with."""


class TrackingConfig(Section):
    """Where runs are kept."""

    enabled: bool = True
    """Whether runs are kept in MLflow at all."""
    uri: str | None = None
    """An MLflow server or database. Default: MLFLOW_TRACKING_URI of the environment, else SQLite in the workspace."""
    experiment: str = Field("sightline", min_length=1)
    """The experiment that runs belong to; Databricks wants a path such as /Users/ann@example.com/boards."""


class Config(Section):
    """All settings."""

    decode: DecodeConfig = DecodeConfig()
    ingest: IngestConfig = IngestConfig()
    loader: LoaderConfig = LoaderConfig()
    augment: AugmentConfig = AugmentConfig()
    train: TrainConfig = TrainConfig()
    workers: WorkersConfig = WorkersConfig()
    source: SourceConfig = SourceConfig()
    detect: DetectConfig = DetectConfig()
    tracking: TrackingConfig = TrackingConfig()


def load_config(
    file: Path | None = None, *, sets: tuple[str, ...] = (), flags: dict[str, dict[str, Any]] | None = None
) -> Config:
    """Resolve the settings from a TOML file, `section.key=value` texts and named flags, later ones winning."""
    values: dict[str, Any] = _read_toml(file) if file else {}
    for text in sets:
        section, key, value = _parse_set(text)
        _section_of(values, section)[key] = value
    for section, settings in (flags or {}).items():
        _section_of(values, section).update({k: v for k, v in settings.items() if v is not None})
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _section_of(values: dict[str, Any], section: str) -> dict[str, Any]:
    found = values.setdefault(section, {})
    if not isinstance(found, dict):
        raise ConfigError(f"setting {section!r} is a section, not a value: write [{section}] with keys below it")
    return found


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"config file {str(file)!r} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {str(file)!r} is not valid TOML: {error}") from None


def _parse_set(text: str) -> tuple[str, str, Any]:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"--set {redact(text)!r} is not section.key=value, for example --set ingest.verify=header")
    try:
        return section, key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return section, key, value


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"setting {where!r} does not exist{_known(problem['loc'])}")
        else:
            message = problem["msg"][0].lower() + problem["msg"][1:]
            value = redact_values(problem["input"], where)
            lines.append(f"setting {where!r} has value {value!r}: {message}")
    return "; ".join(lines)


def _known(location: tuple[int | str, ...]) -> str:
    fields = Config.model_fields
    if len(location) > 1:
        section = fields[str(location[0])].annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        fields = section.model_fields
    return f"; known here: {', '.join(fields)}"
