//! Macros: their expansion, by the resulting servers and names, and the full error messages for bad ones.

use lookaside_routing::{
    AllSyncRouteConfig, Configuration, Defaults, ErrorRouteConfig, MacroConstant, MacroInputs, PoolEntries,
    PoolRouteConfig,
};
use std::collections::BTreeMap;

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
        Some(PoolRouteConfig { entries: PoolEntries { pool, .. }, .. }) => {
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
        ("\"@if(true,a)\"", "line 9, column 10, at route: @if is called without its \"is_false\""),
        ("\"@not(a,b)\"", "line 9, column 10, at route: @not is given 2 arguments: expected at most 1 (A)"),
        ("\"@fail(no such tier)\"", "line 9, column 10, at route: no such tier"),
        ("\"@import(a.json)\"", "line 9, column 10, at route: @import(a.json): there are no files here"),
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
        ("\"@int(x)\"", "line 9, column 10, at route: @int: expected a whole number, found the string \"x\""),
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
        ("7", "line 1, column 12, at macros: expected an object with a macro for each name, found the number 7"),
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
             \"pool\": \"%p%\", \"hash\": 1}}}},\n\"outer\": {{\"type\": \"macroDef\",\n\"result\": [\"@inner(A)\", \"%x%\"]}}}},\n\
             \"pools\": {{\"A\": {{\"servers\": [\"a:1\"]}}}},\n\"route\": {route}}}"
        )
    };
    assert_eq!(
        read(&text("{\"type\": \"AllSyncRoute\",\n\"children\": [\"@inner(A)\"]}")).unwrap_err(),
        "line 3, column 56, at route.children[0].hash: expected a hash function's name, or an object with \"hash_func\", \
         found the number 1; in the macro \"inner\", called on line 8",
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

/// The value that a call gives, as JSON.
fn value_of(call: &str, inputs: &MacroInputs<'_>) -> Result<String, String> {
    let text = format!(
        r#"{{"macros": {{"l": {{"type": "constDef", "result": [3, 1, 2]}},
        "o": {{"type": "constDef", "result": {{"a": 1, "b": 2}}}}}}, "x": {call}}}"#
    );
    let expanded = Configuration::expand_macros_with(&text, inputs).map_err(|error| error.to_string())?;
    Ok(expanded.strip_prefix(r#"{"x":"#).and_then(|rest| rest.strip_suffix('}')).expect("one key").to_owned())
}

#[test]
fn functions_give_values() {
    for (call, expected) in [
        (r#""@int(7)""#, "7"),
        (r#""@int(7.9)""#, "7"),
        (r#""@double(7)""#, "7.0"),
        (r#""@bool(true)""#, "true"),
        (r#""@str(@int(7))""#, r#""7""#),
        (
            r#"["@isArray(%l%)", "@isObject(%o%)", "@isString(a)", "@isInt(@int(1))", "@isDouble(@double(1))"]"#,
            "[true,true,true,true,true]",
        ),
        (
            r#"["@isArray(a)", "@isObject(%l%)", "@isString(%l%)", "@isInt(1)", "@isDouble(@int(1))", "@isBool(@not(true))"]"#,
            "[false,false,false,false,false,true]",
        ),
        (r#"["@add(1,2)", "@sub(1,2)", "@mul(2,3)", "@div(7,2)", "@mod(7,2)", "@add(0.5,1)"]"#, "[3,-1,6,3,1,1.5]"),
        (
            r#"["@equals(1,1.0)", "@equals(a,b)", "@less(9,10)", "@less(b,a)", "@not(false)"]"#,
            "[true,false,true,false,true]",
        ),
        (
            r#"["@and(false,@fail(x))", "@or(true,@fail(x))", "@if(true,a,@fail(x))", "@if(false,@fail(x),b)"]"#,
            r#"[false,true,"a","b"]"#,
        ),
        (
            r#"["@bitwiseAnd(6,3)", "@bitwiseOr(6,3)", "@bitwiseXor(6,3)", "@bitwiseNot(0)", "@bitwiseLeftShift(1,4)", "@bitwiseRightShift(16,2)"]"#,
            "[2,7,5,-1,16,4]",
        ),
        (
            r#"["@keys(%o%)", "@values(%o%)", "@size(%l%)", "@size(abc)", "@empty(%o%)"]"#,
            r#"[["a","b"],[1,2],3,3,false]"#,
        ),
        (
            r#"["@contains(%o%,a)", "@contains(%o%,c)", "@contains(abc,bc)", "@contains(%l%,@int(3))"]"#,
            "[true,false,true,true]",
        ),
        (r#"["@select(%o%,b)", "@select(%l%,-1)", "@select(%o%,c,none)"]"#, r#"[2,2,"none"]"#),
        (r#"["@set(%o%,b,x)", "@set(%l%,0,x)"]"#, r#"[{"a":1,"b":"x"},["x",1,2]]"#),
        (r#"["@merge(%l%,%l%)", "@merge(a,b,c)"]"#, r#"[[3,1,2,3,1,2],"abc"]"#),
        (r#"{"type": "merge", "params": ["%o%", {"b": 3}]}"#, r#"{"a":1,"b":3}"#),
        (
            r#"["@slice(%l%,0,1)", "@slice(abcd,1,2)", "@slice(%o%,a,a)", "@slice(%l%,-1,9)"]"#,
            r#"[[3,1],"bc",{"a":1},[2]]"#,
        ),
        (r#"["@split(a:b,:)", "@range(2,4)", "@range(2,1)", "@sort(%l%)"]"#, r#"[["a","b"],[2,3,4],[],[1,2,3]]"#),
        (r#"["@defined(l)", "@defined(none)"]"#, "[true,false]"),
        (r#"{"type": "define", "result": "%l%"}"#, "[3,1,2]"),
        (
            r#"{"type": "transform", "dictionary": "%o%", "itemTransform": "@add(%item%,1)", "keyTransform": "k-%key%"}"#,
            r#"{"k-a":2,"k-b":3}"#,
        ),
        (
            r#"{"type": "transform", "dictionary": "%l%", "itemTransform": "%x%%key%", "itemName": "x"}"#,
            r#"["30","11","22"]"#,
        ),
        (r#"{"type": "process", "initialValue": 0, "transform": "@add(%value%,%item%)", "dictionary": "%l%"}"#, "6"),
        (r#"{"type": "foreach", "from": "%l%", "where": "@less(%item%,3)", "use": "s%item%"}"#, r#"["s1","s2"]"#),
        (r#"{"type": "foreach", "from": "%o%", "top": 1}"#, r#"{"a":1}"#),
        (r#"{"type": "foreach", "from": "%l%", "where": "@less(%item%,0)", "noMatchResult": "none"}"#, r#""none""#),
        (
            r#"{"vars": {"v": "@merge(%w%,x)", "w": "y"}, "k": ["%v%", {"vars": {"w": "z"}, "l": "%w%"}]}"#,
            r#"{"k":["yx",{"l":"z"}]}"#,
        ),
    ] {
        assert_eq!(value_of(call, &MacroInputs::NONE).as_deref(), Ok(expected), "{call}");
    }
    for (call, why) in [
        (r#""@div(1,0)""#, "no such result"),
        (r#""@add(a,1)""#, "expected a number, found the string"),
        (r#""@select(%o%,c)""#, "no default"),
        (r#""@select(%l%,3)""#, "no default"),
        (r#""@range(0,100000000)""#, "too many"),
        (r#""@split(a,)""#, "delimiter is empty"),
        (r#""%v%""#, "%v% is not defined"),
    ] {
        assert!(value_of(call, &MacroInputs::NONE).is_err_and(|error| error.contains(why)), "{call}");
    }
}

#[test]
fn choices_by_hash_depend_on_the_value_alone() {
    let shuffled = value_of(r#""@shuffle(@range(1,20),1)""#, &MacroInputs::NONE).unwrap();
    assert_eq!(value_of(r#""@shuffle(@range(1,20),1)""#, &MacroInputs::NONE).as_ref(), Ok(&shuffled));
    assert_ne!(value_of(r#""@shuffle(@range(1,20),2)""#, &MacroInputs::NONE).as_ref(), Ok(&shuffled));
    assert_eq!(value_of(r#""@sort(@shuffle(@range(1,4)))""#, &MacroInputs::NONE).as_deref(), Ok("[1,2,3,4]"));
    assert_eq!(value_of(r#""@equals(@hash(a),@hash(a))""#, &MacroInputs::NONE).as_deref(), Ok("true"));
    let chosen = r#"{"type": "weightedHash", "dictionary": {"a": 0, "b": 1}, "key": "k"}"#;
    assert_eq!(value_of(chosen, &MacroInputs::NONE).as_deref(), Ok(r#""b""#));
}

/// They choose other servers than before the switch from mcrouter.
#[test]
fn functions_that_differ_from_mcrouters_give_one_warning_each() {
    let pool = r#"{ "servers": { "type": "shuffle", "dictionary": ["a:1", "b:1"] }, "server_timeout": TIMEOUT }"#;
    let text = format!(
        r#"{{ "pools": {{ "A": {}, "B": {} }}, "route": "PoolRoute|A" }}"#,
        pool.replace("TIMEOUT", r#""@add(100,@mod(@hash(a),10))""#),
        pool.replace("TIMEOUT", "100"),
    );
    let warnings = read(&text).unwrap_or_else(|error| panic!("{error}")).warnings;
    let found: Vec<_> = warnings.iter().map(|it| (&*it.path, it.message.split(' ').next().unwrap())).collect();
    assert_eq!(found, [("pools.A.servers", "@shuffle"), ("pools.A.server_timeout", "@hash")]);
    assert!(warnings[0].message.contains("other results than mcrouter's"));
}

#[test]
fn inputs_give_constants_files_and_addresses() {
    let constants = BTreeMap::from([
        ("tier".to_owned(), MacroConstant::Text("web".to_owned())),
        ("hostid".to_owned(), MacroConstant::Number(5)),
    ]);
    let import = |path: &str| match path {
        "a.json" => Ok(r#"{"in": "@add(%hostid%,1)", /* nested */ "also": "@import(file:b.json)"}"#.to_owned()),
        "b.json" => Ok("[1, ]".to_owned()),
        "broken.json" => Ok("[".to_owned()),
        _ => Err("no such file".to_owned()),
    };
    let inputs = MacroInputs { constants: &constants, import: &import, is_local_ip: &|ip| ip == "10.0.0.1" };
    for (value, expected) in [
        (r#""%tier%-%hostid%""#, r#""web-5""#),
        (r#""%hostid%""#, "5"),
        (r#""@import(file:a.json)""#, r#"{"in":6,"also":[1]}"#),
        (r#""@import(none.json,default)""#, r#""default""#),
        (r#"["@isLocalIp(10.0.0.1)", "@isLocalIp(10.0.0.2)", "@defined(tier)"]"#, "[true,false,true]"),
    ] {
        assert_eq!(value_of(value, &inputs).as_deref(), Ok(expected), "{value}");
    }
    for (value, why) in
        [("@import(none.json)", "no such file"), ("@import(broken.json)", "@import(broken.json): line 1")]
    {
        assert!(value_of(&format!("{value:?}"), &inputs).is_err_and(|error| error.contains(why)), "{value}");
    }
}

#[test]
fn macros_may_be_a_list_or_a_call_and_parameters_optional() {
    let text = r#"{
        "macros": [
            {"both": {"type": "macroDef", "params": ["a", {"name": "b", "optional": true}],
                      "result": {"type": "if", "condition": "@defined(b)", "is_true": "%a%%b%", "is_false": "%a%"}}},
            {"one": {"type": "constDef", "result": "1"}}
        ],
        "x": ["@both(%one%)", "@both(%one%,2)"]
    }"#;
    assert_eq!(Configuration::expand_macros(text).unwrap(), r#"{"x":["1","12"]}"#);
    let import = |_: &str| Ok(r#"{"two": {"type": "constDef", "result": 2}}"#.to_owned());
    let inputs = MacroInputs { import: &import, ..MacroInputs::NONE };
    let text = r#"{"macros": "@import(macros.json)", "x": "%two%"}"#;
    assert_eq!(Configuration::expand_macros_with(text, &inputs).unwrap(), r#"{"x":2}"#);
}
