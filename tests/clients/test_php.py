"""PHP's extension memcached, over libmemcached: both protocols, and SASL."""

import pytest
from conversations import HEAVY, WHY_NOT, converse
from endpoints import PASSWORD, USER

# libmemcached asks for `version` before `stats` and takes a number that begins with 0 for a broken reply, so that PHP's
# getStats and getVersion fail with ours ("VERSION 0.1.0") and with nothing else.
OLD_VERSION = pytest.mark.xfail(strict=True, reason="libmemcached takes VERSION 0.1.0 for a broken reply")

pytestmark = pytest.mark.skipif(not HEAVY, reason=WHY_NOT)


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_php(request, open_server, protocol):
    if open_server.kind == "lookaside":
        request.applymarker(OLD_VERSION)
    converse("php", "php", "conversation.php", f"127.0.0.1:{open_server.port}", protocol)


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_php_but_for_statistics(open_server, protocol):
    converse("php", "php", "conversation.php", f"127.0.0.1:{open_server.port}", protocol, "", "", "no statistics")


def test_php_with_a_password(guarded_server):
    address = f"127.0.0.1:{guarded_server.port}"
    converse("php", "php", "conversation.php", address, "binary", USER, PASSWORD, "no statistics")
    with pytest.raises(AssertionError, match="ended with 1"):
        converse("php", "php", "conversation.php", address, "binary", USER, "wrong", "no statistics")
