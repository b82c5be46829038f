"""Both clients of the package, with calls that block."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lookaside import AsyncClient, Client

KINDS = ["Client", "AsyncClient"]


class BlockingAsyncClient:
    """An `AsyncClient` whose calls block, and whose loaders are functions."""

    def __init__(self, client: AsyncClient, event_loop: asyncio.AbstractEventLoop) -> None:
        self.client, self.event_loop = client, event_loop

    def pool(self, prefix: str) -> "BlockingAsyncClient":
        """The same for a pool."""
        return BlockingAsyncClient(self.client.pool(prefix), self.event_loop)

    def get_or_load(self, key: str, loader: Callable[[], Any], **options: Any) -> Any:
        """The loader runs on the event loop's thread."""

        async def load() -> Any:
            return loader()

        return self.event_loop.run_until_complete(self.client.get_or_load(key, load, **options))

    def get_or_load_many(self, keys: list, loader: Callable[[list], Any], **options: Any) -> dict:
        """As `get_or_load`."""

        async def load(missing: list) -> Any:
            return loader(missing)

        return self.event_loop.run_until_complete(self.client.get_or_load_many(keys, load, **options))

    def __getattr__(self, name: str):
        call = getattr(self.client, name)
        if not inspect.iscoroutinefunction(call):
            return call
        return lambda *args, **kwargs: self.event_loop.run_until_complete(call(*args, **kwargs))


@contextmanager
def open_client(kind: str, *arguments: Any, **options: Any) -> Iterator[Any]:
    """A client of one of the kinds; it is closed at the end."""
    if kind == "Client":
        with Client(*arguments, **options) as cache:
            yield cache
        return
    event_loop = asyncio.new_event_loop()
    try:
        cache = BlockingAsyncClient(AsyncClient(*arguments, **options), event_loop)
        yield cache
        cache.close()
    finally:
        event_loop.close()
