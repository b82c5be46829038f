"""An application that looks aside: while a fault lasts, it fills what deletes have removed, so that a delete that is
lost, or comes before its row's change can be seen, leaves an old value behind.

Without it only the first delete of a row would matter: later ones find nothing.
"""

import random
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from leases import HOT_MISS, ErrorReply, LeaseClient

PAGE_ROWS = 16
# Between two pages: while rows change, and while none does, as when the database is down.
PAUSE_S = 0.008
IDLE_PAUSE_S = 0.05
REPLY_S = 5.0


class Reader(threading.Thread):
    """Reads rows through one router, a page at a time, and fills misses under their leases, through errors, until it is
    stopped."""

    def __init__(self, region, port: int) -> None:
        """`region` has the database, which may become another one, and the writer, whose newest rows are half of a
        page: around a commit, the order of its delete, its visibility and a fill matters."""
        super().__init__(daemon=True)
        self.region, self.port = region, port
        self.random = random.Random(port)
        self.fills = 0
        self.stop_requested = threading.Event()
        self.start()

    def run(self) -> None:
        # Besides errors of connections, of both kinds of database: an answer that breaks off, or does not come in time.
        failures = (*self.region.database.errors, OSError, AssertionError, IndexError, ValueError)
        while not self.stop_requested.wait(IDLE_PAUSE_S):
            with (
                suppress(*failures),
                closing(LeaseClient(self.port, timeout=REPLY_S)) as client,
                self.region.database.connect() as connection,
                connection.cursor() as cursor,
            ):
                commits = 0
                while not self.stop_requested.wait(PAUSE_S if commits != self.region.writer.commits else IDLE_PAUSE_S):
                    commits = self.region.writer.commits
                    self.read_page(client, cursor.execute, cursor.fetchall)

    def page(self) -> list[int]:
        """Rows that were just changed, or are being changed, and others."""
        recent = self.region.writer.recent_rows(PAGE_ROWS // 2)
        return list({*recent, *self.random.choices(range(self.region.rows), k=PAGE_ROWS - len(recent))})

    def read_page(self, client: LeaseClient, execute: Callable, fetch: Callable) -> None:
        """Reads rows; those that miss are loaded, each time in a snapshot of its own, as the connection commits every
        statement, and filled."""
        rows, tokens = self.page(), {}
        client.send(*(b"lease-get row:%d\r\n" % row for row in rows))
        for row in rows:
            # A server that is down; others reply.
            with suppress(ErrorReply):
                _, tokens[row], _ = client.lease_reply()
        missing = [row for row, token in tokens.items() if token > HOT_MISS]
        if not missing:
            return
        execute(f"SELECT id, version FROM versions WHERE id IN ({','.join(map(str, missing))})")
        versions = {row: b"%d" % version for row, version in fetch()}
        client.send(
            *(
                b"lease-set row:%d %d 0 0 %d\r\n%s\r\n" % (row, tokens[row], len(value), value)
                for row, value in versions.items()
            )
        )
        self.fills += sum(client.reply() == b"STORED" for _ in versions)

    def stop(self) -> None:
        """Returns when nothing more is filled."""
        self.stop_requested.set()
        self.join(70)
        assert not self.is_alive()
