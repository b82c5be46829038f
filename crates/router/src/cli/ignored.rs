//! mcrouter's flags that have no meaning here. They are accepted, so that mcrouter's command line starts this router,
//! and each is named in a warning.

use clap::Args;

/// Flags that are accepted and ignored.
#[derive(Clone, Debug, Default, Args)]
pub struct Ignored {
    #[arg(long, hide = true)]
    config_params: Option<String>,
    #[arg(short = 'L', long, hide = true)]
    log_path: Option<String>,
    #[arg(short = 'r', long, hide = true)]
    reconfiguration_delay_ms: Option<String>,
    #[arg(long, hide = true)]
    stats_root: Option<String>,
    #[arg(long, hide = true)]
    stats_logging_interval: Option<String>,
    #[arg(long, hide = true)]
    reset_inactive_connection_interval: Option<String>,
    #[arg(long, hide = true)]
    use_asynclog_version2: bool,
}

impl Ignored {
    /// A warning for each flag that was given.
    pub fn warnings(&self) -> Vec<String> {
        let given = |flag: &str, value: &Option<String>, instead: &str| {
            value.as_ref().map(|value| format!("{flag} {value} is ignored: {instead}"))
        };
        let stats = "statistics are read with the command `stats`";
        let warnings = [
            given("--config-params", &self.config_params, "a configuration has no parameters here"),
            given("--log-path", &self.log_path, "the log is on standard error"),
            given(
                "--reconfiguration-delay-ms",
                &self.reconfiguration_delay_ms,
                "a change is applied once it is complete",
            ),
            given("--stats-root", &self.stats_root, stats),
            given("--stats-logging-interval", &self.stats_logging_interval, stats),
            given(
                "--reset-inactive-connection-interval",
                &self.reset_inactive_connection_interval,
                "connections to servers stay open, and their names are resolved every --resolve-interval",
            ),
            self.use_asynclog_version2
                .then(|| "--use-asynclog-version2 is ignored: the spool has one layout".to_owned()),
        ];
        warnings.into_iter().flatten().collect()
    }
}
