"""A model of tables and of the keys that their changes make stale, and random schemas, rules and statements for it.

The model knows nothing of logs: it holds the rows as a client sees them, and computes keys by the specification in
docs/operating/row_rules.md. A `Sql` shows how a database writes the same types and values.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from uuid import UUID

KEY_BYTES_MAX = 250
# Texts that a collation may not tell apart, in letters that latin1 has.
WORDS = ["Ada", "aDa", "Zoë", "zOe", "Øre", "Ünal", "éclair", ""]

# A value: its SQL literal, and its text in a key; both None for NULL.
Value = tuple[str, str | None]
NULL: Value = ("NULL", None)


def quoted(text: str) -> str:
    """A string literal. No value has a backslash."""
    return "'" + text.replace("'", "''") + "'"


def random_text(random: random.Random, length_max: int) -> str:
    """Text of many scripts; sometimes with a space, so that no key can have it."""
    alphabet = "abcXYZ019:_-.@'äßéΩЖ中🦀"
    text = "".join(random.choice(alphabet) for _ in range(random.randint(0, length_max)))
    return text.replace("c", " ", 1) if random.random() < 0.05 else text


@dataclass(frozen=True)
class Sql:
    """How a database writes types, literals and statements."""

    name: str
    types: dict[str, str]
    bytes_literal: Callable[[bytes], str]
    # A statement that sets what follows for a session.
    session: str
    # INSERT with `VALUES`, and the columns of rows that exist already: the statement that replaces these columns there.
    upsert: Callable[[str, list[str]], str]
    # The table, a column and a type: the statement that gives the column this type.
    retype: Callable[[str, str, str], str]
    # The word that replaces whole rows; empty if there is none.
    replace: str


def mysql_bytes(value: bytes) -> str:
    return f"x'{value.hex()}'"


def mysql_upsert(insert: str, columns: list[str]) -> str:
    return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in columns)}"


def mysql_retype(table: str, column: str, type_name: str) -> str:
    return f"ALTER TABLE {table} MODIFY {column} {type_name}"


def postgres_upsert(insert: str, columns: list[str]) -> str:
    return f"{insert} ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in columns)}"


def postgres_retype(table: str, column: str, type_name: str) -> str:
    return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_name}"


MYSQL_TYPES = {
    "integer": "INT", "small": "SMALLINT", "big": "BIGINT", "boolean": "BOOLEAN", "decimal": "DECIMAL(12,3)",
    "text": "VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "long_text": "TEXT CHARACTER SET utf8mb4",
    "bytes": "VARBINARY(20)", "date": "DATE", "datetime": "DATETIME(3)", "instant": "TIMESTAMP(6) NULL",
    "time": "TIME(2)", "enum": "ENUM('new','it''s','ready')",
    "padded": "CHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "latin1": "VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    "folded": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
}  # fmt: skip

MARIADB = Sql(
    "mariadb", {**MYSQL_TYPES, "uuid": "UUID"}, mysql_bytes, "SET time_zone = '+00:00'", mysql_upsert, mysql_retype,
    "REPLACE",
)  # fmt: skip
MYSQL = Sql(
    "mysql", MYSQL_TYPES, mysql_bytes, "SET time_zone = '+00:00'", mysql_upsert, mysql_retype, "REPLACE"
)  # fmt: skip
POSTGRES = Sql(
    "postgres",
    {
        "integer": "integer", "small": "smallint", "big": "bigint", "boolean": "boolean", "decimal": "numeric(12,3)",
        "text": "varchar(60)", "long_text": "text", "bytes": "bytea", "date": "date", "datetime": "timestamp(3)",
        "instant": "timestamptz(6)", "time": "time(2)", "uuid": "uuid", "enum": "app.state", "padded": "char(30)",
        # A database has one character set for all columns.
        "latin1": "varchar(20)", "folded": "varchar(20) COLLATE app.folded",
    },
    lambda value: f"'\\x{value.hex()}'",
    # As the other databases have an enum without a name, and collations that ignore case.
    "SET TIME ZONE 'UTC'; CREATE TYPE app.state AS ENUM ('new', 'it''s', 'ready'); "
    "CREATE COLLATION app.folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    postgres_upsert, postgres_retype, "",
)  # fmt: skip

# The kinds of columns that every database has.
COMMON_KINDS = sorted(set(MARIADB.types) & set(MYSQL.types) & set(POSTGRES.types))
# Kinds whose columns can become of another kind, and keep their values.
WIDER = {"small": "integer", "integer": "big", "text": "long_text"}


def fraction(random: random.Random, digits: int) -> str:
    """A fraction of a second, sometimes zero or with zeros at the end."""
    return f"{random.choice([0, random.randrange(10**digits), 10 ** (digits - 1)]):0{digits}}"


def with_fraction(text: str, digits: str) -> str:
    """As a key has it: without zeros at the end."""
    return f"{text}.{digits.rstrip('0')}" if digits.strip("0") else text


def random_value(random: random.Random, kind: str, sql: Sql) -> Value:
    """A value of a kind of column."""
    if random.random() < 0.12:
        return NULL
    day = f"{random.randint(1971, 2037):04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
    clock = f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}"
    match kind:
        case "integer" | "small" | "big":
            bits = {"small": 15, "integer": 31, "big": 63}[kind]
            number = random.choice([-(2**bits), 2**bits - 1, random.randint(-9, 9)])
            return str(number), str(number)
        case "boolean":
            return random.choice([("TRUE", "1"), ("FALSE", "0")])
        case "decimal":
            number = Decimal(random.choice([0, 1, -1, random.randint(-(10**11), 10**11)])) / 1000
            return f"{number:.3f}", f"{number:.3f}"
        case "text" | "long_text":
            text = random_text(random, 20 if kind == "text" else random.choice([5, 300]))
            return quoted(text), text
        case "padded":
            text = random_text(random, 20).strip(" ")
            return quoted(text), text
        case "latin1" | "folded":
            text = random.choice(WORDS)
            return quoted(text), text
        case "bytes":
            value = random.choice([b"", b"\0", random.randbytes(random.randint(0, 20))])
            return sql.bytes_literal(value), value.hex()
        case "date":
            return quoted(day), day
        case "datetime":
            digits = fraction(random, 3)
            return f"'{day} {clock}.{digits}'", with_fraction(f"{day}T{clock}", digits)
        case "instant":
            digits = fraction(random, 6)
            return f"'{day} {clock}.{digits}'", with_fraction(f"{day}T{clock}", digits) + "Z"
        case "time":
            digits = fraction(random, 2)
            return f"'{clock}.{digits}'", with_fraction(clock, digits)
        case "uuid":
            text = str(UUID(int=random.getrandbits(128), version=random.choice([1, 4, 5])))
            return quoted(text), text
        case "enum":
            label = random.choice(["new", "it's", "ready"])
            return quoted(label), label
    raise AssertionError(kind)


def is_valid(key: str) -> bool:
    """Whether servers accept this key."""
    return 0 < len(key.encode()) <= KEY_BYTES_MAX and not any(char <= " " or char == "\x7f" for char in key)


@dataclass
class Table:
    """A table, its rule, and its rows by `id`."""

    name: str
    columns: dict[str, str]
    # Literal text and names of columns in turn: `("u:", "id", ":", "c1")`.
    templates: list[tuple[str, ...]]
    # What is flushed in place of keys that cannot be expressed.
    otherwise: str
    rows: dict[int, dict[str, Value]] = field(default_factory=dict)

    def keys(self, row: dict[str, Value]) -> set[str]:
        """The keys of an image of a row."""
        keys = set()
        for template in self.templates:
            texts = [part if at % 2 == 0 else row[part][1] for at, part in enumerate(template)]
            if None not in texts:
                keys.add("".join(texts))
        return {key for key in keys if is_valid(key)}

    def columns_of_keys(self) -> set[str]:
        """The columns that a template has."""
        return {part for template in self.templates for part in template[1::2]}

    def constant_keys(self) -> set[str]:
        """The keys without columns."""
        return {template[0] for template in self.templates if len(template) == 1}

    def flushes(self) -> list[str]:
        """The prefixes of the keys whose pools are flushed in place of keys that cannot be expressed; an empty one for
        the whole cluster. One that begins with another one is not needed."""
        if self.otherwise == "flush-cluster":
            return [""]
        starts = {template[0] for template in self.templates if len(template) > 1}
        return sorted(s for s in starts if not any(s != other and s.startswith(other) for other in starts))

    def rule(self) -> str:
        """The rule in TOML."""
        texts = ["".join(part if at % 2 == 0 else f"{{{part}}}" for at, part in enumerate(t)) for t in self.templates]
        keys = ", ".join(f'"{text}"' for text in texts)
        return f'[[rule]]\ntable = "{self.name}"\nkeys = [{keys}]\notherwise = "{self.otherwise}"\n'


def random_table(random: random.Random, name: str, kinds: list[str]) -> Table:
    """A table with columns of random kinds, and random templates."""
    kinds = random.choices(kinds, k=random.randint(1, 6))
    columns = {"id": "integer"} | {f"c{number}": kind for number, kind in enumerate(kinds)}
    short = name.rsplit(".", 1)[-1]
    # Of "t0:", which other templates begin with, of another text, or of none.
    templates: list[tuple[str, ...]] = [random.choices(
        [(f"{short}:", "id", ""), (f"{short}/", "id", ""), ("", "id", f":{short}")], weights=[3, 3, 1]
    )[0]]  # fmt: skip
    if random.random() < 0.5:
        templates.append((f"{short}:all",))
    for number in range(random.randint(1, 3)):
        parts = [f"{short}:{number}:"]
        for column in random.choices(list(columns), k=random.randint(1, 3)):
            parts += [column, random.choice(["", ":", "/"])]
        templates.append(tuple(parts))
    otherwise = random.choices(["flush-pools", "flush-cluster"], weights=[2, 1])[0]
    return Table(name, columns, templates, otherwise)


def create_sql(table: Table, sql: Sql) -> str:
    """CREATE TABLE."""
    columns = [f"{name} {sql.types[kind]}" for name, kind in table.columns.items() if name != "id"]
    return f"CREATE TABLE {table.name} ({', '.join(['id integer PRIMARY KEY', *columns])})"


class Session:
    """Makes up random statements, and applies them to the model."""

    def __init__(self, seed: int, tables: list[Table], sql: Sql) -> None:
        self.random = random.Random(seed)
        self.tables = tables
        self.sql = sql
        # The keys of rows that the last step's statements have left as they were.
        self.unchanged: set[str] = set()

    def statement(self, table: Table) -> tuple[str, set[str]]:
        """A statement that changes rows, and the keys that it makes stale."""
        match self.random.choice(["insert", "insert", "upsert", "replace", "update", "update", "move", "delete"]):
            case "insert":
                return self.insert(table)
            case "upsert":
                return self.upsert(table)
            case "replace":
                return self.replace(table)
            case "update":
                return self.update(table)
            case "move":
                return self.move(table)
            case _:
                return self.delete(table)

    def insert(self, table: Table) -> tuple[str, set[str]]:
        """INSERT of one to three rows."""
        keys, texts = set(), []
        for _ in range(self.random.randint(1, 3)):
            number = self.random.choice([n for n in range(-50, 1000) if n not in table.rows])
            row = {name: self.value(kind) for name, kind in table.columns.items()}
            row["id"] = (str(number), str(number))
            table.rows[number] = row
            keys |= table.keys(row)
            texts.append(f"({', '.join(row[name][0] for name in table.columns)})")
        return f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES {', '.join(texts)}", keys

    def upsert(self, table: Table) -> tuple[str, set[str]]:
        """INSERT of rows of which some exist; there some columns are replaced."""
        names = self.random.sample([name for name in table.columns if name != "id"], k=1)
        rows, keys = self.overwrite(table, names)
        return self.sql.upsert(f"INSERT INTO {table.name} {rows}", names), keys

    def replace(self, table: Table) -> tuple[str, set[str]]:
        """INSERT of rows of which some exist; those are replaced."""
        names = [name for name in table.columns if name != "id"]
        rows, keys = self.overwrite(table, names)
        if self.sql.replace:
            return f"{self.sql.replace} INTO {table.name} {rows}", keys
        return self.sql.upsert(f"INSERT INTO {table.name} {rows}", names), keys

    def overwrite(self, table: Table, names: list[str]) -> tuple[str, set[str]]:
        """New rows, with the values of `names` for those that exist."""
        keys, texts = set(), []
        for number in self.random.sample(sorted({*table.rows, *range(-3, 3)}), k=2):
            row = {name: self.value(kind) for name, kind in table.columns.items()}
            row["id"] = (str(number), str(number))
            texts.append(f"({', '.join(row[name][0] for name in table.columns)})")
            old = table.rows.get(number)
            new = table.rows[number] = row if old is None else old | {name: row[name] for name in names}
            keys |= table.keys(new) if old is None else self.changed_keys(table, old, new)
        return f"({', '.join(table.columns)}) VALUES {', '.join(texts)}", keys

    def changed_keys(self, table: Table, old: dict[str, Value], new: dict[str, Value]) -> set[str]:
        """The keys of both images; none if they are the same, as nothing is stale then."""
        if all(old[name][1] == new[name][1] for name in table.columns):
            self.unchanged |= table.keys(new)
            return set()
        return table.keys(old) | table.keys(new)

    def alter(self, table: Table) -> str:
        """ALTER TABLE, after which the rule still fits: a column is added, removed, renamed, or gets a wider type."""
        free = sorted(set(table.columns) - table.columns_of_keys() - {"id"})
        wider = sorted(name for name, kind in table.columns.items() if kind in WIDER and name != "id")
        choices = [
            "add",
            *(["drop"] if len(free) > 1 else []),
            *(["rename"] if free else []),
            *(["wider"] if wider else []),
        ]
        new = f"n{self.random.randrange(10**6)}"
        match self.random.choice(choices):
            case "add":
                kind = self.random.choice(COMMON_KINDS)
                table.columns[new] = kind
                for row in table.rows.values():
                    row[new] = NULL
                return f"ALTER TABLE {table.name} ADD COLUMN {new} {self.sql.types[kind]}"
            case "drop":
                name = self.random.choice(free)
                del table.columns[name]
                for row in table.rows.values():
                    del row[name]
                return f"ALTER TABLE {table.name} DROP COLUMN {name}"
            case "rename":
                name = self.random.choice(free)
                table.columns = {new if other == name else other: kind for other, kind in table.columns.items()}
                for row in table.rows.values():
                    row[new] = row.pop(name)
                return f"ALTER TABLE {table.name} RENAME COLUMN {name} TO {new}"
            case _:
                name = self.random.choice(wider)
                table.columns[name] = WIDER[table.columns[name]]
                return self.sql.retype(table.name, name, self.sql.types[table.columns[name]])

    def update(self, table: Table) -> tuple[str, set[str]]:
        """UPDATE of some columns of a range of rows."""
        where, chosen = self.some_rows(table)
        names = self.random.sample([name for name in table.columns if name != "id"], k=1)
        values = {name: self.value(table.columns[name]) for name in names}
        keys = set()
        for number in chosen:
            old, new = table.rows[number], table.rows[number] | values
            keys |= self.changed_keys(table, old, new)
            table.rows[number] = new
        assignments = ", ".join(f"{name} = {value[0]}" for name, value in values.items())
        return f"UPDATE {table.name} SET {assignments} WHERE {where}", keys

    def move(self, table: Table) -> tuple[str, set[str]]:
        """UPDATE of the primary key of one row."""
        if not table.rows:
            return self.insert(table)
        old_id = self.random.choice(sorted(table.rows))
        new_id = self.random.choice([n for n in range(-50, 1000) if n not in table.rows])
        old = table.rows.pop(old_id)
        new = table.rows[new_id] = old | {"id": (str(new_id), str(new_id))}
        return f"UPDATE {table.name} SET id = {new_id} WHERE id = {old_id}", table.keys(old) | table.keys(new)

    def delete(self, table: Table) -> tuple[str, set[str]]:
        """DELETE of a range of rows."""
        where, chosen = self.some_rows(table)
        keys = set().union(*(table.keys(table.rows.pop(number)) for number in chosen))
        return f"DELETE FROM {table.name} WHERE {where}", keys

    def some_rows(self, table: Table) -> tuple[str, list[int]]:
        """A condition on `id`, and the rows that it selects."""
        first = self.random.choice([*table.rows, 0])
        last = first + self.random.choice([0, 0, 20, 200])
        return f"id BETWEEN {first} AND {last}", [number for number in table.rows if first <= number <= last]

    def value(self, kind: str) -> Value:
        """A value of a column."""
        return random_value(self.random, kind, self.sql)


@dataclass(frozen=True)
class Step:
    """Statements of one connection, and what they make stale: keys, and all that begin with a prefix. `unchanged` has
    the keys of rows that they leave as they were."""

    statements: list[str]
    keys: set[str]
    flushed: list[str]
    unchanged: set[str] = field(default_factory=set)


def random_step(session: Session) -> Step:
    """A statement, a transaction, or a change of a whole table."""
    random = session.random
    session.unchanged = set()
    table = random.choice(session.tables)
    kind = random.choices(
        ["one", "transaction", "rollback", "savepoint", "truncate", "alter"], weights=[50, 18, 10, 10, 4, 8]
    )[0]
    if kind == "truncate":
        table.rows.clear()
        return Step([f"TRUNCATE TABLE {table.name}"], table.constant_keys(), table.flushes())
    if kind == "alter":
        return Step([session.alter(table)], table.constant_keys(), table.flushes())

    def some(count: int) -> tuple[list[str], set[str]]:
        made = [session.statement(random.choice(session.tables)) for _ in range(count)]
        return [text for text, _ in made], set().union(*(keys for _, keys in made))

    before = copy.deepcopy(session.tables)
    statements, keys = some(1 if kind == "one" else random.randint(1, 4))
    match kind:
        case "rollback":
            session.tables = before
            return Step(["BEGIN", *statements, "ROLLBACK"], set(), [])
        case "savepoint":
            before = copy.deepcopy(session.tables)
            undone, _ = some(random.randint(1, 3))
            session.tables = before
            more, more_keys = some(1)
            statements += ["SAVEPOINT here", *undone, "ROLLBACK TO SAVEPOINT here", *more]
            keys |= more_keys
    return Step(["BEGIN", *statements, "COMMIT"], keys, [], session.unchanged)
