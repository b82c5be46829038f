//! Replies to every request with an error; no server is asked.
//!
//! | verb | reply |
//! |---|---|
//! | all | `SERVER_ERROR`, or `CLIENT_ERROR` where the result is one, and the text from the configuration |
//!
//! A failover route above goes on after the error if that is one of its `failover_errors`: `result` says which error it
//! is, `local_error` by default. Without a text of its own the reply has the name of the result.
//!
//! Requests are logged, at most one in [`LOG_INTERVAL`].

use crate::{
    Batch, BoxFuture, Clock, Context, Environment, FailoverError, Failure, Log, Outcome, Outcomes, Route, Verb,
    configuration::{ConfigurationError, Handle, Keys, Node, RouteConfig, RouteType, TreeBuilder, suggestion},
    split::ready_outcomes,
};
use lookaside_protocol::{ErrorReply, Reply};
use lookaside_sync::Mutex;
use std::{sync::Arc, time::Duration};

/// The shortest time between two lines of the log.
pub const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Refuses requests with a text.
pub struct ErrorRoute {
    outcome: Outcome,
    log: Option<RefusalLog>,
}

struct RefusalLog {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    /// The refused requests that no line has counted, and when the next line may be written.
    state: Mutex<(u64, Duration)>,
}

impl ErrorRoute {
    /// Refuses with `text`, for a failover as a `local_error`. Control characters, which would end the line early,
    /// become spaces.
    pub fn new(text: &str) -> Self {
        Self::with_result(text, &RESULTS[0])
    }

    fn with_result(text: &str, result: &ErrorResult) -> Self {
        let text = if text.is_empty() { result.text } else { text };
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let outcome = match result.effect {
            Effect::Client => Ok(Reply::Error(ErrorReply::Client(line.into()))),
            Effect::Failure(error) => Err(Failure::Refused { text: line.into(), error }),
        };
        ErrorRoute { outcome, log: None }
    }

    /// Logs refused requests.
    #[must_use]
    pub fn with_log(self, environment: &Environment) -> Self {
        let (log, clock) = (environment.log.clone(), environment.clock.clone());
        ErrorRoute { log: Some(RefusalLog { log, clock, state: Mutex::default() }), ..self }
    }
}

impl RefusalLog {
    /// Counts a batch that is refused.
    fn add(&self, batch: &Batch, outcome: &Outcome) {
        let Some(first) = batch.first() else { return };
        let now = self.clock.now();
        let mut state = self.state.lock();
        let (requests, next_at) = &mut *state;
        *requests += batch.len() as u64;
        if now >= *next_at {
            let text = match outcome {
                Err(failure) => failure.to_string(),
                Ok(_) => "a client's error".to_owned(),
            };
            let verb = Verb::of(&first.operation).name();
            self.log.line(&format!("ErrorRoute refused {requests} requests, a {verb} among them: {text}"));
            (*requests, *next_at) = (0, now + LOG_INTERVAL);
        }
    }
}

impl Route for ErrorRoute {
    fn route<'a>(&'a self, batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if let Some(log) = &self.log {
            log.add(&batch, &self.outcome);
        }
        ready_outcomes(vec![self.outcome.clone(); batch.len()])
    }
}

/// A value of `result`.
struct ErrorResult {
    /// Without `mc_res_`.
    name: &'static str,
    /// The text of the error without a `response`.
    text: &'static str,
    effect: Effect,
}

#[derive(Clone, Copy)]
enum Effect {
    /// `CLIENT_ERROR`, which never fails over.
    Client,
    /// `SERVER_ERROR`; a failover goes on if it counts this error.
    Failure(Option<FailoverError>),
}

const fn failure(name: &'static str, text: &'static str, error: Option<FailoverError>) -> ErrorResult {
    ErrorResult { name, text, effect: Effect::Failure(error) }
}

const fn client(name: &'static str, text: &'static str) -> ErrorResult {
    ErrorResult { name, text, effect: Effect::Client }
}

/// The default first.
const RESULTS: &[ErrorResult] = &[
    failure("local_error", "local error", Some(FailoverError::LocalError)),
    failure("aborted", "aborted", None),
    client("bad_cas_id", "bad cas id"),
    client("bad_command", "bad command"),
    client("bad_exptime", "bad exptime"),
    client("bad_flags", "bad flags"),
    client("bad_key", "bad key"),
    client("bad_lease_id", "bad lease id"),
    failure("bad_value", "bad value", None),
    failure("busy", "307 busy", Some(FailoverError::Busy)),
    client("client_error", "client error"),
    failure("connect_error", "connection error", Some(FailoverError::ConnectError)),
    failure("connect_timeout", "connection timeout", Some(FailoverError::ConnectTimeout)),
    failure("deadline_exceeded", "request deadline exceeded", Some(FailoverError::DeadlineExceeded)),
    failure("ooo", "out of order", None),
    failure("remote_error", "remote error", Some(FailoverError::RemoteError)),
    failure("shutdown", "301 shutdown", Some(FailoverError::Shutdown)),
    failure("timeout", "timeout", Some(FailoverError::Timeout)),
    failure("tko", "unavailable", Some(FailoverError::Tko)),
    failure("try_again", "302 try again", Some(FailoverError::TryAgain)),
    failure("unknown", "unknown result", None),
];

fn parse_result(node: &Node<'_>) -> Result<&'static ErrorResult, ConfigurationError> {
    let name = node.string("a result, such as \"mc_res_timeout\"")?;
    let found = name.strip_prefix("mc_res_").and_then(|name| RESULTS.iter().find(|result| result.name == name));
    found.ok_or_else(|| {
        let known: Vec<String> = RESULTS.iter().map(|result| format!("mc_res_{}", result.name)).collect();
        node.error(format!("{name:?} is no error{}", suggestion(name, "results", known.iter().map(String::as_str))))
    })
}

pub(crate) const TYPE: RouteType = RouteType::new("ErrorRoute", |object, _| {
    object.check(&Keys::known(&["type", "name", "response", "result", "enable_logging"]))?;
    let response = object.get("response").map_or(Ok(""), |node| node.string("the text of the error"))?;
    Ok(Handle::route(ErrorRouteConfig {
        response: response.to_owned(),
        result: object.get("result").map_or(Ok(RESULTS[0].name), |node| parse_result(&node).map(|found| found.name))?,
        is_logged: object.get("enable_logging").map_or(Ok(true), |node| node.boolean())?,
    }))
})
.with_short_form(|_, argument, _| Ok(Some(Handle::route(ErrorRouteConfig::new(argument.unwrap_or_default())))));

/// The route in the place of one that has no children: `name` says which.
pub(crate) fn no_children(name: &str) -> Handle {
    Handle::route(ErrorRouteConfig::new(&format!("HashRoute with empty children, name: {name}")))
}

/// The arguments of an [`ErrorRoute`].
#[derive(Debug, PartialEq)]
pub struct ErrorRouteConfig {
    /// The text of the error; empty for that of the result.
    pub response: String,
    /// The name of the result, one of [`RESULTS`].
    result: &'static str,
    is_logged: bool,
}

impl ErrorRouteConfig {
    fn new(response: &str) -> Self {
        ErrorRouteConfig { response: response.to_owned(), result: RESULTS[0].name, is_logged: true }
    }
}

impl RouteConfig for ErrorRouteConfig {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn label(&self) -> String {
        match &*self.response {
            "" => self.name().to_owned(),
            response => format!("{}|{response}", self.name()),
        }
    }

    fn mcrouter_names(&self) -> Vec<String> {
        let logged = if self.is_logged { "log" } else { "no-log" };
        let response = if self.response.is_empty() { String::new() } else { format!("|{}", self.response) };
        vec![format!("error|{logged}|mc_res_{}{response}", self.result)]
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let result = RESULTS.iter().find(|result| result.name == self.result).expect("the parser takes no other name");
        let route = ErrorRoute::with_result(&self.response, result);
        Arc::new(if self.is_logged { route.with_log(tree.environment()) } else { route })
    }
}
