//! The binlog of MariaDB and MySQL as a source.
