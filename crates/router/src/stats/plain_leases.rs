//! What is counted of leases that the router takes for clients that know none.

use lookaside_routing::LeaseClients;

/// Name, HELP text and value of each counter.
pub(crate) fn counts(clients: &LeaseClients) -> [(&'static str, &'static str, u64); 11] {
    let counters = &clients.counters;
    [
        ("plain_lease_tokens", "Lease tokens remembered for clients that know no leases.", counters.tokens.value()),
        (
            "plain_lease_hot_misses",
            "Misses of such clients while another client held the token, after the wait.",
            counters.hot_misses.value(),
        ),
        (
            "plain_lease_hot_hits",
            "Misses of such clients that another client's fill ended while they were held back.",
            counters.hot_hits.value(),
        ),
        (
            "plain_lease_stale_hits",
            "Misses of such clients that were answered by a stale value.",
            counters.stale_hits.value(),
        ),
        (
            "plain_lease_sets_stored",
            "Sets of such clients stored under the token of their miss.",
            counters.stored.value(),
        ),
        (
            "plain_lease_sets_refused",
            "Sets of such clients refused because a delete or another set came after their miss, or it had no token.",
            counters.refused.value(),
        ),
        (
            "plain_lease_unleased_passed",
            "Sets without a miss on their connection that were passed on: old values among them are stored.",
            counters.unleased_passed.value(),
        ),
        (
            "plain_lease_unleased_refused",
            "Sets without a miss on their connection that were refused.",
            counters.unleased_refused.value(),
        ),
        (
            "plain_lease_unleased_added",
            "Sets without a miss on their connection that were passed on as add.",
            counters.unleased_added.value(),
        ),
        (
            "plain_lease_misses_expired",
            "Remembered misses that were forgotten because no set came.",
            counters.misses_expired.value(),
        ),
        (
            "plain_lease_misses_dropped",
            "Misses that there was no space for: nothing is filled over their connections for a while.",
            counters.misses_dropped.value(),
        ),
    ]
}
