//! mcrouter's command line, so that its unit files start this router.
//!
//! clap refuses what it does not know, and mcrouter does not. So a command line is rewritten before clap parses it:
//!
//! ```text
//!   -p5000 -t 300 --route-pre=/a/b/ --fibers-stack-size 9000 --foo bar      as given
//!                         |  translate(), by the table FLAGS
//!   --port=5000 --server-timeout=300 --route-prefix=/a/b/                   parsed by clap
//!   "--fibers-stack-size has no effect: ...", "Unrecognized option: --foo"  logged
//! ```
//!
//! What `stats` shows of it is in [`shown`].

mod flags;
mod flavor;
pub(super) mod program_name;
mod shown;
mod translate;

pub(super) use flags::{Effect, FLAGS};
pub(crate) use translate::{Translation, translate};

#[cfg(test)]
mod tests;
