"""Node's memjs (the binary protocol, SASL) and memcached (the text protocol)."""

import pytest
from conversations import HEAVY, WHY_NOT, build, converse
from endpoints import PASSWORD, USER

pytestmark = pytest.mark.skipif(not HEAVY, reason=WHY_NOT)


@pytest.fixture(scope="module", autouse=True)
def packages():
    """What package-lock.json names."""
    build("node", "npm", "ci", "--no-audit", "--no-fund")


@pytest.mark.parametrize("package", ["memjs", "memcached"])
def test_node(open_server, package):
    converse("node", "node", f"{package}.js", f"127.0.0.1:{open_server.port}")


def test_memjs_with_a_password(guarded_server):
    converse("node", "node", "memjs.js", f"127.0.0.1:{guarded_server.port}", USER, PASSWORD)
    with pytest.raises(AssertionError, match="ended with 1"):
        converse("node", "node", "memjs.js", f"127.0.0.1:{guarded_server.port}", USER, "wrong")
