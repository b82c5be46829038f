"""A trigger that computes the keys of each changed row, for a comparison with those that a transaction has named."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

TRIGGERS = """
ALTER DATABASE app SET deadlock_timeout = '20ms';
CREATE TABLE expected (xid bigint DEFAULT txid_current(), key text);
ALTER TABLE lookaside_outbox ADD COLUMN xid bigint DEFAULT txid_current();
CREATE FUNCTION expect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO expected (key) VALUES ('user:' || OLD.id), ('user_by_email:' || OLD.email);
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO expected (key) VALUES ('user:' || NEW.id), ('user_by_email:' || NEW.email);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER expect AFTER INSERT OR UPDATE OR DELETE ON TABLE_NAME FOR EACH ROW EXECUTE FUNCTION expect();
"""


def change_in_threads(change: Callable[[int], int]) -> None:
    """Runs `change(number)`, which returns how many transactions it has committed, in four threads."""
    with ThreadPoolExecutor(4) as threads:
        commits = list(threads.map(change, range(4), timeout=60))
    assert min(commits) > 10, commits


def missing_keys(cursor) -> list:
    """Transactions and keys that the trigger computed, and that were not named. There must have been some to name."""
    cursor.execute("SELECT count(*) FROM expected")
    assert cursor.fetchone()[0] > 100
    cursor.execute("SELECT xid, key FROM expected EXCEPT SELECT xid, key FROM lookaside_outbox")
    return cursor.fetchall()
