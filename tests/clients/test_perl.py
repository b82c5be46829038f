"""Perl's clients: Cache::Memcached, and Cache::Memcached::Fast, which is written in C and compares versions."""

import pytest
from scripts import HEAVY, WHY_NOT, exchange

pytestmark = pytest.mark.skipif(not HEAVY, reason=WHY_NOT)


@pytest.mark.parametrize("module", ["Cache::Memcached", "Cache::Memcached::Fast"])
def test_perl(open_server, module):
    exchange("perl", "perl", "conversation.pl", module, f"127.0.0.1:{open_server.port}")
