"""What the command lines of the measurements share: the parser, the figures as JSON, and the exit code."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from experiments.programs import Unusable


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with the documentation of the measurement's module."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def load_parser(doc: str | None, processes: str) -> argparse.ArgumentParser:
    """The parser of measurements of processor time, which run in rounds; `processes` names what they start."""
    options = parser(doc)
    options.add_argument("--full", action="store_true", help="11 rounds of 4 s instead of fewer of 2 s")
    options.add_argument("--nice", type=int, default=0, metavar="N", help=f"niceness of {processes} and load")
    options.add_argument(
        "--realtime", action="store_true", help=f"{processes} and load before all other processes (as root)"
    )
    options.add_argument("--only", default="", metavar="TEXT", help="scenarios whose name contains TEXT")
    return options


def mode(options: argparse.Namespace) -> str:
    """How it was measured, by the options of such a parser."""
    priority = (f", niceness {options.nice}" if options.nice else "") + (", real-time" if options.realtime else "")
    return ("full" if options.full else "quick") + priority


def add_json_path(options: argparse.ArgumentParser) -> None:
    """Adds `--json FILE`."""
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")


def write_results(results: object, json_path: Path | None) -> None:
    """Writes the figures to the file of `--json`, if there is one."""
    if json_path:
        json_path.write_text(json.dumps(results, indent=2) + "\n")


def print_results(results: object, json_path: Path | None = None) -> None:
    """Prints the figures as JSON, and writes them to the file of `--json`, if there is one."""
    write_results(results, json_path)
    print(json.dumps(results, indent=2))


def run_measurement(name: str, measure: Callable[[], None]) -> int:
    """The exit code of a measurement: 1 if something that it needs is missing on this machine."""
    try:
        measure()
    except Unusable as unusable:
        print(f"{name}: {unusable}", file=sys.stderr)
        return 1
    return 0
