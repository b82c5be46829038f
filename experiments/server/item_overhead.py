"""Memory of an item beside its key and its value: ours and memcached 1.6.45.

What: the resident set of a server that holds ITEMS items, less that of an empty server of its kind with `-m 2`, over
the number of items, less the bytes of key and value. So what a server touches at its start for a large memory counts.
The figure is the operating system's, and not the server's own count: pages that are touched and not used are in it.

How: one server after the other, filled by the load generator. A server that does not hold all items, or has evicted
some, is no result. The resident set is read once it stays the same: memcached grows its index in the background.

    python3 -m experiments.server.item_overhead            half a minute
"""

import sys
import time

from experiments import command_line
from experiments.load_generator import load
from experiments.programs import (
    CacheServer,
    Unusable,
    cache_server,
    lookaside,
    memcached,
    resident_bytes,
    server_statistics,
)

ITEMS = 4_000_000
KEY_BYTES, VALUE_BYTES = 24, 32
MEMORY_MIB, MEMORY_MIB_MIN = 1024, 2
AIM_BYTES = 28

# The resident set is read at this interval, until a number of readings are the same.
READING_S, READINGS, STEADY_S = 0.2, 5, 30.0


def steady_resident_bytes(server: CacheServer) -> int:
    """The resident set of the server, once it stays the same."""
    readings: list[int] = []
    deadline = time.monotonic() + STEADY_S
    while len(readings) < READINGS or len(set(readings[-READINGS:])) > 1:
        if time.monotonic() > deadline:
            raise Unusable(f"the memory of {server.name} does not settle: {readings[-READINGS:]} bytes")
        time.sleep(READING_S)
        readings.append(resident_bytes(server.process.pid))
    return readings[-1]


def full_bytes(server: CacheServer) -> int:
    """The resident set of the server after it was filled with all items."""
    load(server, "--fill", "--keys", ITEMS, "--key-bytes", KEY_BYTES, "--value-bytes", VALUE_BYTES)
    counts = server_statistics(server.port)
    if int(counts["curr_items"]) != ITEMS or int(counts["evictions"]):
        raise Unusable(f"{server.name} holds {counts['curr_items']} of {ITEMS} items, evicted: {counts['evictions']}")
    return steady_resident_bytes(server)


def run() -> dict:
    """Measures both servers."""
    found = {}
    for name, program in (("memcached", memcached()), ("lookaside", lookaside("lookaside-server"))):
        with cache_server(name, program, None, MEMORY_MIB_MIN) as server:
            empty = steady_resident_bytes(server)
        with cache_server(name, program, None, MEMORY_MIB) as server:
            found[name] = (full_bytes(server) - empty) / ITEMS - KEY_BYTES - VALUE_BYTES
        print(f"{ITEMS} items: {name} takes {found[name]:.1f} bytes beside key and value", file=sys.stderr, flush=True)
    return {
        "items": ITEMS,
        "key_bytes": KEY_BYTES,
        "value_bytes": VALUE_BYTES,
        "memory_mib": MEMORY_MIB,
        "aim_bytes": AIM_BYTES,
        "overhead_bytes": found,
    }


def main() -> int:
    """Prints the results as JSON."""
    command_line.parser(__doc__).parse_args()
    return command_line.run_measurement("item_overhead", lambda: command_line.print_results(run()))


if __name__ == "__main__":
    sys.exit(main())
