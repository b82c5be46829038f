//! Writes a line for each request and what came of it.
//!
//! | verb | effect |
//! |---|---|
//! | all | handed on to the target, or answered as by an empty cache without one; then a line `verb key: outcome` |
//!
//! Values are not logged, keys are, with what is not printable escaped. A caller that goes away before the answer
//! leaves no line.

use crate::{Batch, BoxFuture, Context, NullRoute, Outcome, Outcomes, Route, environment::Log, outcome::verb};
use bytes::Bytes;
use lookaside_protocol::{Reply, Request};
use std::sync::Arc;

/// A child that is written down.
pub struct LoggingRoute {
    target: Arc<dyn Route>,
    log: Arc<dyn Log>,
}

impl LoggingRoute {
    /// Hands requests on to `target` and writes to `log`.
    pub fn new(target: Option<Arc<dyn Route>>, log: Arc<dyn Log>) -> Self {
        LoggingRoute { target: target.unwrap_or_else(|| Arc::new(NullRoute)), log }
    }

    async fn log(&self, batch: Batch, context: &Context) -> Outcomes {
        let about: Vec<String> = batch.iter().map(said).collect();
        let outcomes = self.target.route(batch, context).await;
        for (about, outcome) in about.iter().zip(&outcomes) {
            self.log.line(&format!("{about}: {}", summary(outcome)));
        }
        outcomes
    }
}

impl Route for LoggingRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.log(batch, context))
    }
}

fn said(request: &Request<Bytes>) -> String {
    format!("{} {}", verb(request).name(), request.key.escape_ascii())
}

fn summary(outcome: &Outcome) -> String {
    match outcome {
        Ok(Reply::Value { value, .. }) => format!("value of {} bytes", value.len()),
        Ok(Reply::Lease { token, .. }) if token.is_held() => "miss with a lease".to_owned(),
        Ok(Reply::Lease { .. }) => "hot miss".to_owned(),
        Ok(Reply::Meta(meta)) => format!("{:?}", meta.status).to_lowercase(),
        Ok(reply) => format!("{reply:?}").to_lowercase(),
        Err(failure) => format!("failure: {failure}"),
    }
}
