//! Replies to every request with an error; no server is asked.
//!
//! | verb | reply |
//! |---|---|
//! | all | `SERVER_ERROR` and the text from the configuration |

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::{Handle, Keys, RouteConfig, RouteType, TreeBuilder},
    split::ready_outcomes,
};
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, Reply};
use std::sync::Arc;

/// Refuses requests with a text.
pub struct ErrorRoute {
    response: Bytes,
}

impl ErrorRoute {
    /// Refuses with `response`. Control characters, which would end the line early, become spaces.
    pub fn new(response: &str) -> Self {
        let line: String = response.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        ErrorRoute { response: line.into() }
    }
}

impl Route for ErrorRoute {
    fn route<'a>(&'a self, batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let refusal = || Ok(Reply::Error(ErrorReply::Server(self.response.clone())));
        ready_outcomes(batch.iter().map(|_| refusal()).collect())
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("ErrorRoute", |object, _| {
    object.check(&Keys::known(&["type", "name", "response"]).ignoring(&["enable_logging", "result"]))?;
    let response = object.get("response").map_or(Ok(""), |node| node.string("the text of the error"))?;
    Ok(Handle::route(ErrorRouteConfig { response: response.to_owned() }))
})
.with_short_form(|_, argument, _| {
    Ok(Some(Handle::route(ErrorRouteConfig { response: argument.unwrap_or_default().to_owned() })))
});

/// The arguments of an [`ErrorRoute`].
#[derive(Debug, PartialEq)]
pub struct ErrorRouteConfig {
    /// The text of the error.
    pub response: String,
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

    fn build(&self, _: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(ErrorRoute::new(&self.response))
    }
}
