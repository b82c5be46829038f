"""Go's gomemcache: the text protocol, `gets` for every read."""

import pytest
from scripts import BUILT, HEAVY, WHY_NOT, build, exchange

pytestmark = pytest.mark.skipif(not HEAVY, reason=WHY_NOT)


@pytest.fixture(scope="module")
def program():
    """The built script."""
    build("go", "go", "build", "-mod=readonly", "-buildvcs=false", "-o", BUILT / "gomemcache", ".")
    return BUILT / "gomemcache"


def test_gomemcache(open_server, program):
    exchange("go", program, f"127.0.0.1:{open_server.port}")


def test_gomemcache_through_tls(secured_server, program):
    exchange("go", program, f"127.0.0.1:{secured_server.port}", secured_server.authority.certificate)
