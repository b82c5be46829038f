"""The facts about the machine that every report states."""

import os
import platform
import subprocess
from pathlib import Path

from experiments.programs import ROOT


def facts() -> dict[str, str]:
    """Processor, cores, kernel, the load when measuring began, and the commit."""
    return {
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "kernel": f"{platform.system()} {platform.release()}",
        "load average at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "commit": commit(),
    }


def processor() -> str:
    """The processor's model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def commit() -> str:
    """The commit of this checkout, and whether programs could differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "crates", "Cargo.lock")
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
