//! The rules of mcrouter's command line, and the table of its flags in the documents.

use super::flags::{Effect, FLAGS, ValueKind};
use super::translate;
use crate::cli::Options;
use clap::CommandFactory as _;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;

/// The words for clap and the lines for the log.
fn translated(words: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
    let done = translate(words.iter().map(OsString::from), &Options::command(), 6)?;
    Ok((done.words.into_iter().map(|word| word.into_string().expect("UTF-8")).collect(), done.notes))
}

#[track_caller]
fn assert_words(words: &[&str], expected: &[&str]) {
    let (found, notes) = translated(words).expect("it is accepted");
    assert_eq!(found, expected, "{words:?}");
    assert!(notes.is_empty(), "{words:?}: {notes:?}");
}

#[track_caller]
fn assert_logged(words: &[&str], expected: &[&str], note: &str) {
    let (found, notes) = translated(words).expect("it is accepted");
    assert_eq!(found, expected, "{words:?}");
    assert!(matches!(&*notes, [only] if only.contains(note)), "{words:?}: {notes:?}");
}

#[test]
fn values_are_written_in_four_ways() {
    for port in [&["-p1"][..], &["-p", "1"], &["--port=1"], &["--port", "1"]] {
        assert_words(port, &["--port=1"]);
    }
    assert_words(&["--listen-sock-fd", "-1"], &["--listen-sock-fd=-1"]);
    assert_words(&["-f", "/a b"], &["--config-file=/a b"]);
    assert_words(&["--num-proxies", "%CPU_CORES%"], &["--num-proxies=6"]);
    assert_words(&["-s", "/run/r"], &["--unix-domain-sock=/run/r"]);
    assert_words(&["-f", "--take-over"], &["--take-over", "--config-file"]);
}

#[test]
fn long_names_may_be_shortened() {
    assert_words(&["--route-pre", "/a/b/"], &["--route-prefix=/a/b/"]);
    assert_words(&["--config-f=a"], &["--config-file=a"]);
    assert_words(&["--spool-fs=never"], &["--spool-fsync=never"]);
    assert_logged(&["--keepalive", "3", "-p1"], &["--port=1"], "Unrecognized option: --keepalive");
}

#[test]
fn a_toggle_is_set_by_its_name_or_a_value() {
    for on in ["--enable-flush-cmd", "--enable-flush-cmd=1", "--enable-flush-cmd=true"] {
        assert_words(&[on], &["--enable-flush-cmd"]);
    }
    for off in ["--enable-flush-cmd=0", "--enable-flush-cmd=false"] {
        assert_words(&[off], &[]);
    }
    assert_words(&["--asynclog-disable", "--asynclog-disable=0"], &[]);
    assert_logged(&["--enable-flush-cmd=maybe"], &[], "maybe");
    assert_words(&["--leases=1"], &["--leases"]);
}

#[test]
fn the_level_of_the_log_is_a_number_or_letters() {
    for words in [&["-vv"][..], &["-v2"], &["-v", "2"], &["-v", "-v"], &["--verbosity=2"], &["--verbosity", "2"]] {
        assert_words(words, &["--verbosity=2"]);
    }
    assert_words(&["-v", "3", "-p1"], &["--verbosity=3", "--port=1"]);
    assert_words(&["--verbose", "-p1"], &["--verbosity=1", "--port=1"]);
}

#[test]
fn a_value_that_is_no_number_is_logged() {
    assert_logged(&["--server-timeout", "soon", "-p1"], &["--port=1"], "--server-timeout soon");
}

#[test]
fn an_unknown_flag_is_logged_with_its_value() {
    for words in [&["--frobnicate"][..], &["--frobnicate", "7"], &["--frobnicate=7"], &["-x", "7"], &["-x7"]] {
        let name = if words[0].starts_with("--") { "--frobnicate" } else { "-x" };
        assert_logged(&[words, &["-p1"]].concat(), &["--port=1"], &format!("Unrecognized option: {name}"));
    }
    assert_logged(&["--server-timeuot=9"], &[], "did you mean --server-timeout?");
}

#[test]
fn flags_without_effect_are_logged_unless_they_ask_for_what_is_so() {
    assert_logged(&["--fibers-stack-size", "9000"], &[], "--fibers-stack-size has no effect");
    assert_logged(&["--use-thrift"], &[], "--use-thrift is not supported");
    assert_words(&["--use-thrift=0"], &[]);
    assert_words(&["--ssl-verify-peers"], &[]);
}

#[test]
fn flags_that_restrict_access_are_never_ignored() {
    for words in [
        "--acl-checker-enforce",
        "--acl-checker-enf",
        "--ssl-service-identity-authorization-enforce=1",
        "--key-client-binding-enable",
        "--prefix-acl-checker-enforce",
        // Perhaps of a later release.
        "--acl-something-new",
        "--tls-something-enforce",
        // Typing errors.
        "--alow-only-gets",
        "--auth-fiel=users",
        "--ssl-require-peer-cert5",
        "--acl-checker-enforcee",
        // Neither on nor off.
        "--ssl-require-peer-certs=yes",
    ] {
        let refusal = translated(&[words]).expect_err(words);
        assert!(refusal.contains("restrict") || refusal.contains("expected"), "{words}: {refusal}");
    }
    assert_words(&["--acl-checker-enforce=0"], &[]);
}

#[test]
fn a_word_without_a_flag_is_refused() {
    assert!(translated(&["flavor.json"]).is_err_and(|why| why.contains("flavor.json")));
}

#[test]
fn the_table_has_each_name_once_in_order_and_arguments_that_exist() {
    let names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    let shorts: Vec<char> = FLAGS.iter().filter_map(|flag| flag.short).collect();
    assert_eq!(shorts.iter().collect::<BTreeSet<_>>().len(), shorts.len(), "{shorts:?}");
    let mut command = Options::command();
    command.build();
    for flag in FLAGS {
        let Effect::Own(own) = flag.effect else { continue };
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(own));
        let argument = argument.unwrap_or_else(|| panic!("--{}: there is no --{own}", flag.name));
        let takes_value = argument.get_action().takes_values();
        assert_eq!(takes_value, flag.value != ValueKind::Toggle, "--{own}");
    }
    for argument in command.get_arguments() {
        let (Some(short), Some(long)) = (argument.get_short(), argument.get_long()) else { continue };
        if let Some(flag) = FLAGS.iter().find(|flag| flag.short == Some(short)) {
            assert_eq!(flag.effect, Effect::Own(long), "-{short}");
        }
    }
}

/// The rows of the table in docs/from_mcrouter.md.
fn document_rows() -> String {
    let mut rows = String::new();
    for flag in FLAGS {
        let short = flag.short.map(|short| format!("-{short} ")).unwrap_or_default();
        let effect = match flag.effect {
            Effect::Own(own) if own == flag.name => "supported".to_owned(),
            Effect::Own(own) => format!("supported: `--{own}`"),
            Effect::Same(why) => format!("accepted: {why}"),
            Effect::Useless(why) => format!("accepted, without effect: {why}"),
            Effect::Missing(what) => format!("accepted, not supported: {what}"),
            Effect::Refused(why) => format!("refused: {why}"),
        };
        writeln!(rows, "| `{short}--{}` | {effect} |", flag.name).expect("a string grows");
    }
    rows
}

#[test]
fn the_document_has_the_table() {
    let page = include_str!("../../../../../docs/from_mcrouter.md");
    let rows = document_rows();
    assert!(page.contains(&rows), "docs/from_mcrouter.md must have these rows:\n{rows}");
}
