"""A finding: something about a dataset that its owner should look at, with the files to go to."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")

MAX_EXAMPLES = 12


class Frozen(BaseModel):
    """Base of what an inspection holds: values that do not change and become JSON as they are."""

    model_config = ConfigDict(frozen=True)


class Example(Frozen):
    """One place where a finding can be seen.

    Attributes:
        file_name: The image, as the source names it.
        split: The split it is in.
        detail: What is to be seen there.
        position: The image's position in the dataset, for looking it up.
        box: xyxy in pixels, when the finding is about one box.
        label: The class of that box.
    """

    file_name: str
    split: str
    detail: str = ""
    position: int
    box: tuple[float, float, float, float] | None = None
    label: int | None = None


class Finding(Frozen):
    """Something to look at.

    Attributes:
        kind: A short, stable phrase, such as "tiny boxes".
        severity: "problem" spoils training or its measurement; "warning" probably does; "note" is good to know.
        count: How many there are; 0 where counting says nothing.
        unit: What is counted: "boxes", "images" or "classes".
        advice: Why it matters and what to do.
        examples: The first few, in the order of the dataset.
        names: Classes concerned, when the finding is about classes.
    """

    kind: str
    severity: Severity
    count: int
    unit: str
    advice: str
    examples: tuple[Example, ...] = ()
    names: tuple[str, ...] = ()


def by_severity(findings: list[Finding]) -> tuple[Finding, ...]:
    """Worst first; otherwise in the order given."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))
