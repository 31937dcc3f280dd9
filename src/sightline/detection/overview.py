"""A job in figures and some of its images, for its page."""

from sightline.detection.again import Row, find_images, picture_of
from sightline.detection.browse import JobBrowser, Selection
from sightline.detection.past import PastJob
from sightline.errors import SightlineError
from sightline.report.job_report import JobReport, Picture
from sightline.report.thumbnails import data_uri
from sightline.workspace import Workspace


def survey_job(workspace: Workspace, job: PastJob, *, pictures: int = 12) -> JobReport:
    """What a job has found.

    Args:
        pictures: How many images with detections are shown; of the least sure and of those without, half as many each.
    """
    browser = JobBrowser(workspace, job)
    totals, chosen = browser.totals(), _choose(browser, pictures)
    drawn = _draw(browser, [row for rows in chosen.values() for row in rows])
    return JobReport(
        name=job.name,
        model=job.model,
        source=job.source,
        images=totals.images,
        rejected=totals.rejected,
        with_detections=totals.found,
        detections=totals.detections,
        classes=browser.classes(),
        scores=browser.scores(),
        reasons=browser.reasons(),
        pictures={title: tuple(drawn[row["image_id"]] for row in rows) for title, rows in chosen.items()},
        about=_about(browser.manifest, job),
    )


def _choose(browser: JobBrowser, count: int) -> dict[str, list[Row]]:
    """Some images with detections, the least sure ones, and some without; the same ones every time."""
    found, empty = Selection(kind="found"), Selection(kind="empty")
    return {
        "What was found": browser.images(found, count=count),
        "Where it was least sure": browser.images(found, order="unsure", count=count // 2),
        "Where it found nothing": browser.images(empty, count=count // 2),
    }


def _draw(browser: JobBrowser, rows: list[Row]) -> dict[str, Picture]:
    data, labels = find_images(browser.workspace, browser.job, rows), browser.labels
    return {row["image_id"]: _picture(row, data[row["image_id"]], labels) for row in rows}


def _picture(row: Row, data: bytes | SightlineError, labels: dict[str, int]) -> Picture:
    scores = [box["score"] for box in row["boxes"]]
    caption = f"{len(scores)} found, {min(scores):.2f} to {max(scores):.2f}" if scores else ""
    try:
        if isinstance(data, SightlineError):
            raise data
        drawn = picture_of(row, data, labels)
    except SightlineError as error:
        return Picture(row["uri"], caption, trouble=str(error))
    return Picture(row["uri"], caption, data_uri(drawn), *drawn.size)


def _about(manifest: Row, job: PastJob) -> dict[str, str]:
    said, run = manifest.get("job", {}), manifest.get("run", {})
    machine = manifest.get("machine", {})
    facts = {
        "Model": job.model,
        "Bundle": str(said.get("bundle", ""))[:16],
        "Engine": said.get("engine"),
        "Lowest score": said.get("threshold"),
        "Image size": said.get("size"),
        "Tiles": f"{said['tile']}, overlap {said['overlap']}" if said.get("tile") else None,
        "Rows": job.target,
        "Finished": job.finished,
        "Images per second, last run": run.get("images_per_s"),
        "Workers": machine.get("placement", {}).get("workers"),
        "Machine": f"{machine['cpu']}, {machine['cores']} cores" if "cpu" in machine else None,
        "Sightline": manifest.get("sightline_version"),
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}
