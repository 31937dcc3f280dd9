import hashlib
from collections.abc import Iterable

from sightline.report.showcase import Showcase


def showcase_of(images: Iterable[tuple[int, int, list[int]]]) -> Showcase:
    showcase = Showcase()
    for position, split, labels in images:
        showcase.add(position, hashlib.sha256(b"%d" % position).digest(), split=split, labels=labels)
    return showcase


IMAGES = [(position, position % 2, [0, 1] if position % 10 else [2]) for position in range(200)]


def test_every_class_is_shown_and_no_image_twice() -> None:
    chosen = showcase_of(IMAGES).choose(30)
    assert len(chosen) == len(set(chosen)) == 30
    assert sum(position % 10 == 0 for position in chosen) >= 5
    assert 5 <= sum(position % 2 for position in chosen) <= 25


def test_the_choice_does_not_depend_on_the_order() -> None:
    assert showcase_of(reversed(IMAGES)).choose(30) == showcase_of(IMAGES).choose(30)


def test_few_images_are_all_shown_also_without_labels() -> None:
    assert sorted(showcase_of([(0, 0, []), (1, 0, []), (2, 0, [4])]).choose(30)) == [0, 1, 2]
