"""Random statements that change rows of several tables, or rows that only the database can choose.

The rows are read in the session that changes them, before and after each statement. So this model knows of rows nothing
but what a client sees: no collation, join, trigger or partition. It computes keys as `row_model` does.
"""

import random
from collections import Counter
from dataclasses import dataclass

from row_model import WIDER, WORDS, Step, Table, quoted, random_table, random_value

KINDS = ["integer", "text", "latin1", "folded"]
# How many values of `id` each partition has but the last, the third.
PARTITION_IDS = 50
# How often a session has each kind of statement. The names are those of methods of `RowSession`.
STATEMENTS = {
    "insert": 3, "insert_from_itself": 3, "insert_from_another": 3, "upsert_from_another": 3,
    "update_by_join": 3, "update_both_by_join": 2, "update_one_with_a_rule_by_join": 2,
    "delete_by_join": 2, "delete_both_by_join": 2, "delete_one_with_a_rule_by_join": 2,
    "update_by_collation": 3, "delete_by_collation": 2,
    "insert_with_trigger": 2, "update_with_trigger": 3, "delete_with_trigger": 2,
    "move_to_another_partition": 4, "load": 2, "recreate": 1,
}  # fmt: skip


class MysqlSyntax:
    """How MariaDB and MySQL write these statements."""

    # The kinds of columns whose collation ignores case.
    folding = ("latin1", "folded")

    def update_by_join(self, a: str, b: str, set_a: str, set_b: str | None, where: str) -> str:
        """UPDATE of rows of `a`, and with `set_b` of those of `b` with the same `id`."""
        changes = f"{a}.{set_a}" + (f", {b}.{set_b}" if set_b else "")
        return f"UPDATE {a} JOIN {b} ON {a}.id = {b}.id SET {changes} WHERE {where}"

    def delete_by_join(self, a: str, b: str, both: bool, where: str) -> str:
        """DELETE of rows of `a` for which `b` has the same `id`, and with `both` of those of `b`."""
        return f"DELETE {f'{a}, {b}' if both else a} FROM {a} JOIN {b} ON {a}.id = {b}.id WHERE {where}"

    def triggers(self, source: Table, copy: Table) -> list[str]:
        """Triggers that change `copy` as `source` is changed."""
        return [
            f"CREATE TRIGGER app.of_{event.lower()} AFTER {event} ON {source.name} FOR EACH ROW {change}"
            for event, change in copy_changes(source, copy).items()
        ]


class PostgresSyntax:
    """How PostgreSQL does."""

    folding = ("folded",)

    def update_by_join(self, a: str, b: str, set_a: str, set_b: str | None, where: str) -> str:
        """One statement changes two tables if it has another one within."""
        if set_b is None:
            return f"UPDATE {a} SET {set_a} FROM {b} WHERE {a}.id = {b}.id AND {where}"
        other = f"UPDATE {b} SET {set_b} FROM {a} WHERE {a}.id = {b}.id AND {where} RETURNING {b}.id"
        return f"WITH other AS ({other}) UPDATE {a} SET {set_a} FROM other WHERE {a}.id = other.id"

    def delete_by_join(self, a: str, b: str, both: bool, where: str) -> str:
        if not both:
            return f"DELETE FROM {a} USING {b} WHERE {a}.id = {b}.id AND {where}"
        other = f"DELETE FROM {b} USING {a} WHERE {a}.id = {b}.id AND {where} RETURNING {b}.id"
        return f"WITH other AS ({other}) DELETE FROM {a} USING other WHERE {a}.id = other.id"

    def triggers(self, source: Table, copy: Table) -> list[str]:
        changes = " ".join(
            f"IF TG_OP = '{event}' THEN {change}; END IF;" for event, change in copy_changes(source, copy).items()
        )
        return [
            "CREATE FUNCTION app.copy_row() RETURNS trigger LANGUAGE plpgsql "
            f"AS $$ BEGIN {changes} RETURN NULL; END $$",
            f"CREATE TRIGGER copy_row AFTER INSERT OR UPDATE OR DELETE ON {source.name} "
            "FOR EACH ROW EXECUTE FUNCTION app.copy_row()",
        ]


def copy_changes(source: Table, copy: Table) -> dict[str, str]:
    """For each event of a row of `source` the statement of a trigger that changes its copy."""
    names = list(source.columns)
    values = ", ".join(f"NEW.{name}" for name in names)
    assignments = ", ".join(f"{name} = NEW.{name}" for name in names)
    return {
        "INSERT": f"INSERT INTO {copy.name} ({', '.join(names)}) VALUES ({values})",
        "UPDATE": f"UPDATE {copy.name} SET {assignments} WHERE id = OLD.id",
        "DELETE": f"DELETE FROM {copy.name} WHERE id = OLD.id",
    }


SYNTAXES = {"mariadb": MysqlSyntax(), "mysql": MysqlSyntax(), "postgres": PostgresSyntax()}


@dataclass
class Change:
    """A statement, or rows to load as text with tabs between the values."""

    text: str
    load_into: Table | None = None


class RowSession:
    """Makes up random statements, executes them, and finds the keys of the rows that they have changed."""

    def __init__(self, seed: int, client) -> None:
        self.random = random.Random(seed)
        self.client = client
        self.syntax = SYNTAXES[client.sql.name]
        self.t0, self.t1, self.plain, self.parted, self.watched = (
            random_table(self.random, f"app.{name}", KINDS) for name in ("t0", "t1", "plain", "parted", "watched")
        )
        # Those that most kinds of statements change. They select rows by `word`.
        self.changed = [self.t0, self.t1, self.parted, self.watched]
        for table in self.changed:
            table.columns["word"] = "folded"
        templates = [
            tuple(part.replace("watched", "mirror") for part in template) for template in self.watched.templates
        ]
        self.mirror = Table("app.mirror", self.watched.columns, templates, self.watched.otherwise)
        self.with_rule = [self.t0, self.t1, self.parted, self.mirror]
        if self.random.random() < 0.5:
            self.with_rule.append(self.watched)
        # The rows of each table by its name.
        self.rows: dict[str, set[tuple]] = {}
        # How many keys each kind of statement has made stale.
        self.keys_of_kinds: Counter[str] = Counter()
        kinds = [kind for kind, times in STATEMENTS.items() if kind != "load" or client.can_load for _ in range(times)]
        self.random.shuffle(kinds)
        # Those that are still to come, the next one last.
        self.kinds = kinds

    def create(self) -> None:
        """Creates the tables, each with some rows."""
        for table in (self.t0, self.t1, self.plain, self.watched, self.mirror):
            self.client.create(table)
        self.client.create_partitioned(self.parted, [PARTITION_IDS, 2 * PARTITION_IDS])
        for statement in self.syntax.triggers(self.watched, self.mirror):
            self.client.run(statement)
        self.rows = self.read()
        for table in (*self.changed, self.plain):
            self.execute(self.insert_into(table, 10))

    def read(self) -> dict[str, set[tuple]]:
        """The rows that the session sees now."""
        tables = [*self.with_rule, self.plain, self.watched]
        return {t.name: set(self.client.rows(f"SELECT {', '.join(t.columns)} FROM {t.name}")) for t in tables}

    def keys_of(self, table: Table, rows: set[tuple]) -> set[str]:
        """The keys of these rows."""
        images = [[("", None) if value is None else (quoted(str(value)), str(value)) for value in row] for row in rows]
        return set().union(*(table.keys(dict(zip(table.columns, image, strict=True))) for image in images))

    def execute(self, change: Change) -> tuple[set[str], set[str]]:
        """Executes a statement; the keys of the rows that it has changed, and of those that are as they were."""
        if change.load_into:
            self.client.load(change.load_into, change.text)
        else:
            self.client.run(change.text)
        before, self.rows = self.rows, self.read()
        keys, unchanged = set(), set()
        for table in self.with_rule:
            old, new = before[table.name], self.rows[table.name]
            keys |= self.keys_of(table, old ^ new)
            unchanged |= self.keys_of(table, old & new)
        return keys, unchanged

    def steps(self):
        """All steps, each of which has been executed when it is given: mostly a statement, or a transaction."""
        while self.kinds:
            for table in (*self.changed, self.plain):
                if len(self.rows[table.name]) < 5:
                    yield self.transaction([("refill", self.insert_into(table, 5))], "COMMIT")
            if self.kinds[-1] == "recreate":
                self.kinds.pop()
                yield self.recreate()
                continue
            if self.random.random() < 0.1:
                kinds = self.random.sample(["update_both_by_join", "delete_by_collation", "update_with_trigger"], k=2)
                yield self.transaction(self.changes(kinds), "ROLLBACK")
            kinds = [self.kinds.pop()]
            while self.kinds and self.kinds[-1] != "recreate" and self.random.random() < 0.2:
                kinds.append(self.kinds.pop())
            yield self.transaction(self.changes(kinds), "COMMIT")

    def changes(self, kinds: list[str]):
        """Statements of these kinds, each made up when those before it have been executed."""
        return ((kind, getattr(self, kind)()) for kind in kinds)

    def transaction(self, changes, end: str) -> Step:
        """Executes these changes in a transaction."""
        statements, keys, unchanged = ["BEGIN"], set(), set()
        self.client.run("BEGIN")
        for kind, change in changes:
            found, as_before = self.execute(change)
            statements.append(change.text)
            keys |= found
            unchanged |= as_before
            if end == "COMMIT":
                self.keys_of_kinds[kind] += len(found)
        self.client.run(end)
        self.rows = self.read()
        return Step([*statements, end], keys if end == "COMMIT" else set(), [], unchanged)

    def recreate(self) -> Step:
        """DROP and CREATE of a table, with the columns in another order, some of them of wider types."""
        table = self.random.choice([self.t0, self.t1])
        others = [(name, kind) for name, kind in table.columns.items() if name != "id"]
        self.random.shuffle(others)
        table.columns = {"id": "integer"} | {name: WIDER.get(kind, kind) for name, kind in others}
        self.client.recreate(table)
        self.rows = self.read()
        self.keys_of_kinds["recreate"] += len(table.flushes())
        return Step([f"DROP and CREATE {table.name}"], table.constant_keys(), table.flushes())

    def value(self, table: Table, name: str) -> str:
        """The literal of a value of a column."""
        return random_value(self.random, table.columns[name], self.client.sql)[0]

    def assignment(self, table: Table) -> str:
        """A new value of a column."""
        name = self.random.choice([name for name in table.columns if name != "id"])
        return f"{name} = {self.value(table, name)}"

    def ids(self, table: Table) -> set[int]:
        """The `id` of each row."""
        at = list(table.columns).index("id")
        return {row[at] for row in self.rows[table.name]}

    def free_ids(self, table: Table) -> list[int]:
        """Values of `id` for new rows: of all partitions, or the least, so that tables have many in common."""
        free = sorted(set(range(3 * PARTITION_IDS)) - self.ids(table))
        return free if table is self.parted else free[:15]

    def one(self, ids: set[int]) -> int:
        """One of these; zero if there is none."""
        return self.random.choice(sorted(ids) or [0])

    def some_rows(self, ids: set[int], count: int) -> str:
        """A condition on `id` that selects at least one of these, and at most `count`."""
        first = self.one(ids)
        return f"BETWEEN {first} AND {first + self.random.randrange(count)}"

    def insert_into(self, table: Table, count: int) -> Change:
        """INSERT of new rows."""
        rows = [
            [str(number), *(self.value(table, name) for name in table.columns if name != "id")]
            for number in self.random.sample(self.free_ids(table), k=count)
        ]
        names = ["id", *(name for name in table.columns if name != "id")]
        texts = ", ".join(f"({', '.join(row)})" for row in rows)
        return Change(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {texts}")

    def insert(self) -> Change:
        return self.insert_into(self.random.choice(self.changed), self.random.randint(1, 3))

    def selected(self, target: Table, source: Table) -> tuple[list[str], str]:
        """Columns of `target`, and for each a column of `source` of the same kind, or a literal."""
        names = [name for name in target.columns if name != "id"]
        values = []
        for name in names:
            same = [other for other, kind in source.columns.items() if kind == target.columns[name] and other != "id"]
            values.append(self.random.choice([*same, self.value(target, name)]))
        return names, ", ".join(values)

    def insert_selected(self, target: Table, source: Table) -> Change:
        """INSERT of rows of another table, or of the same one, with new values of `id`."""
        names, values = self.selected(target, source)
        last = max(self.ids(target), default=0)
        return Change(
            f"INSERT INTO {target.name} (id, {', '.join(names)}) "
            f"SELECT {last} + ROW_NUMBER() OVER (ORDER BY id), {values} "
            f"FROM {source.name} WHERE id {self.some_rows(self.ids(source), 8)}"
        )

    def insert_from_itself(self) -> Change:
        table = self.random.choice(self.changed)
        return self.insert_selected(table, table)

    def insert_from_another(self) -> Change:
        return self.insert_selected(*self.random.sample(self.changed, k=2))

    def upsert_from_another(self) -> Change:
        """INSERT of rows of another table, of which some exist; there a column is replaced."""
        target, source = self.random.sample(self.changed, k=2)
        names, values = self.selected(target, source)
        rows = f"SELECT id, {values} FROM {source.name} WHERE id {self.some_rows(self.ids(source), 8)}"
        insert = f"INSERT INTO {target.name} (id, {', '.join(names)}) {rows}"
        return Change(self.client.sql.upsert(insert, [self.random.choice(names)]))

    def update_joined(self, a: Table, b: Table, both: bool) -> Change:
        """UPDATE of a table, or of both, by a join."""
        where = f"{a.name}.id {self.some_rows(self.ids(a) & self.ids(b), 8)}"
        set_b = self.assignment(b) if both else None
        return Change(self.syntax.update_by_join(a.name, b.name, self.assignment(a), set_b, where))

    def delete_joined(self, a: Table, b: Table, both: bool) -> Change:
        """DELETE of rows of a table, or of both, by a join."""
        where = f"{a.name}.id {self.some_rows(self.ids(a) & self.ids(b), 3)}"
        return Change(self.syntax.delete_by_join(a.name, b.name, both, where))

    def with_and_without_rule(self) -> list[Table]:
        """Two tables in any order, of which one has a rule."""
        return self.random.sample([self.random.choice([self.t0, self.t1]), self.plain], k=2)

    def update_by_join(self) -> Change:
        return self.update_joined(self.t0, self.random.choice([self.t1, self.plain]), False)

    def update_both_by_join(self) -> Change:
        return self.update_joined(*self.random.sample([self.t0, self.t1], k=2), True)

    def update_one_with_a_rule_by_join(self) -> Change:
        return self.update_joined(*self.with_and_without_rule(), True)

    def delete_by_join(self) -> Change:
        return self.delete_joined(self.t0, self.random.choice([self.t1, self.plain]), False)

    def delete_both_by_join(self) -> Change:
        return self.delete_joined(*self.random.sample([self.t0, self.t1], k=2), True)

    def delete_one_with_a_rule_by_join(self) -> Change:
        return self.delete_joined(*self.with_and_without_rule(), True)

    def matched_by_collation(self, table: Table) -> str:
        """A condition that selects rows whose text has other letters: no row has the letters of the condition."""
        names = [name for name, kind in table.columns.items() if kind in self.syntax.folding]
        name = self.random.choice(names)
        at = list(table.columns).index(name)
        words = sorted({row[at] for row in self.rows[table.name] if row[at]} or {WORDS[0]})
        return f"{name} = {quoted(self.random.choice(words).swapcase())}"

    def update_by_collation(self) -> Change:
        table = self.random.choice(self.changed)
        return Change(f"UPDATE {table.name} SET {self.assignment(table)} WHERE {self.matched_by_collation(table)}")

    def delete_by_collation(self) -> Change:
        table = self.random.choice(self.changed)
        return Change(f"DELETE FROM {table.name} WHERE {self.matched_by_collation(table)}")

    def insert_with_trigger(self) -> Change:
        return self.insert_into(self.watched, self.random.randint(1, 3))

    def update_with_trigger(self) -> Change:
        """UPDATE of a column of some rows, or of the primary key of one."""
        number = self.one(self.ids(self.watched))
        if self.random.random() < 0.3:
            return Change(f"UPDATE app.watched SET id = {self.free_ids(self.watched)[0]} WHERE id = {number}")
        return Change(f"UPDATE app.watched SET {self.assignment(self.watched)} WHERE id >= {number}")

    def delete_with_trigger(self) -> Change:
        return Change(f"DELETE FROM app.watched WHERE id {self.some_rows(self.ids(self.watched), 3)}")

    def move_to_another_partition(self) -> Change:
        """UPDATE of the primary key by which the table is partitioned, sometimes of another column, too."""

        def partition(number: int) -> int:
            return min(number // PARTITION_IDS, 2)

        old = self.one(self.ids(self.parted))
        new = self.random.choice([n for n in self.free_ids(self.parted) if partition(n) != partition(old)])
        more = self.random.choice(["", f", {self.assignment(self.parted)}"])
        return Change(f"UPDATE app.parted SET id = {new}{more} WHERE id = {old}")

    def load(self) -> Change:
        """Rows as text with tabs, as COPY and LOAD DATA read them."""
        table = self.random.choice(self.changed)
        lines = []
        for number in self.random.sample(self.free_ids(table), k=3):
            texts = [
                str(number) if name == "id" else random_value(self.random, kind, self.client.sql)[1]
                for name, kind in table.columns.items()
            ]
            lines.append("\t".join("\\N" if text is None else text for text in texts) + "\n")
        return Change("".join(lines), table)
