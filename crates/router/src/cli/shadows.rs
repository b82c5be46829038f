//! The options of shadows.

use clap::Args;
use lookaside_routing::{SHADOW_OUTSTANDING_MAX, SHADOW_TOKENS_MAX};
use std::path::PathBuf;

/// Pairs of lease tokens without a limit of the operator: 16 MiB for each shadow.
const TOKENS_UNLIMITED: u32 = 1 << 20;

/// Shadows.
#[derive(Args, Clone, Debug)]
pub struct ShadowOptions {
    /// A JSON file of runtime variables, watched: `{"NAME": [0, 0.25]}` is the range of keys of the shadows whose
    /// `key_fraction_range_rv` is NAME
    #[arg(long, value_name = "FILE")]
    pub runtime_vars_file: Option<PathBuf>,
    /// The lease tokens that each shadow remembers, so that it accepts the copy of a fill; 0 for a million
    #[arg(long, value_name = "TOKENS", default_value_t = SHADOW_TOKENS_MAX as u32)]
    pub max_shadow_token_map_size: u32,
    /// Maximum copies for shadows that one server has not answered, per thread; further ones are dropped. 0 for no
    /// limit
    #[arg(long, value_name = "REQUESTS", default_value_t = SHADOW_OUTSTANDING_MAX as u32)]
    pub target_max_shadow_requests: u32,
}

impl ShadowOptions {
    pub(crate) fn outstanding_max(&self) -> usize {
        match self.target_max_shadow_requests {
            0 => usize::MAX,
            requests => requests as usize,
        }
    }

    pub(crate) fn tokens_max(&self) -> usize {
        match self.max_shadow_token_map_size {
            0 => TOKENS_UNLIMITED as usize,
            tokens => tokens.min(TOKENS_UNLIMITED) as usize,
        }
    }
}
