"""The pages of the reference, as Markdown."""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Table:
    """One table of a page: its heading, its columns, and its rows, of which the first cell is a name."""

    heading: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def names(self) -> list[str]:
        """The first cell of every row."""
        return [row[0] for row in self.rows]


@dataclass
class Page:
    """A page of the reference."""

    name: str
    title: str
    head: str
    tables: list[Table]

    def markdown(self) -> str:
        """The page as it is committed."""
        head = textwrap.fill(self.head, 120, break_long_words=False, break_on_hyphens=False)
        parts = [f"# {self.title}", head, "Written by `make reference`; do not edit."]
        for table in self.tables:
            lines = [f"| {' | '.join(table.columns)} |", f"|{'---|' * len(table.columns)}"]
            lines += ["| " + " | ".join([f"`{escaped(row[0])}`", *map(prose, row[1:])]) + " |" for row in table.rows]
            parts += [f"## {table.heading}", "\n".join(lines)]
        return "\n\n".join(parts) + "\n"

    def names(self) -> dict[str, list[str]]:
        """The names of each table, by heading."""
        return {table.heading: table.names() for table in self.tables}


def escaped(text: str) -> str:
    """Text for a cell."""
    return text.replace("|", "\\|")


def prose(text: str) -> str:
    """Text for a cell, in which nothing but backticks is markup."""
    outside = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(outside), 2):
        outside[at] = outside[at].replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
    return escaped("".join(outside))


def names_on(page: Path) -> dict[str, list[str]]:
    """The names of each table of a committed page, by heading."""
    names: dict[str, list[str]] = {}
    heading = ""
    for line in page.read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:]
            names[heading] = []
        elif cell := re.match(r"\| `((?:[^`|\\]|\\.)*)`", line):
            names[heading].append(cell.group(1).replace("\\|", "|"))
    return names
