//! Logs a line for each request and its outcome.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the target, or answered as by an empty cache if there is none; then a line `verb key: result, N bytes` |
//!
//! The bytes are those of the reply's value. Keys are logged, with unprintable bytes escaped; values are not. A caller
//! that is dropped before the reply leaves no line.

use crate::{
    Batch, BoxFuture, Context, NullRoute, Outcome, Outcomes, Route,
    configuration::{Handle, Keys, RouteConfig, RouteType, TreeBuilder},
    environment::Log,
    outcome::verb,
};
use bytes::Bytes;
use lookaside_protocol::{Reply, Request};
use std::sync::Arc;

/// A child whose requests are logged.
pub struct LoggingRoute {
    target: Arc<dyn Route>,
    log: Arc<dyn Log>,
}

impl LoggingRoute {
    /// Sends requests to `target` and writes lines to `log`.
    pub fn new(target: Option<Arc<dyn Route>>, log: Arc<dyn Log>) -> Self {
        LoggingRoute { target: target.unwrap_or_else(|| Arc::new(NullRoute)), log }
    }

    /// The description of a `LoggingRoute` over `target`.
    pub(crate) fn handle(target: Handle) -> Handle {
        Handle::route(Config { target: Some(target) })
    }

    async fn route_and_log(&self, batch: Batch, context: &Context) -> Outcomes {
        let descriptions: Vec<String> = batch.iter().map(describe).collect();
        let outcomes = self.target.route(batch, context).await;
        for (description, outcome) in descriptions.iter().zip(&outcomes) {
            self.log.line(&format!("{description}: {}, {} bytes", result(outcome), value_bytes(outcome)));
        }
        outcomes
    }
}

impl Route for LoggingRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.route_and_log(batch, context))
    }
}

fn describe(request: &Request<Bytes>) -> String {
    format!("{} {}", verb(request).name(), request.key.escape_ascii())
}

fn result(outcome: &Outcome) -> String {
    match outcome {
        Ok(Reply::Value { .. }) => "value".to_owned(),
        Ok(Reply::Lease { token, .. }) if token.is_held() => "miss with a lease".to_owned(),
        Ok(Reply::Lease { .. }) => "hot miss".to_owned(),
        Ok(Reply::Meta(meta)) => format!("{:?}", meta.status).to_lowercase(),
        Ok(Reply::Error(error)) => format!("error: {error}"),
        Ok(reply) => format!("{reply:?}").to_lowercase(),
        Err(failure) => format!("failure: {failure}"),
    }
}

fn value_bytes(outcome: &Outcome) -> usize {
    let value = match outcome {
        Ok(Reply::Value { value, .. } | Reply::Lease { stale: Some(value), .. }) => Some(value),
        Ok(Reply::Meta(meta)) => meta.value.as_ref(),
        _ => None,
    };
    value.map_or(0, Bytes::len)
}

pub(crate) const TYPE: RouteType = RouteType::new("LoggingRoute", |object, parser| {
    object.check(&Keys::known(&["type", "name", "target"]))?;
    Ok(Handle::route(Config { target: parser.optional(object, "target") }))
})
.with_short_form(|node, argument, parser| {
    let target = argument.map(|text| parser.short_handle(node, text)).transpose()?;
    Ok(Some(Handle::route(Config { target })))
});

#[derive(Debug, PartialEq)]
struct Config {
    target: Option<Handle>,
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let target = tree.build_optional(&self.target);
        Arc::new(LoggingRoute::new(target, tree.environment().log.clone()))
    }
}
