"""Where the workers of a run meet, and who else could come."""

import psutil
import pytest

from sightline.training.rendezvous import connect_store, serve_store


def listening() -> set[tuple[str, int]]:
    """Addresses and ports at which this process can be reached."""
    sockets = psutil.Process().net_connections("inet")
    return {(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_store_listens_at_the_given_address_only(address: str) -> None:
    before = listening()
    served = serve_store(address, 2)
    assert listening() - before == {(address, served.port)}
    connect_store(address, served.port, 2).set("rank-1", "here")
    assert served.get("rank-1") == b"here"
