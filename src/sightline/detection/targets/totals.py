"""Counts over the rows of a job in a database, made by the database."""

from sightline.detection.schema import REJECTED
from sightline.detection.targets.connector import Transaction
from sightline.detection.targets.tables import Tables
from sightline.detection.targets.target import ClassCount, Summary


def summarize(transaction: Transaction, tables: Tables, job: str) -> Summary:
    """What a job has found so far; in one statement, so that all counts are of the same moment."""
    sql = (
        f"select 'status', status, count(*), sum(num_detections), 0.0 "
        f"from {tables.images} where job = :job group by status "
        f"union all select 'reason', coalesce(reason, ''), count(*), 0, 0.0 "
        f"from {tables.images} where job = :job and status = :rejected group by coalesce(reason, '') "
        f"union all select 'label', label, count(distinct image_id), count(*), avg(score) "
        f"from {tables.detections} where job = :job group by label"
    )
    by_status: dict[str, tuple[int, int]] = {}
    reasons: dict[str, int] = {}
    classes: list[ClassCount] = []
    for kind, name, images, detections, mean_score in transaction.execute(sql, job=job, rejected=REJECTED):
        match kind:
            case "status":
                by_status[name] = int(images), int(detections)
            case "reason":
                reasons[name] = int(images)
            case _:
                classes.append(ClassCount(name, int(detections), int(images), float(mean_score)))
    # Sorted here: databases do not agree on the order of texts.
    return Summary(
        images=sum(images for images, _ in by_status.values()),
        rejected=by_status.get(REJECTED, (0, 0))[0],
        detections=sum(detections for _, detections in by_status.values()),
        classes=tuple(sorted(classes, key=lambda found: (-found.detections, found.label))),
        reasons=dict(sorted(reasons.items(), key=lambda found: (-found[1], found[0]))),
    )
