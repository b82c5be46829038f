"""The shell commands and the SQL that a page of docs/operating prints, as a test runs them."""

import os
import re
import subprocess
from pathlib import Path

from processes import PROGRAMS, ROOT

BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class OperatingPage:
    """A page; `regions` for example."""

    def __init__(self, name: str) -> None:
        self.text = (ROOT / "docs" / "operating" / f"{name}.md").read_text()

    def commands(self, heading: str) -> list[str]:
        """The blocks of shell commands of a section, without those of its subsections."""
        return self.blocks(heading, "sh")

    def blocks(self, heading: str, language: str) -> list[str]:
        """The same for blocks of another language."""
        _, found, rest = self.text.partition(f"\n{heading}\n")
        assert found, f"the page has no heading {heading!r}"
        section = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
        found = [block for block in BLOCK.finditer(section) if block[2] == language]
        return [re.sub(rf"^{block[1]}", "", block[3], flags=re.MULTILINE) for block in found]


def start_commands(commands: str, settings: dict[str, str], folder: Path) -> subprocess.Popen:
    """Starts commands in a shell that ends at the first failure, with the settings as variables."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-eu", "-o", "pipefail", "-c", commands], cwd=folder, env={**os.environ, **settings, "PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def run_commands(commands: str, settings: dict[str, str], folder: Path, seconds: float = 120) -> str:
    """Runs commands to their end, which must be a success."""
    shell = start_commands(commands, settings, folder)
    try:
        output, _ = shell.communicate(timeout=seconds)
    finally:
        shell.kill()
    assert shell.returncode == 0, f"{commands}\n{output}"
    return output
