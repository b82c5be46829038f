//! A type of route: its name, and how its arguments are parsed.
//!
//! | arguments | object form | short form |
//! |---|---|---|
//! | its own | parsed by the route's file | the same, if there is one |
//! | children only | `{"type": "T", "children": [...]}` | `T|child`, `T|Pool|A` |
//! | none | `{"type": "T"}` | `T` |

use super::{
    error::ConfigurationError,
    handle::{Handle, RouteConfig, TreeBuilder, hyphenated},
    json_cursor::{Keys, Node, Object},
    parser::Parser,
};
use crate::Route;
use std::sync::Arc;

pub(crate) struct RouteType {
    name: &'static str,
    alias: Option<&'static str>,
    /// As [`RouteConfig::mcrouter_name`], of a type without arguments of its own; `None` for the default.
    mcrouter_name: Option<&'static str>,
    arguments: Arguments,
    /// For a type whose object form may stand for several routes of a list.
    parse_list: Option<ParseList>,
}

enum Arguments {
    Own { parse: ParseObject, parse_short: Option<ParseShort> },
    Children(BuildRoute),
    None(BuildRoute),
}

/// Parses the object form, from its keys.
type ParseObject = for<'a> fn(&Object<'a>, &mut Parser<'a>) -> Result<Handle, ConfigurationError>;

/// Parses the object form where a list of routes is expected.
type ParseList = for<'a> fn(&Object<'a>, &mut Parser<'a>) -> Result<Vec<Handle>, ConfigurationError>;

/// Parses the short form, from the text behind the `|`, if any. Returns `None` if the type has no such form.
type ParseShort = for<'a> fn(&Node<'a>, Option<&str>, &mut Parser<'a>) -> Result<Option<Handle>, ConfigurationError>;

type BuildRoute = fn(&[Handle], &mut dyn TreeBuilder) -> Arc<dyn Route>;

impl RouteType {
    /// A type that is written as an object with `"type": name`.
    pub(crate) const fn new(name: &'static str, parse: ParseObject) -> RouteType {
        RouteType {
            name,
            alias: None,
            mcrouter_name: None,
            arguments: Arguments::Own { parse, parse_short: None },
            parse_list: None,
        }
    }

    /// A type with a list of children, at least one, and no other argument. It has a short form, too.
    pub(crate) const fn of_children(name: &'static str, build: BuildRoute) -> RouteType {
        RouteType { name, alias: None, mcrouter_name: None, arguments: Arguments::Children(build), parse_list: None }
    }

    /// A type without arguments. It has a short form, too. `build` gets no children.
    pub(crate) const fn without_arguments(name: &'static str, build: BuildRoute) -> RouteType {
        RouteType { name, alias: None, mcrouter_name: None, arguments: Arguments::None(build), parse_list: None }
    }

    /// Adds a short form to a type with arguments of its own.
    pub(crate) const fn with_short_form(self, parse_short: ParseShort) -> RouteType {
        match self.arguments {
            Arguments::Own { parse, .. } => {
                RouteType { arguments: Arguments::Own { parse, parse_short: Some(parse_short) }, ..self }
            }
            Arguments::Children(_) | Arguments::None(_) => panic!("the type has a short form"),
        }
    }

    pub(crate) const fn with_list(self, parse_list: ParseList) -> RouteType {
        RouteType { parse_list: Some(parse_list), ..self }
    }

    pub(crate) const fn with_alias(self, alias: &'static str) -> RouteType {
        RouteType { alias: Some(alias), ..self }
    }

    /// Gives a type without arguments of its own another name of mcrouter than the default.
    pub(crate) const fn with_mcrouter_name(self, name: &'static str) -> RouteType {
        assert!(!matches!(self.arguments, Arguments::Own { .. }), "its description has the name");
        RouteType { mcrouter_name: Some(name), ..self }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether `name` is a value of `"type"` for it.
    pub(super) fn accepts(&self, name: &str) -> bool {
        self.name == name || self.alias == Some(name)
    }

    pub(super) fn parse_object<'a>(
        &self,
        object: &Object<'a>,
        parser: &mut Parser<'a>,
    ) -> Result<Handle, ConfigurationError> {
        match self.arguments {
            Arguments::Own { parse, .. } => parse(object, parser),
            Arguments::Children(build) => Ok(self.handle(parser.only_children(object)?, build)),
            Arguments::None(build) => {
                object.check(&Keys::known(&["type", "name"]))?;
                Ok(self.handle(Vec::new(), build))
            }
        }
    }

    /// Parses the object form where a list of routes is expected; `None` if it is one route there, too.
    pub(super) fn parse_list<'a>(
        &self,
        object: &Object<'a>,
        parser: &mut Parser<'a>,
    ) -> Option<Result<Vec<Handle>, ConfigurationError>> {
        self.parse_list.map(|parse| parse(object, parser))
    }

    /// Parses the short form; `None` if the type has none with this argument.
    pub(super) fn parse_short_form<'a>(
        &self,
        node: &Node<'a>,
        argument: Option<&str>,
        parser: &mut Parser<'a>,
    ) -> Result<Option<Handle>, ConfigurationError> {
        match self.arguments {
            Arguments::Own { parse_short, .. } => parse_short.map_or(Ok(None), |parse| parse(node, argument, parser)),
            Arguments::Children(build) => {
                let children = parser.short_children(node, argument)?;
                Ok(children.map(|children| self.handle(children, build)))
            }
            Arguments::None(build) => Ok(argument.is_none().then(|| self.handle(Vec::new(), build))),
        }
    }

    /// The description of a route of a type without arguments.
    ///
    /// # Panics
    /// If the type has arguments.
    pub(crate) fn handle_without_arguments(&self) -> Handle {
        match self.arguments {
            Arguments::None(build) => self.handle(Vec::new(), build),
            _ => panic!("{} has arguments", self.name),
        }
    }

    fn handle(&self, children: Vec<Handle>, build: BuildRoute) -> Handle {
        Handle::route(ChildrenConfig { name: self.name, mcrouter_name: self.mcrouter_name, children, build })
    }
}

/// The children of a route that has no other argument.
#[derive(Debug)]
struct ChildrenConfig {
    name: &'static str,
    /// `None` for the default.
    mcrouter_name: Option<&'static str>,
    children: Vec<Handle>,
    build: BuildRoute,
}

/// The name stands for the function: the address of a function is not unique.
impl PartialEq for ChildrenConfig {
    fn eq(&self, other: &Self) -> bool {
        (self.name, &self.children) == (other.name, &other.children)
    }
}

impl RouteConfig for ChildrenConfig {
    fn name(&self) -> &'static str {
        self.name
    }

    fn mcrouter_name(&self) -> String {
        self.mcrouter_name.map_or_else(|| hyphenated(self.name), str::to_owned)
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        (self.build)(&self.children, tree)
    }
}
