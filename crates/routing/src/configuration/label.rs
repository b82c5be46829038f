//! What a node of the tree is called when a person asks which way a key takes. No request passes here.

use super::Handle;

impl Handle {
    /// The route's name as configurations spell it, with the pool or the answer that sets it apart: `PoolRoute|main`.
    /// For [`Handle::Named`], which only refers to another, and for a server it is the name in the list of children.
    pub fn label(&self) -> String {
        let name = match self {
            Handle::Pool { pool, .. } => return format!("PoolRoute|{}", pool.name),
            Handle::SaltedFailover { pool, .. } => return format!("SaltedFailoverRoute|{}", pool.name),
            Handle::Server { pool, server } => return format!("Pool|{}[{server}]", pool.name),
            Handle::Error { response } if !response.is_empty() => return format!("ErrorRoute|{response}"),
            Handle::Hash { .. } => "HashRoute",
            Handle::Failover { .. } => "FailoverRoute",
            Handle::FailoverWithExptime { .. } => "FailoverWithExptimeRoute",
            Handle::AllSync { .. } => "AllSyncRoute",
            Handle::PrefixSelector { .. } => "PrefixSelectorRoute",
            Handle::OperationSelector { .. } => "OperationSelectorRoute",
            Handle::ModifyExptime { .. } => "ModifyExptimeRoute",
            Handle::AllAsync { .. } => "AllAsyncRoute",
            Handle::AllFastest { .. } => "AllFastestRoute",
            Handle::AllInitial { .. } => "AllInitialRoute",
            Handle::AllMajority { .. } => "AllMajorityRoute",
            Handle::MissFailover { .. } => "MissFailoverRoute",
            Handle::Random { .. } => "RandomRoute",
            Handle::HostId { .. } => "HostIdRoute",
            Handle::OriginalClientHash { .. } => "OriginalClientHashRoute",
            Handle::Latest { .. } => "LatestRoute",
            Handle::ModifyKey { .. } => "ModifyKeyRoute",
            Handle::KeySplit { .. } => "KeySplitRoute",
            Handle::L1L2Cache { .. } => "L1L2CacheRoute",
            Handle::Migrate { .. } => "MigrateRoute",
            Handle::WarmUp { .. } => "WarmUpRoute",
            Handle::Shadowed { .. } => "ShadowRoute",
            Handle::OutstandingLimit { .. } => "OutstandingLimitRoute",
            Handle::RateLimit { .. } => "RateLimitRoute",
            Handle::LatencyInjection { .. } => "LatencyInjectionRoute",
            Handle::Logging { .. } => "LoggingRoute",
            Handle::BigValue { .. } => "BigValueRoute",
            Handle::Staging { .. } => "StagingRoute",
            Handle::DevNull => "DevNullRoute",
            Handle::Null => "NullRoute",
            Handle::Error { .. } => "ErrorRoute",
            Handle::Named(_) => "named handle",
        };
        name.to_owned()
    }
}
