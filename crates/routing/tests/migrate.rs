//! Migration between two clusters. Which servers are asked, and what is returned.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, ask};
use lookaside_routing::{Failure, MigrateRoute};
use std::time::Duration;

const TIMEOUT: Failure = Failure::TimedOut;

#[tokio::test]
async fn a_migration_deletes_on_both_sides_around_the_switch() {
    for (at, of_get, of_delete) in [
        (0, "from", "from"),
        (99, "from", "from"),
        (100, "from", "both"),
        (109, "from", "both"),
        (110, "to", "both"),
        (119, "to", "both"),
        (120, "to", "to"),
        (9_999, "to", "to"),
    ] {
        let (env, from, to) = (FakeEnvironment::new(), Fake::hit("from"), Fake::failing("to", TIMEOUT));
        let route = MigrateRoute::new(from.leaf(), to.leaf(), 100, 10, env.clone());
        env.advance(Duration::from_secs(at));
        for verb in VERBS {
            let outcomes = ask(&route, &[&format!("{verb} k")]).await;
            let asked = match (from.asked().len(), to.asked().len()) {
                (1, 0) => "from",
                (0, 1) => "to",
                (1, 1) => "both",
                other => panic!("{other:?}"),
            };
            assert_eq!(asked, if verb == "delete" { of_delete } else { of_get }, "{verb} at {at}");
            assert_eq!(outcomes[0] == "server timed out", asked != "from", "{verb} at {at}: {outcomes:?}");
        }
        let batch = ["get a", "delete a", "get a", "set b", "delete b"];
        assert_eq!(ask(&route, &batch).await.len(), 5);
        if of_get == "from" {
            assert_eq!(from.asked(), ["get a", "delete a", "get a", "set b 0", "delete b"], "in order");
        }
    }
}
