"""PHP's extension memcached, over libmemcached: both protocols, and SASL."""

import pytest
from endpoints import PASSWORD, USER
from scripts import HEAVY, WHY_NOT, exchange

pytestmark = pytest.mark.skipif(not HEAVY, reason=WHY_NOT)


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_php(open_server, protocol):
    exchange("php", "php", "conversation.php", f"127.0.0.1:{open_server.port}", protocol)


def test_php_with_a_password(guarded_server):
    address = f"127.0.0.1:{guarded_server.port}"
    exchange("php", "php", "conversation.php", address, "binary", USER, PASSWORD)
    with pytest.raises(AssertionError, match="ended with 1"):
        exchange("php", "php", "conversation.php", address, "binary", USER, "wrong")
