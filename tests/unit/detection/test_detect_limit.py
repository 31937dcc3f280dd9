"""`--limit` on a source that grows."""

from pathlib import Path

from fakes import jpeg

import sightline
from sightline.models.bundle import Bundle


def test_a_job_never_has_more_images_than_its_limit(tmp_path: Path, bundle: Bundle) -> None:
    """Other images are the first of the source by now; those that were taken stay, and a changed one is seen to."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(10, 20):
        (photos / f"{number}.jpg").write_bytes(jpeg(seed=number))

    def detect(limit: int) -> tuple[int, int]:
        found = sightline.detect(
            str(bundle.path), photos, "job", engine="torch", threads=1, limit=limit, workspace=tmp_path / "ws"
        )
        return found.counts.images, found.summary.images

    assert detect(4) == (4, 4)
    for number in range(3):
        (photos / f"{number:02}.jpg").write_bytes(jpeg(seed=number))
    (photos / "10.jpg").write_bytes(jpeg(100, 60))
    assert detect(4) == (1, 4)
    assert detect(4) == (0, 4)
    rows = sightline.query("select uri, width from images order by uri", workspace=tmp_path / "ws").to_pylist()
    assert [(Path(row["uri"]).name, row["width"]) for row in rows] == [
        ("10.jpg", 100),
        ("11.jpg", 80),
        ("12.jpg", 80),
        ("13.jpg", 80),
    ]
