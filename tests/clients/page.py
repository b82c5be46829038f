"""The pages of docs/clients: the files that their fenced blocks hold, and the settings that they name.

A fenced block whose language is followed by a file name (```go cache.go) is that file. The tests write a page's files
into one folder, with the lock file of tests/clients/pages, and run what they are: the programs exist nowhere else.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from processes import ROOT
from scripts import BUILT, HERE

FOLDER = ROOT / "docs" / "clients"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blocks of these languages are read by tests, and not written to files.
UNNAMED = {"sh", "sql"}


@dataclass(frozen=True)
class Block:
    """One fenced block. `name` is `None` if the block names no file."""

    language: str
    name: str | None
    text: str


class Page:
    """A page of docs/clients, `go` for example."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = FOLDER / f"{name}.md"
        self.text = self.path.read_text()
        self.blocks = [Block(found[1], found[2], found[3]) for found in BLOCK.finditer(self.text)]

    def files(self) -> dict[str, str]:
        """The contents of the page's files by name."""
        return {block.name: block.text for block in self.blocks if block.name}

    def commands(self) -> str:
        """All shell commands of the page."""
        return "".join(block.text for block in self.blocks if block.language == "sh")

    def lease_options(self) -> list[str]:
        """The options with which the page starts the router."""
        line = re.search(r"^lookaside-router .*$", self.commands(), re.MULTILINE)
        assert line, f"{self.path} starts no lookaside-router"
        return re.findall(r"--lease\S*(?: [^-\s]\S*)?", line[0])

    def versions(self) -> dict[str, str]:
        """What the page was tested with: the rows of its table `tested with`."""
        table = re.search(r"^\| tested with \| version \|\n\|[-|]+\|\n((?:\|.*\n)+)", self.text, re.MULTILINE)
        assert table, f"{self.path} has no table of versions"
        rows = re.findall(r"^\| `?([^|`]+?)`? \| (\S+) \|$", table[1], re.MULTILINE)
        assert len(rows) == table[1].count("\n"), f"{self.path}: a row of the table of versions is malformed"
        return dict(rows)

    def write_files(self) -> Path:
        """Writes the page's files, and the lock files that belong to it, into a folder of their own."""
        folder = BUILT / "pages" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        if (locked := HERE / "pages" / self.name).is_dir():
            shutil.copytree(locked, folder, dirs_exist_ok=True)
        for name, text in self.files().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # An unchanged file is not built again.
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        return folder


def pages() -> list[str]:
    """The names of all pages that show programs. Those for Python are run by tests/python."""
    return sorted(path.stem for path in FOLDER.glob("*.md") if not path.stem.startswith("python"))
