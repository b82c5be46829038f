//! Properties of random configurations: parsing returns a tree, or an error with a place in the file and a reason.

use lookaside_routing::{Configuration, Defaults};
use proptest::prelude::*;

const GOOD: &str = r#"{
  "macros": { "two": { "type": "macroDef", "params": ["host", {"name": "port", "default": "1"}],
                       "result": ["%host%.1:%port%", "%host%.2:%port%"] },
              "limit": { "type": "constDef", "result": "@int(250)" } },
  "pools": { "A": { "servers": ["10.0.0.1:1", "[::1]:2:ascii"], "server_timeout": "%limit%" },
             "B": { "servers": "@two(b\\(x\\),5)" }, "C": { "inherit": "B", "servers": { "type": "two", "host": "c" } } },
  "named_handles": [ { "name": "reads", "type": "FailoverWithExptimeRoute", "normal": "PoolRoute|A",
                       "failover": ["Pool|B", "x"], "failover_errors": { "deletes": [] } } ],
  "routes": [ { "aliases": ["/././"], "route": { // comment
    "type": "OperationSelectorRoute", "default_policy": { "type": "BigValueRoute", "split_threshold": 9,
      "target": { "type": "SaltedFailoverRoute", "pool": "A", "hash": { "hash_func": "dalli", "weights": [1, 2] },
        "failover_policy": { "type": "DeterministicOrderPolicy", "max_tries": 2, "max_error_tries": 2, "exclude_errors": ["tko"] } } },
    "operation_policies": { "delete": { "type": "AllSyncRoute", "children": "Pool|A" } } } } ]
}"#;

/// Fragments of the language, to insert at random places.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "\"",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "/*",
            "//",
            "@two(",
            ")",
            "%host%",
            "%",
            "\\\\",
            "\"inherit\": \"C\",",
            "|",
            "Pool|",
            "PoolRoute|",
            "\"reads\"",
            "\"x\": 1,",
            "-1",
            "1e9",
            "null",
            "\\u0000",
            "\u{e4}",
            "\n",
        ])
        .prop_map(String::from),
        "\\PC{0,5}",
    ]
}

proptest! {
    #[test]
    fn every_text_is_parsed_or_refused(edits in prop::collection::vec((any::<prop::sample::Index>(), 0..20_usize, piece()), 1..4)) {
        let mut text: Vec<char> = GOOD.replace(", \"x\"", "").chars().collect();
        for (at, drop, piece) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + drop).min(text.len());
            text.splice(at..end, piece.chars());
        }
        let text: String = text.into_iter().collect();
        let refused = Configuration::parse(&text, &Defaults::default()).err();
        prop_assert!(refused.as_ref().is_none_or(|errors| (1..=20).contains(&errors.iter().count())));
        for error in refused.iter().flat_map(|errors| errors.iter()) {
            let line = text.split('\n').nth(error.line - 1);
            prop_assert!(line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&error.column)), "{}", error);
            prop_assert!(!error.message.is_empty());
        }
    }
}

#[test]
fn the_unedited_text_is_valid() {
    let good = GOOD.replace(", \"x\"", "");
    Configuration::parse(&good, &Defaults::default()).unwrap();
    let errors = Configuration::parse(GOOD, &Defaults::default()).unwrap_err();
    let places: Vec<_> = errors.iter().map(|error| (error.line, &*error.path)).collect();
    assert_eq!(places, [(8, "named_handles[0].failover[1]")]);
}
