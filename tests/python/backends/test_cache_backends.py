"""What the cache backends share."""

import logging

from lookaside import CacheUnavailableError
from lookaside.cache_backends import MissLog

log = logging.getLogger("lookaside.test")


def test_gets_that_fail_are_logged_once_in_an_interval(caplog):
    """While the cache is away, each get of each request fails."""
    away, misses = CacheUnavailableError("away"), MissLog(log, 3_600)
    for number in range(5):
        misses.record(f"k{number}", away)
    misses._next_at = 0
    misses.record("k5", away, 9)
    assert caplog.messages == [
        "a get of k0 and 0 others failed, and is a miss: away (0 failed gets before it were not logged)",
        "a get of k5 and 9 others failed, and is a miss: away (4 failed gets before it were not logged)",
    ]
