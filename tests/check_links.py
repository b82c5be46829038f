"""Fails when a document of the repository points at something that does not exist.

Two kinds of pointers are checked in every Markdown file that git knows:

* relative links and images, `[text](path#anchor)`: the file exists, and so does the heading behind `#`;
* paths of the repository in backticks, such as `crates/store/src/lib.rs` or `tests/test_*.py`: a file or folder exists.

    check_links.py                      all Markdown files
    check_links.py docs/operating       the files below a folder

CHANGELOG.md may have no line of over 120 characters.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The folders of the repository whose names begin a path in backticks.
FOLDERS = ("crates/", "tests/", "docs/", "experiments/", "examples/")

LINE_MAX = 120

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`+[^`\n]+`+")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REPOSITORY_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})[^`\s]*)`")
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


def blank(pattern: re.Pattern, text: str) -> str:
    """The text with every match replaced by spaces, so that offsets and lines stay."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group(0)), text)


def anchor_of(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors_in(path: Path) -> frozenset[str]:
    """The anchors of a Markdown file; a heading that occurs again gets `-1`, `-2`, ..."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in HEADING.findall(blank(FENCE, path.read_text())):
        anchor = anchor_of(heading)
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(anchors)


def broken_link(page: Path, target: str) -> str | None:
    """Why a link of a page leads nowhere; `None` if it leads somewhere or out of the repository."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists():
        return f"{target}: there is no such file"
    if not path.is_relative_to(ROOT):
        return f"{target}: outside the repository"
    if anchor and path.suffix == ".md" and anchor not in anchors_in(path):
        return f"{target}: no heading of {path.relative_to(ROOT)} has this anchor"
    return None


def broken_path(name: str) -> str | None:
    """Why a path in backticks names nothing; `None` if it does. `*` stands for any part of a name, `{a,b}` for each."""
    name = name.rstrip(".,:;").partition(":")[0]
    braces = re.search(r"\{([^{}]*)\}", name)
    if braces:
        names = [name[: braces.start()] + part + name[braces.end() :] for part in braces.group(1).split(",")]
        return next(filter(None, map(broken_path, names)), None)
    is_there = any(ROOT.glob(name.rstrip("/"))) if "*" in name else (ROOT / name).exists()
    return None if is_there else f"`{name}`: there is no such file or folder"


def findings_in(page: Path) -> Iterator[tuple[int, str]]:
    """Line and reason of every pointer of a page that leads nowhere."""
    text = blank(FENCE, page.read_text())
    for number, line in enumerate(text.split("\n"), 1):
        if page.name == "CHANGELOG.md" and len(line) > LINE_MAX:
            yield number, f"{len(line)} characters; at most {LINE_MAX}"
    for found in LINK.finditer(blank(CODE, text)):
        if reason := broken_link(page, found.group(1)):
            yield text.count("\n", 0, found.start()) + 1, reason
    for found in REPOSITORY_PATH.finditer(text):
        if reason := broken_path(found.group(1)):
            yield text.count("\n", 0, found.start()) + 1, reason


def main() -> int:
    """Prints what was found."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *sys.argv[1:]],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    total = 0
    for name in listed.stdout.split("\n"):
        page = ROOT / name
        if page.suffix != ".md" or not page.is_file():
            continue
        for line, reason in sorted(findings_in(page)):
            print(f"{name}:{line}: {reason}", file=sys.stderr)
            total += 1
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
