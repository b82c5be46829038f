"""The same streams to memcached 1.6.45 and with `lookaside-server`: any difference in bytes fails.

memcached is started from LOOKASIDE_MEMCACHED, the path of its 1.6.45 binary; without it these tests are skipped. A
failure prints the seed and the shortest stream that still shows the difference. `LOOKASIDE_SEEDS` sets the number of
streams (default 400), `LOOKASIDE_SEED` the first. What may differ is in `exchange.Normaliser` and
`deviations.py`, and nowhere else.
"""

import itertools
import os
import random

import deviations
import pytest
from exchange import Script, exchange, normalised
from processes import Process, Server, answers, free_port
from streams import random_commands

SEEDS_COUNT = int(os.environ.get("LOOKASIDE_SEEDS", "400"))
SEED_FIRST = int(os.environ.get("LOOKASIDE_SEED", "1"))
SEEDS_PER_TEST = 50

MEMCACHED = os.environ.get("LOOKASIDE_MEMCACHED")
UNIQUES_PASSED = 100
SERVER_OPTIONS = ("-m", "64", "-t", "1")


class Pair:
    """memcached and ours; each stream has keys of its own."""

    def __init__(self, log_dir) -> None:
        user = ("-u", "nobody") if os.geteuid() == 0 else ()
        self.memcached_port = free_port()
        command = [MEMCACHED, "-l", "127.0.0.1", "-p", self.memcached_port, *SERVER_OPTIONS, *user]
        self.memcached = Process("memcached", command, log_dir)
        self.memcached.wait_ready(lambda: answers(self.memcached_port))
        self.ours = Server("server", log_dir)
        # From here on, CAS uniques that streams make up are lower than those of either server.
        for port in (self.memcached_port, self.ours.port):
            exchange(port, b"set warm 0 0 1\r\nx\r\n" * UNIQUES_PASSED, random.Random(0))
        self.prefixes = (b"p%05d" % number for number in itertools.count())

    def stop(self) -> None:
        """Ends both."""
        self.memcached.stop()
        self.ours.stop()

    def difference(self, commands: list[bytes], seed: int) -> str | None:
        """How the two answer differently, if they do, and do again.

        A difference that is gone the second time is a matter of when bytes arrived: perhaps memcached drops its last
        replies when a connection's end comes while it is reading.
        """
        return self.difference_once(commands, seed) and self.difference_once(commands, seed)

    def difference_once(self, commands: list[bytes], seed: int) -> str | None:
        """How the two answer differently this time, if they do."""
        if not commands or any(deviations.is_deviation(command) for command in commands):
            return None
        talk = Script(commands, next(self.prefixes), seed)
        theirs, ours = (talk.with_server(port) for port in (self.memcached_port, self.ours.port))
        if normalised(theirs) == normalised(ours):
            return None
        return f"memcached: {theirs}\nours:      {ours}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Both servers, once for all streams."""
    if not MEMCACHED:
        pytest.skip("NOT COMPARED WITH memcached: set LOOKASIDE_MEMCACHED to the path of memcached 1.6.45")
    pair = Pair(tmp_path_factory.mktemp("differential"))
    yield pair
    pair.stop()


@pytest.mark.parametrize("first", range(SEED_FIRST, SEED_FIRST + SEEDS_COUNT, SEEDS_PER_TEST))
def test_replies_are_identical(pair, first):
    for seed in range(first, min(first + SEEDS_PER_TEST, SEED_FIRST + SEEDS_COUNT)):
        commands = [command for command in random_commands(seed) if not deviations.is_deviation(command)]
        if pair.difference(commands, seed):
            commands = shortest(pair, commands, seed)
            sent = b"".join(commands)
            pytest.fail(f"seed {seed}, {len(commands)} commands: {sent}\n{pair.difference(commands, seed)}")


def shortest(pair: Pair, commands: list[bytes], seed: int) -> list[bytes]:
    """A shorter stream with a difference: commands are left out for as long as one remains."""
    size = len(commands) // 2
    while size:
        start = 0
        while start < len(commands):
            fewer = commands[:start] + commands[start + size :]
            if pair.difference(fewer, seed):
                commands = fewer
            else:
                start += size
        size //= 2
    return commands
