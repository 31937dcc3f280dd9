"""Families that tests go over: of the YOLOs the smallest of each series, for the others differ by size alone."""

from sightline.models.factory import CLASSIFIERS, FAMILIES
from sightline.models.yolo import NAMES as YOLOS

TESTED = tuple(name for name in FAMILIES if name not in YOLOS or name.endswith("n"))
TORCHVISION = tuple(name for name in TESTED if name not in ("nano", *YOLOS, *CLASSIFIERS))
