"""Keys that tests store in clusters, and wait for the deletes of."""

from processes import eventually


def fill(clusters, keys, value="old") -> None:
    """Stores the keys in each cluster."""
    for cluster in clusters:
        client = cluster.client()
        assert client.set_many({key: value for key in keys}) == []
        assert set(client.get_many(list(keys))) == set(keys)
        client.close()


def cached(clusters, keys) -> set[tuple[str, str]]:
    """Those of the keys that a cluster has, with its name."""
    found = set()
    for cluster in clusters:
        client = cluster.client()
        found |= {(cluster.name, key) for key in client.get_many(list(keys))}
        client.close()
    return found


def gone(clusters, keys, seconds=30.0) -> None:
    """Returns when no cluster has any of the keys."""
    try:
        eventually(lambda: not cached(clusters, keys), "gone", seconds)
    except AssertionError:
        left = sorted(cached(clusters, keys))
        raise AssertionError(f"{len(left)} of {len(keys)} keys are left after {seconds} s: {left[:10]}") from None
