"""Fails when a word stands in the repository that the glossary of CONTRIBUTING.md has replaced.

`NAMES` may not be part of an identifier, a file name, a flag, a statistic or a metric (`queue_room`, `--forget`).
`PROSE` may not occur in comments, documents, and texts of the program (log and error messages, help).
`ALLOWED` names the exceptions, each with its reason.

    check_words.py                 every file of the repository
    check_words.py crates/store    the files below a folder
    check_words.py --count         how often each word occurs
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Word of an identifier -> the term to use instead.
NAMES = {
    "anew": "again, re-",
    "attend": "handle, update",
    "attention": "event log, event sink",
    "backyard": "background tasks",
    "believe": "trust, verify",
    "believed": "trusted",
    "believes": "trusts",
    "converse": "exchange, serve",
    "conversation": "exchange, session, replay connection",
    "conversations": "exchanges, scripts",
    "crew": "workers",
    "debt": "backlog",
    "debts": "backlog",
    "desk": "worker handle",
    "dialect": "protocol",
    "dialects": "protocols",
    "door": "listener",
    "doors": "listeners",
    "estate": "handover",
    "farewell": "graceful close",
    "felled": "TKO",
    "fleet": "shared state",
    "forget": "flush (server), remove (region), reset (counters)",
    "forgets": "flush, remove, reset",
    "forgotten": "flushed, removed, reset",
    "gatehouse": "upgrade listener",
    "greeting": "handshake, hello",
    "hear": "receive",
    "heard": "received",
    "heir": "successor",
    "herald": "state logger",
    "inherit_all": "receive",
    "intake": "parse",
    "knock": "connect",
    "lineage": "inheritance chain",
    "ledger": "writer",
    "luggage": "connection state",
    "mistake": "usage error",
    "mistakes": "usage errors",
    "narration": "command trace",
    "nobody": "name the thing",
    "noted": "recorded",
    "observation": "telemetry",
    "owe": "backlog, pending",
    "owed": "backlog, pending",
    "owes": "backlog, pending",
    "owing": "pending",
    "paid": "acknowledged",
    "pay": "acknowledge",
    "remedies": "fault policy",
    "remedy": "action",
    "room": "buffers, space, permit",
    "rooms": "buffer pool",
    "roster": "connection table",
    "said": "reply, reported",
    "say": "reply, print, log",
    "says": "reply, print, log",
    "seat": "permit",
    "settle": "complete, apply, wait until ready",
    "settled": "completed, ready, done",
    "settles": "completes",
    "somebody": "name the thing",
    "standing": "TKO tracker",
    "standings": "TKO trackers",
    "surroundings": "environment, context",
    "tell": "log, record, report",
    "tells": "logs, records, reports",
    "told": "logged, recorded, reported",
    "trouble": "error, unhealthy",
    "voice": "log state",
    "whom": "name the thing",
    "whoever": "name the thing",
}

# Regular expression over prose -> what to write instead.
PROSE = {
    r"\bwhom\b": "name the thing",
    r"\bwhoever\b": "name the thing: 'a client that ...'",
    r"\bnobody\b": "no client, no process, nothing",
    r"\bsomebody\b": "a client, a process",
    r"\beverybody\b": "all clients",
    r"\bso (?:many|much)\b(?! (?:as|that|the)\b)": "give the number and the unit",
    r"\bso long\b(?! as\b)": "give the duration",
    r"\banew\b": "again, re-",
    r"\b(?:is|are|was|were|be|been|being) told\b": "is returned, is logged, is signalled",
    r"\btold so\b": "is returned, is logged",
    r"\bThere if\b": "`None` if ..., `Some` if ...",
    r"\bNothing if\b": "`None` if ...",
    r"\bow(?:e|es|ed|ing)\b": "has a backlog, pending",
    r"\bdebts?\b": "backlog",
    r"\b(?:doors?|gatehouse|luggage|heirs?|crew|ledgers?|farewell|backyard|roster)\b": "see the glossary",
    r"\bsurroundings\b": "environment, context",
    r"\bstandings?\b": "TKO state",
    r"\bfelled\b": "TKO",
    r"\btaken out\b(?! of\b)": "TKO",
    r"\bleft to itself\b": "unmanaged",
    r"\bdialects?\b": "protocol",
    r"(?:^|[.;:!?] )(?:Who|Whom|Whoever)\b": "begin with the subject: 'A client that ...'",
    r"\bgoes on where\b": "resumes",
    r"\bfor good\b": "permanently",
    r"\bhears? of\b": "receives, learns",
}

UNIX_USER_NOBODY = (
    "tests/clients/endpoints.py",
    "tests/differential/test_binary.py",
    "tests/differential/test_differential.py",
    "tests/test_privileges.py",
    "tests/test_upgrade_failures.py",
    "tests/test_upgrade_listeners.py",
)

SQLALCHEMY = ("python/lookaside/sqlalchemy/*", "tests/python/orm/*sqlalchemy*")

# (path, word or expression, reason)
ALLOWED: list[tuple[str, str, str]] = [
    ("tests/check_words.py", "*", "the lists themselves"),
    ("CONTRIBUTING.md", "*", "the glossary names the words that it replaces"),
    ("docs/measurements/pictures/*", "*", "generated"),
    ("tests/test_mariadb.py", "nobody", "the value of a row"),
    ("docs/clients/java.md", "dialect", "Hibernate's PostgreSQLDialect"),
    ("crates/router/tests/session*.rs", "forget", "tokio's Semaphore::forget_permits"),
    ("crates/router/tests/support/mod.rs", "forget", "tokio's SemaphorePermit::forget"),
    *((path, "nobody", "the Unix user") for path in UNIX_USER_NOBODY),
    *((path, "dialect", "SQLAlchemy's word for a kind of database") for path in SQLALCHEMY),
]

# Endings and names of the files that are read.
CHECKED = (".rs", ".py", ".md", ".toml", "Makefile", "install", "run")

RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<string>b?c?r(?P<hashes>\#*)".*?"(?P=hashes) | b?c?"(?:\\.|[^"\\])*")
      | (?P<char>b?'(?:\\[^']+|[^'\\\n])')
      | (?P<lifetime>'[A-Za-z_]\w*)
      | (?P<name>[A-Za-z_]\w*)""",
    re.DOTALL | re.VERBOSE,
)
PYTHON = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>[rbfRBF]*(?:\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
      | (?P<name>[A-Za-z_]\w*)""",
    re.DOTALL | re.VERBOSE,
)
CODE_IN_PROSE = re.compile(r"`([^`\n]+)`")
FLAG = re.compile(r"--[a-z][a-z-]+")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def words_of(name: str) -> list[str]:
    """`PoolTkoLimit` and `pool_tko_limit` -> pool, tko, limit."""
    spaced = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3 \2\4", name)
    return [word.lower() for word in re.split(r"[\W_ ]+", spaced) if word]


def names_in(name: str) -> Iterator[tuple[str, str]]:
    """The forbidden words of an identifier."""
    for word in words_of(name):
        if word in NAMES:
            yield word, NAMES[word]


def prose_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Offset, words and replacement of every forbidden expression of a text, and of identifiers quoted in it."""
    for expression, instead in PROSE.items():
        is_case_sensitive = any(letter.isupper() for letter in expression)
        for found in re.finditer(expression, text, re.MULTILINE | (0 if is_case_sensitive else re.IGNORECASE)):
            yield found.start(), found.group(0).strip(" .;:"), instead
    for quoted in CODE_IN_PROSE.finditer(text):
        for name in IDENTIFIER.finditer(quoted.group(1)):
            for word, instead in names_in(name.group(0)):
                yield quoted.start(1) + name.start(), word, instead
    for flag in FLAG.finditer(text):
        for word, instead in names_in(flag.group(0)):
            yield flag.start(), word, instead


def findings_in(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, words and replacement of each finding in a file."""
    text = path.read_text()

    def line_at(offset: int) -> int:
        return text.count("\n", 0, offset) + 1

    if path.suffix not in (".rs", ".py"):
        for offset, words, instead in prose_in(text):
            yield line_at(offset), words, instead
        return
    for token in (RUST if path.suffix == ".rs" else PYTHON).finditer(text):
        part = token.group(0)
        if token.group("name"):
            for word, instead in names_in(part):
                if (path.suffix, part, text[max(0, token.start() - 5) : token.start()]) != (".rs", "forget", "mem::"):
                    yield line_at(token.start()), f"{part}: {word}", instead
        elif token.group("comment") or token.group("string"):
            # Without its marker, so that a sentence that begins behind the marker is seen to begin there.
            marker = re.match(r"//[/!]? ?|# ?" if token.group("comment") else r"[rbcfRBF]*[\"'#]+", part)
            begin = marker.end() if marker else 0
            for offset, words, instead in prose_in(part[begin:]):
                yield line_at(token.start() + begin + offset), words, instead


def is_allowed(path: str, words: str) -> bool:
    """Whether a finding is an exception."""
    return any(Path(path).match(pattern) and (word == "*" or word in words) for pattern, word, _ in ALLOWED)


def main() -> int:
    """Prints the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or folders; all of the repository by default")
    parser.add_argument("--count", action="store_true", help="how often each word occurs")
    arguments = parser.parse_args()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *arguments.paths],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    counts: Counter[str] = Counter()
    total = 0
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if not path.is_file() or path.is_symlink() or (path.suffix not in CHECKED and path.name not in CHECKED):
            continue
        findings = [(0, f"file name: {word}", instead) for word, instead in names_in(name)]
        findings += findings_in(path)
        for line, words, instead in sorted(findings):
            if is_allowed(name, words):
                continue
            total += 1
            counts[words] += 1
            if not arguments.count:
                print(f"{name}:{line}: {words!r}: use {instead}", file=sys.stderr)
    if arguments.count:
        for words, count in counts.most_common():
            print(f"{count:6} {words}")
    if total:
        print(f"{total} words that the glossary has replaced (CONTRIBUTING.md)", file=sys.stderr)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
