"""The page of flags of the reference, from what the built programs print with `--help`."""

import re
import subprocess
from collections.abc import Iterator

from processes import PROGRAMS
from reference_pages import Page, Table

# Programs, and the subcommands of `lookaside`, that have a table of flags.
COMMANDS = (
    ("lookaside-server",),
    ("lookaside-router",),
    ("lookaside-invalidator",),
    ("lookaside-monitor",),
    ("lookaside", "up"),
    ("lookaside", "replay"),
    ("lookaside", "advise"),
    ("lookaside", "simulate"),
    ("lookaside", "stats"),
    ("lookaside", "monitor"),
    ("lookaside", "audit"),
    ("lookaside", "check-config"),
    ("lookaside", "route"),
    ("lookaside", "invalidator", "check-rules"),
    ("lookaside", "invalidator", "try"),
    ("lookaside", "invalidator", "setup"),
    ("lookaside", "invalidator", "replay"),
    ("lookaside-load",),
)


def flags_in(text: str) -> Iterator[tuple[str, str]]:
    """Each positional argument and each flag of a `--help` text and its meaning."""
    flag, words = "", []
    for line in text.partition("\nExamples:")[0].splitlines():
        if started := re.match(r" {2,6}([-<[]\S.*?)(?: {2,}(\S.*))?$", line):
            if flag:
                yield flag, " ".join(words)
            flag, words = started.group(1), [started.group(2)] if started.group(2) else []
        elif flag and line.startswith(" " * 8):
            words.append(line.strip())
        elif flag and line.strip():
            yield flag, " ".join(words)
            flag, words = "", []
    if flag:
        yield flag, " ".join(words)


def without_line_breaks(meaning: str) -> str:
    """A meaning in one line; the possible values of a flag are joined by semicolons."""
    meaning = " ".join(meaning.split())
    text, found, values = meaning.partition(" Possible values: - ")
    if not found:
        return meaning
    values, default, rest = values.partition(" [default:")
    return f"{text}. Possible values: {values.replace(' - ', '; ')}{default}{rest}"


def flags() -> Page:
    """The page of flags."""
    tables = []
    for program, *subcommand in COMMANDS:
        command = [str(PROGRAMS / program), *subcommand, "--help"]
        text = subprocess.run(command, check=True, capture_output=True, text=True, env={"COLUMNS": "100"}).stdout
        rows = [(flag, without_line_breaks(meaning)) for flag, meaning in flags_in(text)]
        tables.append(Table(" ".join((program, *subcommand)), ("flag", "meaning"), rows))
    return Page("flags", "Flags", "The arguments and flags of every program, as `--help` prints them.", tables)
