"""The times that tests measure from the end of a fault until it has no effect any more, for
experiments/region/recovery.py, which writes them to a page."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "LOOKASIDE_RECOVERIES"


@dataclass(frozen=True)
class Recovery:
    """One recovery of a region of `invalidator_region.py`."""

    # The test's name without `test_`, its setting, the kind of database, and how large the fault was; `None` if it has
    # no size.
    test: str
    setting: str
    database: str
    size: int | None
    # Values in the caches that were older than the database at the end of the fault; `None` if it ended by itself, and
    # they were not counted.
    old_values: int | None
    # From the end of the fault until no process had an older value than the database.
    seconds: float
    # From the last commit until then; `None` if nothing was committed after the end of the fault.
    after_commits_s: float | None
    # What was compared: these rows in each of these processes.
    rows: int
    processes: int
    # Values that readers filled until the end of the fault, and the most memory that the invalidator had.
    fills: int
    memory_bytes: int


class RecoveryLog:
    """A file to which recoveries are appended, a JSON object in a line."""

    def __init__(self, path: Path | None) -> None:
        """Nothing is written if `path` is `None`."""
        self.path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "RecoveryLog":
        """The file that the environment names, if it does."""
        name = environment.get(VARIABLE)
        return cls(Path(name) if name else None)

    def add(self, recovery: Recovery) -> None:
        """Appends a recovery."""
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(recovery)) + "\n")

    def read(self) -> list[Recovery]:
        """The recoveries so far."""
        if self.path is None or not self.path.exists():
            return []
        return [Recovery(**json.loads(line)) for line in self.path.read_text().splitlines()]
