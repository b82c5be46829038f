//! mcrouter's configuration language: from text to the description of a tree. No request passes here.
//!
//! ```text
//!   text -- json.rs --> values -- macros/ --> values without macros -- json_cursor.rs, parser.rs --> Handle
//! ```
//!
//! Each route parses its own arguments (`cluster/`).
//!
//! A feature of mcrouter that is not supported is refused by name if it would change where requests go, and otherwise
//! ignored with a warning. So is an unknown key, which mcrouter ignores, too.

mod big_values;
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
mod pool_entries;
mod pools;
mod route_type;
mod routers;
mod runtime_variables;
mod shared_handle;
mod transport;
mod tree_state;

pub use big_values::BigValueSettings;
pub use defaults::{Defaults, PlaceTimeouts};
pub(crate) use error::suggestion;
pub use error::{ConfigurationError, ConfigurationErrors, ConfigurationWarning, nearest_name};
pub use fault_policy::TkoLimit;
pub use handle::{DynEq, Handle, RouteConfig, TreeBuilder};
pub(crate) use hash::{check_servers, parse_hash, parse_hash_keys, parse_pool_hash, parse_salt, parse_tags};
pub(crate) use json::{Json, JsonValue, parse as parse_json};
pub(crate) use json_cursor::{Document, Keys, Node, Object};
pub use leases::{HotMisses, LeaseSettings, UnleasedSet};
pub(crate) use leases::{SCOPE, SET_WITHOUT_MISS};
pub(crate) use macros::expand as expand_macros;
pub use macros::{MacroConstant, MacroInputs};
pub(crate) use parser::{Parser, Registry};
pub(crate) use pool::parse_weights;
pub use pool::{DestinationSettings, Pool};
pub use pool_entries::PoolEntries;
pub(crate) use route_type::RouteType;
pub(crate) use routers::parse_routers;
pub(crate) use runtime_variables::parse_key_fraction;
pub use runtime_variables::parse_runtime_variables;
pub use transport::{Protocol, Security, TlsPolicy, Transport};
pub(crate) use tree_state::TreeState;
