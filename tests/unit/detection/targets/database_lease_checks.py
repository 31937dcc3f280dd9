"""What leases do in every database target, whichever database it is."""

import os
import subprocess
import sys
from collections import Counter

from database_place import ANN, BEN, HERE, Place, at_once, images, rows_of

from sightline.detection.targets.target import Owner
from sightline.process_identity import _start


def check_leases_keep_others_out(place: Place) -> None:
    ann, ben = place.target(), place.target()
    assert ann.claim(["a", "b"], ANN, lease_s=60) == {"a": 1, "b": 1}
    assert ben.claim(["a", "b", "c"], BEN, lease_s=60) == {"c": 1}
    assert ann.claim(["a"], ANN, lease_s=60) == {"a": 1}, "one's own lease is neither another run's nor a new attempt"


def check_leases_expire(place: Place) -> None:
    ann, ben = place.target(), place.target()
    ann.claim(["a", "b"], ANN, lease_s=0)
    ann.renew(["b"], ANN, lease_s=60)
    assert ben.claim(["a", "b"], BEN, lease_s=60) == {"a": 2}
    ann.renew(["a"], ANN, lease_s=0)
    assert ann.claim(["a"], ANN, lease_s=60) == {}, "a lease that was lost can be neither renewed nor ended"
    ann.release(["a"], ANN)
    assert ann.claim(["a"], ANN, lease_s=60) == {}


def check_leases_of_the_dead_end(place: Place) -> None:
    target = place.target()
    place_here, start = HERE.rsplit("-", 1)
    owners = {
        "dead": Owner("dead", HERE, dead_pid()),
        "another's id by now": Owner("reused", f"{place_here}-{int(start) - 1}", os.getpid()),
        "of another machine": Owner("far", "elsewhere-1", dead_pid()),
        "alive": Owner("alive", HERE, os.getpid()),
        "alive, and not ours": Owner("init", f"{place_here}-{_start(1)}", 1),
    }
    for chunk, owner in owners.items():
        target.claim([chunk], owner, lease_s=60)
    assert target.claim(list(owners), BEN, lease_s=60) == {"dead": 2, "another's id by now": 2}


def check_attempts_count_over_owners(place: Place) -> None:
    target = place.target()
    owners = [Owner(f"run{number}", "elsewhere", number) for number in range(4)]
    assert [target.claim(["a"], owner, lease_s=0)["a"] for owner in owners] == [1, 2, 3, 4]
    target.release(["a"], owners[-1])
    assert target.claim(["a"], ANN, lease_s=60) == {"a": 4}, "what was given back does not count"


def check_claims_race(place: Place) -> None:
    ann, ben, nobody = place.target(), place.target(), Owner("nobody", "elsewhere", 0)
    for number in range(3):
        chunks = [f"{number}-{chunk}" for chunk in range(30)]
        for attempts in (1, 3):
            got = at_once(
                lambda: ann.claim(chunks, ANN, lease_s=60),  # noqa: B023
                lambda: ben.claim(chunks[::-1], BEN, lease_s=60),  # noqa: B023
            )
            assert Counter([*got[0], *got[1]]) == Counter(chunks)
            assert {*got[0].values(), *got[1].values()} == {attempts}
            ann.renew(chunks, ANN, lease_s=0)
            ben.renew(chunks, BEN, lease_s=0)
            assert len(ann.claim(chunks, nobody, lease_s=0)) == 30


def check_committed_chunks_are_not_leased(place: Place) -> None:
    target = place.target()
    target.claim(["a", "b"], ANN, lease_s=60)
    assert target.commit("a", images("a", ["1"]), ANN)
    assert target.claim(["a"], BEN, lease_s=60) == {}
    target.release(["a", "b"], ANN)
    assert target.claim(["a", "b"], BEN, lease_s=60) == {"b": 1}
    assert target.committed() == {"a"}


def check_chunks_are_leased_again_under_other_names(place: Place) -> None:
    """A run looks again at a committed chunk under a name that has a lease and no rows."""
    ann, ben = place.target(), place.target()
    chunk, again = "000000-00003", "000000-00003.again"
    ann.claim([chunk], ANN, lease_s=60)
    ann.commit(chunk, images(chunk, ["1"]), ANN)
    assert ann.claim([again], ANN, lease_s=60) == {again: 1}
    assert ben.claim([again], BEN, lease_s=60) == {}
    ann.renew([again], ANN, lease_s=0)
    assert ben.claim([chunk, again], BEN, lease_s=60) == {again: 2}, "its lease was not renewed for long"
    assert ben.rewrite(chunk, images(chunk, ["1"], version="new"), BEN, revision=1)
    ben.release([again], BEN)
    assert ann.claim([again], ANN, lease_s=60) == {again: 1}, "it was done: attempts begin anew"
    ann.release([again], ANN)
    assert ann.committed() == {chunk}
    assert rows_of(ann, "chunk", "version") == [(chunk, "new")]
    assert place.sql("select distinct chunk from detections") == [(chunk,)]


def check_a_rewrite_leaves_the_lease_of_a_successor(place: Place) -> None:
    ann, ben, third = place.target(), place.target(), Owner("third", "elsewhere", 3)
    ann.commit("a", images("a", ["1"]), ANN)
    ann.claim(["a.again"], ANN, lease_s=0)
    assert ben.claim(["a.again"], BEN, lease_s=60) == {"a.again": 2}
    assert ann.rewrite("a", images("a", ["1"], version="new"), ANN, revision=1)
    assert ann.claim(["a.again"], third, lease_s=60) == {}
    assert ben.rewrite("a", images("a", ["1"], version="newer"), BEN, revision=2)
    assert ann.claim(["a.again"], third, lease_s=60) == {"a.again": 1}


def check_attempts_are_never_below_none(place: Place) -> None:
    target = place.target()
    names = ["a", "b", "c", "b.again", "never claimed"]
    target.claim(names[:-1], ANN, lease_s=0)
    assert target.claim(["c"], BEN, lease_s=60) == {"c": 2}
    target.commit("b", images("b", ["1"]), ANN)
    target.commit("unclaimed", images("unclaimed", ["2"]), ANN)
    for owner in (BEN, ANN, ANN, BEN, ANN):
        target.release([*names, "unclaimed"], owner)
    left = dict(place.sql("select chunk, attempts from sightline_chunks"))
    assert left == {"a": 0, "b": 1, "b.again": 0, "c": 1, "unclaimed": 0}
    target.renew(names, ANN, lease_s=60)
    assert target.claim(names, BEN, lease_s=60) == {"a": 1, "b.again": 1, "c": 2, "never claimed": 1}


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


LEASE_CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
