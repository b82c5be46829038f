//! The unsafe settings that an operator may accept, by the URL of the server:
//! `mysql://...?accept-unsafe=sync_binlog,binlog_ignore_db`. [`super::settings`] says what is unsafe about each.

use std::collections::BTreeSet;

/// A setting by which a delete can be lost or mistaken, and which an operator may accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnsafeSetting {
    /// The end of the log may be lost in a crash of the machine.
    SyncBinlog,
    /// A replica may log transactions out of order.
    GtidStrictMode,
    /// All schemas but some are kept out of the log.
    BinlogDoDb,
    /// Some schemas are kept out of the log.
    BinlogIgnoreDb,
    /// Commits go on when the log cannot be written.
    BinlogErrorAction,
    /// The log has no names of columns.
    BinlogRowMetadata,
    /// The log lacks old values.
    BinlogRowImage,
}

impl UnsafeSetting {
    /// Each of them.
    pub const ALL: [UnsafeSetting; 7] = [
        UnsafeSetting::SyncBinlog,
        UnsafeSetting::GtidStrictMode,
        UnsafeSetting::BinlogDoDb,
        UnsafeSetting::BinlogIgnoreDb,
        UnsafeSetting::BinlogErrorAction,
        UnsafeSetting::BinlogRowMetadata,
        UnsafeSetting::BinlogRowImage,
    ];

    /// Its name, as the server has it.
    pub fn name(self) -> &'static str {
        match self {
            UnsafeSetting::SyncBinlog => "sync_binlog",
            UnsafeSetting::GtidStrictMode => "gtid_strict_mode",
            UnsafeSetting::BinlogDoDb => "binlog_do_db",
            UnsafeSetting::BinlogIgnoreDb => "binlog_ignore_db",
            UnsafeSetting::BinlogErrorAction => "binlog_error_action",
            UnsafeSetting::BinlogRowMetadata => "binlog_row_metadata",
            UnsafeSetting::BinlogRowImage => "binlog_row_image",
        }
    }

    /// Whether nothing is lost before something else fails: the server's machine, or its disk. To stop the deletes of a
    /// running invalidator costs more than that.
    pub fn is_harmless_until_a_failure(self) -> bool {
        matches!(self, UnsafeSetting::SyncBinlog | UnsafeSetting::BinlogErrorAction)
    }

    /// Parses names with commas between them; the error has the names that there are.
    pub fn parse_list(text: &str) -> Result<BTreeSet<UnsafeSetting>, String> {
        let parse = |name: &str| {
            let known = UnsafeSetting::ALL.into_iter().find(|setting| setting.name() == name);
            known.ok_or_else(|| {
                let names = UnsafeSetting::ALL.map(UnsafeSetting::name).join(", ");
                format!("has an unknown setting in accept-unsafe; expected some of {names}")
            })
        };
        text.split(',').map(parse).collect()
    }

    /// What an operator adds to the URL to accept it.
    pub fn acceptance(self) -> String {
        format!("or accept it, at your own risk: accept-unsafe={} in the URL", self.name())
    }
}

/// `url` without `accept-unsafe`, for clients that refuse a parameter which they do not know.
pub fn strip_acceptance(url: &str) -> String {
    let Some((server, parameters)) = url.split_once('?') else { return url.to_owned() };
    let others: Vec<&str> =
        parameters.split('&').filter(|parameter| !parameter.starts_with("accept-unsafe=")).collect();
    match others.is_empty() {
        true => server.to_owned(),
        false => format!("{server}?{}", others.join("&")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acceptance_is_stripped_from_a_url() {
        assert_eq!(strip_acceptance("mysql://h/a?accept-unsafe=x"), "mysql://h/a");
        assert_eq!(strip_acceptance("mysql://h/a?b=1&accept-unsafe=x&c=2"), "mysql://h/a?b=1&c=2");
        assert_eq!(strip_acceptance("mysql://h/a"), "mysql://h/a");
    }

    #[test]
    fn accepted_settings_are_parsed() {
        let all = UnsafeSetting::ALL.map(UnsafeSetting::name).join(",");
        assert_eq!(UnsafeSetting::parse_list(&all), Ok(BTreeSet::from(UnsafeSetting::ALL)));
        for bad in ["", "sync_binlog,", "all", "SYNC_BINLOG", "sync_binlog, gtid_strict_mode"] {
            let error = UnsafeSetting::parse_list(bad).expect_err(bad);
            assert!(error.contains("expected some of sync_binlog, gtid_strict_mode"), "{error}");
        }
    }
}
