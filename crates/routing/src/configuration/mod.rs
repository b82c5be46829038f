//! mcrouter's configuration language: from text to the description of a tree. No request passes here.
//!
//! ```text
//!   text -- json.rs --> values -- macros.rs --> values without macros -- json_cursor.rs, parser.rs --> Handle
//! ```
//!
//! Each route parses its own arguments (`cluster/`).
//!
//! A feature of mcrouter that is not supported is refused by name if it would change where requests go, and otherwise
//! ignored with a warning. An unknown key is an error.

mod defaults;
mod error;
mod fault_policy;
mod handle;
mod hash;
mod inheritance;
mod json;
mod json_cursor;
mod leases;
mod macros;
mod parser;
mod pool;
mod pools;
mod route_type;
mod transport;

pub use defaults::Defaults;
pub(crate) use error::suggestion;
pub use error::{ConfigurationError, ConfigurationErrors, ConfigurationWarning};
pub use fault_policy::TkoLimit;
pub use handle::{DynEq, Handle, RouteConfig, TreeBuilder};
pub(crate) use hash::{check_servers, parse_hash, parse_hash_keys, parse_pool_hash, parse_salt, parse_tags};
pub(crate) use json::{Json, JsonValue, parse as parse_json};
pub(crate) use json_cursor::{Document, Keys, Node, Object};
pub use leases::{HotMisses, LeaseSettings, UnleasedSet};
pub(crate) use leases::{SCOPE, SET_WITHOUT_MISS};
pub(crate) use macros::expand as expand_macros;
pub(crate) use parser::{Parser, Registry};
pub use pool::{DestinationSettings, Pool};
pub(crate) use route_type::RouteType;
pub use transport::{Protocol, Security, TlsPolicy, Transport};
