"""What ingest could not use as it was, grouped by what happened and why."""

import pyarrow as pa
import pyarrow.compute as pc

from sightline.data.dataset import Dataset
from sightline.report.finding import Frozen

_MAX_EXAMPLES = 5


class RejectExample(Frozen):
    """One thing that ingest could not use as it was."""

    file_name: str
    detail: str


class RejectGroup(Frozen):
    """What ingest could not use as it was, for one reason."""

    action: str
    reason: str
    count: int
    examples: tuple[RejectExample, ...]


def group_rejects(dataset: Dataset) -> tuple[RejectGroup, ...]:
    """All rejects by action and reason; lost images first, then the most frequent."""
    table = dataset.rejects()
    groups = [
        RejectGroup(action=action, reason=reason, count=count, examples=_examples(table, action, reason))
        for action, reasons in dataset.info.rejected.items()
        for reason, count in reasons.items()
    ]
    return tuple(sorted(groups, key=lambda group: (group.action != "image rejected", group.action, -group.count)))


def _examples(table: pa.Table, action: str, reason: str) -> tuple[RejectExample, ...]:
    chosen = table.filter((pc.field("action") == action) & (pc.field("reason") == reason)).slice(0, _MAX_EXAMPLES)
    return tuple(
        RejectExample(file_name=row["file_name"], detail=row["detail"])
        for row in chosen.select(["file_name", "detail"]).to_pylist()
    )
