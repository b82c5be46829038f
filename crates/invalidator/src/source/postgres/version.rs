//! Versions of the server, as `server_version_num`, from which on it has what is used here.

/// The first version that is supported.
pub const VERSION_MIN: u32 = 130_000;
/// The first version whose `pgoutput` sends the messages of `pg_logical_emit_message`.
pub const VERSION_WITH_MESSAGES: u32 = 140_000;
/// The first version with standbys that copy slots from their primary.
pub const VERSION_WITH_FAILOVER_SLOTS: u32 = 170_000;

/// Whether a server of this version may leave all later changes of a table out of the log, until the log is opened again, if
/// the table is added to the publication while a transaction is open that has changed it. Mended in these releases (release
/// notes of May 2025, on `ALTER PUBLICATION ... ADD TABLE`).
pub fn omits_added_tables(version: u32) -> bool {
    match version / 10_000 {
        13 => version < 130_021,
        14 => version < 140_018,
        15 => version < 150_013,
        16 => version < 160_009,
        17 => version < 170_005,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_that_omit_added_tables_are_known() {
        assert!([130_020, 150_012, 170_004].into_iter().all(omits_added_tables));
        assert!(![130_021, 150_018, 170_005, 180_000].into_iter().any(omits_added_tables));
    }
}
