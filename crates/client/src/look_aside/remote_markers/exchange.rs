//! A dialogue with the regional pool as a state machine without I/O: it says what to send, and gets the outcomes.

use super::super::client::Client;
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{Batch, Outcome};

/// The steps for one key. They are bounded: each exchange ends after a few.
pub(super) trait Exchange {
    /// The requests to send now; empty when it is over. In what order they are executed does not matter.
    fn requests(&self) -> Vec<Request<Bytes>>;

    /// Takes the outcomes of these requests, in their order.
    fn receive(&mut self, outcomes: Vec<Outcome>);
}

/// Runs exchanges to their end, the requests of all in one batch each time.
pub(super) async fn run(pool: &Client, exchanges: &mut [impl Exchange]) {
    loop {
        let requests: Vec<_> = exchanges.iter().map(Exchange::requests).collect();
        let counts: Vec<usize> = requests.iter().map(Vec::len).collect();
        let batch: Batch = requests.into_iter().flatten().collect();
        if batch.is_empty() {
            return;
        }
        let mut outcomes = pool.send(batch).await.into_iter();
        for (exchange, count) in exchanges.iter_mut().zip(counts) {
            if count > 0 {
                exchange.receive(outcomes.by_ref().take(count).collect());
            }
        }
    }
}
