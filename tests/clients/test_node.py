"""Node's memjs (the binary protocol, SASL) and memcached (the text protocol)."""

import pytest
from endpoints import PASSWORD, USER
from scripts import HEAVY, WHY_NOT, build, exchange

pytestmark = pytest.mark.skipif(not HEAVY, reason=WHY_NOT)


@pytest.fixture(scope="module", autouse=True)
def packages():
    """The packages of package-lock.json."""
    build("node", "npm", "ci", "--no-audit", "--no-fund")


@pytest.mark.parametrize("package", ["memjs", "memcached"])
def test_node(open_server, package):
    exchange("node", "node", f"{package}.js", f"127.0.0.1:{open_server.port}")


def test_memjs_with_a_password(guarded_server):
    exchange("node", "node", "memjs.js", f"127.0.0.1:{guarded_server.port}", USER, PASSWORD)
    with pytest.raises(AssertionError, match="ended with 1"):
        exchange("node", "node", "memjs.js", f"127.0.0.1:{guarded_server.port}", USER, "wrong")
