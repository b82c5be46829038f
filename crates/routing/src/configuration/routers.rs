//! The routers of a cluster, which a configuration may name for clients that read servers directly. A router checks the
//! list, and makes no use of it.
//!
//! ```text
//!   "routers": ["10.0.0.1:5000", "10.0.0.2:5000"]                               of a configuration of one cluster
//!   "routers": { "/west/one/": ["10.0.0.1:5000"], "/west/two/": [...] }         by the routing prefix of each cluster
//! ```
//!
//! A client takes the routers of its own cluster: those of the default routing prefix, `--route-prefix` of its routers.
//! A router of another cluster would delete the keys there.

use super::{
    error::ConfigurationError,
    json_cursor::Node,
    transport::{ADDRESS_FORMS, split_address},
};
use crate::{Address, RoutingPrefix};

/// The most routers of a cluster. Each is a peer of all others, so a cluster has far fewer.
const ROUTERS_MAX: usize = 1_000;

const A_LIST: &str = "a list of routers, such as [\"host:port\"], or an object with a list for each routing prefix";

/// Parses the routers of the cluster with this default prefix; none if others are named alone.
pub(crate) fn parse_routers(node: &Node<'_>, prefix: &RoutingPrefix) -> Result<Vec<Address>, ConfigurationError> {
    if !node.is_object() {
        return parse_list(node);
    }
    let (mut own, mut known) = (Vec::new(), Vec::new());
    for (name, list) in node.object(A_LIST)?.entries() {
        let cluster = RoutingPrefix::parse(name).map_err(|error| list.error(error.to_string()))?;
        if known.contains(&cluster) {
            return Err(list.error(format!("{cluster} is given twice: expected each routing prefix once")));
        }
        let routers = parse_list(&list)?;
        if cluster == *prefix {
            own = routers;
        }
        known.push(cluster);
    }
    Ok(own)
}

fn parse_list(node: &Node<'_>) -> Result<Vec<Address>, ConfigurationError> {
    let found = node.array(A_LIST)?.len();
    if found == 0 {
        return Err(node.error("the list of routers is empty: expected one, or no \"routers\""));
    }
    if found > ROUTERS_MAX {
        return Err(node.error(format!("{found} routers: expected at most {ROUTERS_MAX}")));
    }
    let mut routers: Vec<Address> = Vec::with_capacity(found);
    let parsed = node.parse_elements(A_LIST, |node| {
        let router = parse_router(node)?;
        if routers.contains(&router) {
            return Err(node.error(format!("{router} is given twice: expected each router once")));
        }
        routers.push(router);
        Ok(())
    });
    parsed.map(|_| routers)
}

fn parse_router(node: &Node<'_>) -> Result<Address, ConfigurationError> {
    let text = node.string("a router as \"host:port\"")?;
    let refused = |why: &str| node.error(format!("{text:?} is not a router: {why}; expected {ADDRESS_FORMS}"));
    match split_address(text, None).map_err(refused)? {
        (address, words) if words.is_empty() => Ok(address),
        _ => Err(refused("protocol and security are the client's to choose")),
    }
}
