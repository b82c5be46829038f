//! Macros: their expansion, by the resulting servers and names, and the full error messages for bad ones.

use lookaside_routing::{AllSyncRouteConfig, Configuration, Defaults, ErrorRouteConfig, PoolRouteConfig};

fn read(text: &str) -> Result<Configuration, String> {
    Configuration::parse(text, &Defaults::default()).map_err(|error| error.to_string())
}

/// The expansion of `value` with these macros, as the text of an `ErrorRoute`.
fn expand(macros: &str, value: &str) -> String {
    let text = format!(r#"{{"macros": {macros}, "route": {{"type": "ErrorRoute", "response": {value}}}}}"#);
    let handle = read(&text).unwrap_or_else(|error| panic!("{error}")).trees.remove(0).1;
    let config: &ErrorRouteConfig = handle.config().unwrap_or_else(|| panic!("{handle:?}"));
    config.response.clone()
}

const NAMES: &str = r#"{
    "full": { "type": "macroDef", "params": ["first", { "name": "last", "default": "Doe" }], "result": "%first% %last%" },
    "twice": { "type": "macroDef", "params": ["x"], "result": "@full(%x%,%x%)" },
    "five": { "type": "constDef", "result": 5 },
    "me": { "type": "constDef", "result": "@full(Ann,%five%)" },
    "none": { "type": "macroDef", "result": "nothing" }
}"#;

#[test]
fn calls_names_and_escapes_are_expanded() {
    for (written, expected) in [
        (r#""@full(John,Doe)""#, "John Doe"),
        (r#""@full( John , Smith )""#, "John Smith"),
        (r#""@full(John)""#, "John Doe"),
        (r#""@full(@full(a,b),@twice(c))""#, "a b c c"),
        (r#""@full(a (b, c),d)""#, "a (b, c) d"),
        (r#""@full(a\\,b,c\\)\\()""#, "a,b c)("),
        (r#"{"type": "full", "first": "A"}"#, "A Doe"),
        (r#"{"type": "full", "last": "@none()", "first": "%me%"}"#, "Ann 5 nothing"),
        (r#""@twice(%five%)""#, "5 5"),
        (r#""%me%""#, "Ann 5"),
        (r#""<%me%> %five%%five%""#, "<Ann 5> 55"),
        (r#""a@b 50\\% \\\\ \\@x \\x""#, r"a@b 50% \ @x x"),
        (r#""\\@full(a,b)""#, "@full(a,b)"),
        (r#""@str(7)""#, "7"),
    ] {
        assert_eq!(expand(NAMES, written), expected, "{written}");
    }
}

#[test]
fn a_macro_can_produce_any_value_and_any_key() {
    let configuration = read(
        r#"{
          "macros": {
            "pool": { "type": "macroDef", "params": ["host", "timeout", "keep"],
                      "result": { "servers": ["%host%:1", "%host%:2"], "server_timeout": "@int(%timeout%)",
                                  "keep_routing_prefix": "@bool(%keep%)" } },
            "main": { "type": "constDef", "result": "A" }
          },
          "pools": { "%main%": "@pool(h,25,true)", "B": { "type": "pool", "host": "i", "timeout": 30, "keep": false } },
          "route": { "type": "AllSyncRoute", "children": ["PoolRoute|%main%", "PoolRoute|B"] }
        }"#,
    )
    .unwrap();
    let all_sync: &AllSyncRouteConfig = configuration.trees[0].1.config().expect("an AllSyncRoute");
    let pools = all_sync.children.iter().map(|child| match child.config() {
        Some(PoolRouteConfig { pool, .. }) => {
            let servers: Vec<String> = pool.servers.iter().map(ToString::to_string).collect();
            (pool.name.clone(), servers.join(" "), pool.settings.server_timeout_ms, pool.keep_routing_prefix)
        }
        None => panic!("{child:?}"),
    });
    let expected = [("A", "h:1 h:2", 25, true), ("B", "i:1 i:2", 30, false)];
    let expected = expected.map(|(name, servers, timeout, keep)| (name.to_owned(), servers.to_owned(), timeout, keep));
    assert_eq!(pools.collect::<Vec<_>>(), expected);
}

/// The route of a configuration with `NAMES` on line 2 and the route on line 9.
fn refusal(route: &str) -> String {
    read(&format!("{{\"macros\":\n{NAMES},\n\"route\": {route}}}")).expect_err(route)
}

#[test]
fn a_bad_call_is_refused_at_its_place() {
    for (route, expected) in [
        (
            r#""@ful(a)""#,
            "line 9, column 10, at route: no macro is named \"ful\"; did you mean \"full\"? Known macros: bool, full, int, \
             none, str, twice",
        ),
        (
            "\"@full\"",
            "line 9, column 10, at route: \"@full\" is not a call: expected @name(arguments), or \\\\@ for a literal \"@\"",
        ),
        (
            "\"@full(a\"",
            "line 9, column 10, at route: \"@full(a\" is not a call: expected @name(arguments), or \\\\@ for a literal \"@\"",
        ),
        (
            "\"@full(a))\"",
            "line 9, column 10, at route: \"@full(a))\" has unbalanced brackets: expected \\\\( for a literal bracket",
        ),
        (
            "\"@full(a,b,c)\"",
            "line 9, column 10, at route: @full is given 3 arguments: expected at most 2 (first, last)",
        ),
        ("[\"@twice()\"]", "line 9, column 11, at route[0]: the macro \"twice\" is called without its \"x\""),
        (
            r#"{"type": "full", "name": "x"}"#,
            "line 9, column 10, at route: the macro \"full\" has no parameter \"name\"; known parameters: first, last",
        ),
        ("\"@five()\"", "line 9, column 10, at route: \"five\" is a constant: expected %five%"),
        ("\"@merge(a)\"", "line 9, column 10, at route: mcrouter's @merge is not supported"),
        (
            "\"%fiv%\"",
            "line 9, column 10, at route: %fiv% is not defined; did you mean \"five\"? Known names: five, me; a literal \"%\" \
             is written \\\\%",
        ),
        (
            "\"50%\"",
            "line 9, column 10, at route: \"50%\" has a \"%\" without a second one: expected %name%, or \\\\% for a literal one",
        ),
        (r#""a\\""#, "line 9, column 10, at route: \"a\\\\\" ends in a backslash: expected a character"),
        ("\"@int(x)\"", "line 9, column 10, at route: @int(x) is not valid: expected a whole number"),
        (
            "{\"type\": \"%five%\"}",
            "line 5, column 45, at route.type: expected the route's type, found the number 5; in the macro \"five\", called on \
             line 9",
        ),
    ] {
        assert_eq!(refusal(route), expected, "{route}");
    }
}

#[test]
fn a_bad_macro_is_refused_at_its_place() {
    for (macros, expected) in [
        ("[]", "line 1, column 12, at macros: expected an object with a macro for each name, found a list"),
        (
            "{\"a\": 1}",
            "line 1, column 18, at macros.a: expected a macro: an object with \"type\" and \"result\", found the number 1",
        ),
        ("{\"a\": {\"result\": 1}}", "line 1, column 18, at macros.a: expected \"type\": \"macroDef\" or \"constDef\""),
        (
            "{\"a\": {\"type\": \"constDef\"}}",
            "line 1, column 18, at macros.a: \"result\" is missing: expected the result of the macro",
        ),
        (
            "{\"a\": {\"type\": \"constDef\", \"params\": [], \"result\": 1}}",
            "line 1, column 49, at macros.a: a constant has no \"params\": expected a \"macroDef\"",
        ),
        (
            "{\"a\": {\"type\": \"macroDef\", \"param\": [], \"result\": 1}}",
            "line 1, column 48, at macros.a: nothing is named \"param\" here; did you mean \"params\"? Known keys: params, result, type",
        ),
        (
            "{\"a\": {\"type\": \"macroDef\", \"params\": [1], \"result\": 1}}",
            "line 1, column 50, at macros.a: expected a parameter: its name, or an object with \"name\" and \"default\", found \
             the number 1",
        ),
        (
            "{\"a\": {\"type\": \"macroDef\", \"params\": [\"x\", \"x\"], \"result\": 1}}",
            "line 1, column 55, at macros.a: two parameters are named \"x\": expected each name once",
        ),
        (
            "{\"int\": {\"type\": \"constDef\", \"result\": 1}}",
            "line 1, column 20, at macros.int: there are two macros \"int\": expected each name once",
        ),
    ] {
        let text = format!("{{\"macros\": {macros}, \"route\": \"NullRoute\"}}");
        assert_eq!(read(&text).unwrap_err(), expected, "{macros}");
    }
    let twice = "{\"macros\": {}, \"route\": \"NullRoute\",\n\"macros\": {}}";
    assert_eq!(read(twice).unwrap_err(), "line 2, column 1, at macros: \"macros\" is given twice, first on line 1");
}

#[test]
fn an_error_in_a_macro_is_reported_with_its_calls() {
    let text = |route: &str| {
        format!(
            "{{\"macros\": {{\n\"inner\": {{\"type\": \"macroDef\", \"params\": [\"p\"],\n\"result\": {{\"type\": \"PoolRoute\", \
             \"pool\": \"%p%\", \"hsh\": 1}}}},\n\"outer\": {{\"type\": \"macroDef\",\n\"result\": [\"@inner(A)\", \"%x%\"]}}}},\n\
             \"pools\": {{\"A\": {{\"servers\": [\"a:1\"]}}}},\n\"route\": {route}}}"
        )
    };
    assert_eq!(
        read(&text("{\"type\": \"AllSyncRoute\",\n\"children\": [\"@inner(A)\"]}")).unwrap_err(),
        "line 3, column 48, at route.children[0].hsh: nothing is named \"hsh\" here; did you mean \"hash\"? Known keys: \
         asynclog, hash, max_outstanding, name, pool, rates, shadows, slow_warmup, type; in the macro \"inner\", called on line 8",
    );
    assert_eq!(
        read(&text("{\"type\": \"AllSyncRoute\",\n\"children\": \"@outer()\"}")).unwrap_err(),
        "line 5, column 25, at route.children[1]: %x% is not defined; known names: none; a literal \"%\" is written \\\\%; \
         in the macro \"outer\", called on line 8",
    );
}

/// Both would otherwise exhaust the stack or the memory.
#[test]
fn the_expansion_of_macros_is_bounded() {
    let error = expansion_error(r#"{ "a": { "type": "constDef", "result": ["%a%"] } }"#, r#""%a%""#);
    assert!(error.contains("more than 300 nested values and calls: expected fewer; in the macro \"a\""), "{error}");
    assert!(error.len() < 1_500 && error.contains("calls more"), "{} bytes: {error}", error.len());

    let doubled: Vec<String> = (1..40)
        .map(|n| format!(r#""a{n}": {{ "type": "constDef", "result": ["%a{}%", "%a{}%"] }}"#, n - 1, n - 1))
        .collect();
    let macros = format!(r#"{{ "a0": {{ "type": "constDef", "result": "x" }}, {} }}"#, doubled.join(", "));
    let error = expansion_error(&macros, r#""%a39%""#);
    assert!(error.contains("macros expand to more than 4194304 bytes: expected less"), "{error}");

    let longer: Vec<String> = (1..60)
        .map(|n| format!(r#""a{n}": {{ "type": "macroDef", "params": ["x"], "result": "@a{}(%x%%x%)" }}"#, n - 1))
        .collect();
    let macros =
        format!(r#"{{ "a0": {{ "type": "macroDef", "params": ["x"], "result": "%x%" }}, {} }}"#, longer.join(", "));
    let error = expansion_error(&macros, r#""@a59(xxxxxxxx)""#);
    assert!(error.contains("macros expand to more than 4194304 bytes: expected less"), "{error}");
}

fn expansion_error(macros: &str, value: &str) -> String {
    read(&format!(r#"{{"macros": {macros}, "route": {value}}}"#)).expect_err("a bad configuration")
}
