"""Short-lived items leave memory when they expire, without a get (§6.3)."""

from processes import connect, eventually, stats


def test_short_lived_items_leave_by_themselves(server):
    client = connect(server.port)
    assert client.set_many({f"short:{index}": b"value" for index in range(1000)}, expire=1) == []
    assert client.set("long", b"value", expire=1000)
    assert int(stats(server.port)["curr_items"]) >= 1
    eventually(lambda: stats(server.port)["curr_items"] == "1", "only the long-lived item is left")
    assert client.get("long") == b"value"
    client.close()
