//! Routes across clusters: from a key's routing prefix to the trees of one cluster, of a region, or of all.

pub(crate) mod root_route;
pub(crate) mod routing_prefix;
