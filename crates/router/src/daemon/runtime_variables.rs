//! The file of runtime variables: read at the start, and again whenever it changes.

use crate::cli::ShadowOptions;
use lookaside_client::config::{FileWatcher, read_config_file};
use lookaside_routing::{RuntimeVariables, ShadowSettings, parse_runtime_variables};
use std::future::pending;
use std::path::{Path, PathBuf};

/// The settings of shadows, and the file of their variables.
pub(super) struct RuntimeVariablesFile {
    /// `None` if there are no variables.
    path: Option<PathBuf>,
    /// Its content at the start; empty if it could not be read.
    seen: String,
    settings: ShadowSettings,
}

impl RuntimeVariablesFile {
    /// Reads the file. If it cannot be read, or is wrong, that is logged, and there are no variables until it is
    /// mended.
    pub(super) fn read(options: &ShadowOptions) -> RuntimeVariablesFile {
        let settings = ShadowSettings {
            variables: RuntimeVariables::default(),
            tokens_max: options.tokens_max(),
            outstanding_max: options.outstanding_max(),
        };
        let mut seen = String::new();
        if let Some(path) = &options.runtime_vars_file {
            let content = read_config_file(path);
            seen = content.clone().unwrap_or_default();
            apply(path, content, &settings.variables);
        }
        RuntimeVariablesFile { path: options.runtime_vars_file.clone(), seen, settings }
    }

    pub(super) fn settings(&self) -> ShadowSettings {
        self.settings.clone()
    }

    /// Replaces the variables whenever the file changes. A wrong file is logged, and the variables stay. Never returns.
    pub(super) async fn follow(&self) {
        let Some(path) = &self.path else { return pending().await };
        let mut watcher = FileWatcher::new(path, self.seen.clone());
        loop {
            apply(path, watcher.next_change().await, &self.settings.variables);
        }
    }
}

fn apply(path: &Path, content: Result<String, String>, variables: &RuntimeVariables) {
    let parsed =
        content.and_then(|text| parse_runtime_variables(&text).map_err(|error| format!("{}: {error}", path.display())));
    match parsed {
        Ok(parsed) => {
            tracing::info!(file = %path.display(), count = parsed.len(), "runtime variables are in force");
            variables.replace(parsed);
        }
        Err(why) => tracing::warn!("runtime variables stay as they are: {why}"),
    }
}
