"""A Rust client with remote markers (`crates/client/examples/regional_client.rs`)."""

from collections.abc import Callable

from line_client import LineClient


class RegionalClient(LineClient):
    """One client behind the router of its cluster."""

    def __init__(self, router: int, *options: str) -> None:
        super().__init__("regional_client", *options, f"127.0.0.1:{router}")

    def write(self, *keys: str) -> list[str]:
        """Sets the markers of keys; the keys to name in the transaction."""
        word, *named = self.call(f"write {' '.join(keys)}").split(" ")
        assert word == "name", [word, *named]
        return named

    def finish(self) -> None:
        """Deletes the keys of the last write in the cluster."""
        assert self.call("finish") == "finished"

    def read(self, key: str, load: Callable[[str], str]) -> tuple[str, str]:
        """Where the value came from (`cache`, `master`, `replica`), and the value; `load` gets the name of the
        database."""
        return self.load("read", key, load)

    def read_past_cache(self, key: str, load: Callable[[str], str]) -> tuple[str, str]:
        """The same past the cache, from the database that the markers name."""
        return self.load("read-past-cache", key, load)

    def read_master(self, key: str, load: Callable[[str], str]) -> tuple[str, str]:
        """The same past the cache, from the master."""
        return self.load("read-master", key, load)

    def load(self, command: str, key: str, load: Callable[[str], str]) -> tuple[str, str]:
        """Reads by one of the commands."""
        word, value = self.call(f"{command} {key}").split(" ", 1)
        if word == "hit":
            return "cache", value
        assert word == "load", [word, value]
        source = value
        reply = self.call(load(source))
        assert reply.startswith("loaded "), reply
        return source, reply.removeprefix("loaded ")

    def read_uncached(self, key: str, load: Callable[[str], str]) -> tuple[str, str]:
        """The same after the cluster has lost the key, as by eviction."""
        assert self.call(f"delete {key}") == "deleted"
        return self.read(key, load)
