//! Types that all databases have, whose equal values give equal keys.

/// A column of a type, the SQL of a value, and what a key has for it.
pub type TypedValue = (&'static str, &'static str, &'static str);

/// The column and the SQL of the value in MariaDB and MySQL, the same in PostgreSQL, and what a key has for both.
const COMMON_TYPES: &[([&str; 2], [&str; 2], &str)] = &[
    (["SMALLINT", "-32768"], ["smallint", "-32768"], "-32768"),
    (["INT", "-2147483648"], ["integer", "-2147483648"], "-2147483648"),
    (["BIGINT", "-9223372036854775808"], ["bigint", "-9223372036854775808"], "-9223372036854775808"),
    (["INT UNSIGNED", "4294967295"], ["oid", "4294967295"], "4294967295"),
    (["BOOLEAN", "TRUE"], ["boolean", "true"], "1"),
    (["BOOLEAN", "FALSE"], ["boolean", "false"], "0"),
    (["BIT(1)", "b'1'"], ["bit(1)", "B'1'"], "1"),
    (["BIT(4)", "b'0101'"], ["bit(4)", "B'0101'"], "5"),
    (["DECIMAL(10,2)", "-12.5"], ["numeric(10,2)", "-12.5"], "-12.50"),
    (["DECIMAL(10,2)", "-0.001"], ["numeric(10,2)", "-0.001"], "0.00"),
    (
        ["DECIMAL(65,30)", "12345678901234567890123456789012345.123456789012345678901234567890"],
        ["numeric(65,30)", "12345678901234567890123456789012345.123456789012345678901234567890"],
        "12345678901234567890123456789012345.123456789012345678901234567890",
    ),
    (["DECIMAL(5,0)", "0"], ["numeric(5,0)", "0"], "0"),
    (["VARCHAR(100) CHARACTER SET utf8mb4", "'Zoë🦀'"], ["varchar(100)", "'Zoë🦀'"], "Zoë🦀"),
    (["VARCHAR(100) CHARACTER SET latin1", "'Zoë€'"], ["varchar(100)", "'Zoë€'"], "Zoë€"),
    (["VARCHAR(10) CHARACTER SET utf8mb4", "''"], ["varchar(10)", "''"], ""),
    (["CHAR(10) CHARACTER SET utf8mb4", "'Ada'"], ["char(10)", "'Ada'"], "Ada"),
    (["TEXT CHARACTER SET utf8mb4", "'a''b'"], ["text", "'a''b'"], "a'b"),
    (["BLOB", "x'00ff0a'"], ["bytea", "'\\x00ff0a'"], "00ff0a"),
    (["VARBINARY(4)", "x''"], ["bytea", "''"], ""),
    (["ENUM('ok','it''s')", "'it''s'"], ["mood", "'it''s'"], "it's"),
    (["DATE", "'2026-01-02'"], ["date", "'2026-01-02'"], "2026-01-02"),
    (["DATETIME", "'2026-01-02 03:04:05'"], ["timestamp(0)", "'2026-01-02 03:04:05'"], "2026-01-02T03:04:05"),
    (
        ["DATETIME(3)", "'2026-01-02 03:04:05.670'"],
        ["timestamp(3)", "'2026-01-02 03:04:05.670'"],
        "2026-01-02T03:04:05.67",
    ),
    (
        ["DATETIME(6)", "'9999-12-31 23:59:59.000001'"],
        ["timestamp", "'9999-12-31 23:59:59.000001'"],
        "9999-12-31T23:59:59.000001",
    ),
    // The session of MariaDB and MySQL is two hours ahead.
    (["TIMESTAMP NULL", "'2026-01-02 03:04:05'"], ["timestamptz", "'2026-01-02 03:04:05+02'"], "2026-01-02T01:04:05Z"),
    (
        ["TIMESTAMP(2) NULL", "'2026-07-02 03:04:05.12'"],
        ["timestamptz(2)", "'2026-07-02 03:04:05.12+02'"],
        "2026-07-02T01:04:05.12Z",
    ),
    (["TIME", "'09:05:00'"], ["time", "'09:05:00'"], "09:05:00"),
    (["TIME(4)", "'12:34:56.0789'"], ["time(6)", "'12:34:56.0789'"], "12:34:56.0789"),
];

/// The enum of a column of PostgreSQL.
pub const POSTGRES_ENUM: &str = "CREATE TYPE mood AS ENUM ('ok', 'it''s')";

/// Those of MariaDB and MySQL, in a session two hours ahead of UTC, and `others`.
pub fn mysql_types(others: &[TypedValue]) -> Vec<TypedValue> {
    let common = COMMON_TYPES.iter().map(|([column, sql], _, key)| (*column, *sql, *key));
    common.chain(others.iter().copied()).collect()
}

/// Those of PostgreSQL, after [`POSTGRES_ENUM`], and `others`.
pub fn postgres_types(others: &[TypedValue]) -> Vec<TypedValue> {
    let common = COMMON_TYPES.iter().map(|(_, [column, sql], key)| (*column, *sql, *key));
    common.chain(others.iter().copied()).collect()
}
