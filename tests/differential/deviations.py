"""Where replies of `lookaside-server` differ from memcached 1.6.45: commands that are not compared.

The reasons in full are in docs/deviations/005-memcached.md.
"""

import re

# Chosen, and meant to stay: a pattern of the command's line, and why.
CHOSEN: tuple[tuple[bytes, str], ...] = (
    (rb"^[^\n]*[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]", "control characters are no part of a key"),
    (
        rb"^delete \S+ +(?!0\b|noreply)",
        "what follows a key to delete is a hold-off: no word but a number",
    ),
    (rb"^me .* b", "`me` with `b` decodes the key as protocol.txt says; memcached does so only before a third flag"),
    (rb"^m[ga] .* O\S{32}", "with an opaque token that is too long nothing is done; memcached acts and then refuses"),
    (rb"^m[gsda] @(?=.* b\b).* (?:[A-Z]x|M)", "of two errors in one command another one is reported"),
    (rb"^md .* x", "`md` with `x` gives the item a new CAS unique: a `cas` from before must fail"),
    (rb"^ms .* [^A-Za-z0-9 \r\n]", "the block of a refused `ms` is never read as commands"),
    (
        rb"^(?:set|add|replace|append|prepend|cas)(?: +\S+){3} +\d{5}|^ms +\S+ +\d{5}",
        "a value that is too large is refused before it has come; memcached says so behind it",
    ),
    (
        rb"^(?:get|gets|gat|gats) .*(?:@k{245}|\S{251})",
        "with a key that is too long memcached loses replies of earlier commands and adds an empty line",
    ),
    (rb"^watch", "memcached refuses `watch` behind other commands that came with it"),
)

PATTERNS = [re.compile(pattern) for pattern, _ in CHOSEN]


def is_deviation(command: bytes) -> bool:
    """Whether the answer to this command is not compared."""
    return any(pattern.search(command) for pattern in PATTERNS)
