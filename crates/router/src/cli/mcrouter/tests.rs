//! The rules of mcrouter's command line, and the table of its flags in the documents.

use super::flags::{Effect, FLAGS, ValueKind, range_of};
use super::shown::{LINE_CHARS_MAX, WORD_CHARS_MAX};
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
fn a_word_without_a_flag_is_a_file_of_options_that_the_line_overrides() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let options = r#"{ "options": { "server_timeout": 300, "route_prefix": "/r/web/", "async_dir": "/spool",
        "enable_flush_cmd": "1", "allow_only_gets": true, "fibers_stack_size": "9000", "stats_root": "/s",
        "max_preprocessed_config_history": 3 } }"#;
    let flavor = file("web.json", options);
    let done = |words: &[&str]| translate(words.iter().map(OsString::from), &Options::command(), 6);
    let words = |words: &[&str]| {
        let mut words: Vec<_> = done(words).expect("accepted").words.into_iter().collect();
        words.sort();
        words
    };
    let expected = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let all = [
        "--allow-only-gets",
        "--enable-flush-cmd",
        "--route-prefix=/r/web/",
        "--server-timeout=300",
        "--spool=/spool",
        "--stats-root=/s",
    ];
    assert_eq!(words(&[&flavor]), expected(&all));
    let overridden = ["-t", "7", &flavor, "-a", "/other", "--enable-flush-cmd=0", "--stats-root="];
    let some = ["--allow-only-gets", "--route-prefix=/r/web/", "--server-timeout=7", "--spool=/other"];
    assert_eq!(words(&overridden), expected(&some));
    let found = done(&[&flavor]).expect("accepted");
    assert!(found.notes.iter().any(|note| note.contains("--fibers-stack-size")), "{:?}", found.notes);
    assert_eq!(found.without_effect["fibers-stack-size"], "9000");
    assert_eq!((found.flavor.as_deref(), &*found.shown), (Some("web"), &*flavor));

    let standalone =
        r#"{ "standalone_options": { "port": "5000,5001" }, "libmcrouter_options": { "route_prefix": "/a/b/" } }"#;
    file("web-standalone.json", standalone);
    let parsed = Options::from_words(None, [&*flavor, "-p", "7"].map(OsString::from)).expect("parses");
    assert_eq!((&*parsed.routes.route_prefix, &*parsed.listen.ports), ("/a/b/", &[7][..]), "the line's ports alone");
    assert_eq!(parsed.router_name(), "web");
    let parsed = Options::from_words(None, [OsString::from(&flavor)]).expect("parses");
    assert_eq!(*parsed.listen.ports, [5000, 5001]);

    for (name, text, why) in [
        ("config.json", r#"{ "pools": {} }"#, "a configuration is given with -f"),
        ("broken.json", "{ broken", "line 1"),
        ("list.json", r#"{ "options": { "port": [1] } }"#, "expected text, a number"),
        ("access.json", r#"{ "options": { "acl_checker_enforce": "1" } }"#, "restricts access"),
    ] {
        let path = file(name, text);
        assert!(translated(&[&path]).is_err_and(|error| error.contains(why)), "{name}");
    }
    assert!(translated(&["flavor.json"]).is_err_and(|why| why.contains("flavor.json")));
    assert!(translated(&[&flavor, &flavor]).is_err_and(|why| why.contains("already")));
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

/// A unit file that turns something off by an empty text ended with status 3, since no path may be empty here.
#[test]
fn an_empty_text_is_the_default() {
    let texts = FLAGS.iter().filter(|flag| flag.value == ValueKind::Text && matches!(flag.effect, Effect::Own(_)));
    let mut tried = 0;
    for flag in texts {
        let name = format!("--{}", flag.name);
        let mut lines = vec![vec![format!("{name}=")], vec![name.clone(), String::new()]];
        lines.push(vec![format!("{name}=7"), format!("{name}=")]);
        lines.extend(flag.short.map(|short| vec![format!("-{short}"), String::new()]));
        for line in lines {
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            assert_words(&line, &[]);
            assert_words(&[&line[..], &[&format!("{name}=8")]].concat(), &own_words(flag.effect, "8"));
            Options::from_words(None, line.iter().map(OsString::from))
                .unwrap_or_else(|why| panic!("{line:?}: {why:?}"));
        }
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
    // A file of users that is given, and empty, is not taken for none.
    assert!(Options::from_words(None, [OsString::from("--auth-file=")]).is_err());
}

fn own_words(effect: Effect<'_>, value: &str) -> Vec<&'static str> {
    let Effect::Own(own) = effect else { panic!("{effect:?} is no argument") };
    vec![format!("--{own}={value}").leak()]
}

#[test]
fn a_number_beyond_what_is_possible_is_replaced() {
    assert_logged(&["--keepalive-interval=99999"], &["--keepalive-interval=32767"], "32767 is used");
    assert_logged(&["--target-max-pending-requests", "0"], &["--target-max-pending=1"], "1 is used");
    assert_logged(
        &["--big-value-split-threshold=2000000000"],
        &["--big-value-split-threshold=1073741824"],
        "expected 0 to 1073741824; 1073741824 is used",
    );
    assert_logged(&["--proxy-threads", "5000"], &["--num-proxies=1024"], "1024 is used");
    assert_logged(&["--timeouts-until-tko", "0"], &["--timeouts-until-tko=1"], "1 is used");
    assert_logged(&["--client-timeout=-1"], &[], "the default stays");
    // mcrouter does not start either.
    for strict in ["--server-timeout=0", "--keepalive-count=-1", "--keepalive-interval=0", "--keepalive-idle=-3"] {
        assert_words(&[strict], &[strict]);
        assert!(Options::from_words(None, [OsString::from(strict)]).is_err(), "{strict}");
    }
}

#[test]
fn the_table_of_ranges_has_what_the_arguments_accept() {
    let accepts = |own: &str, number: i128| {
        let words = [OsString::from("lookaside-router"), format!("--{own}={number}").into()];
        Options::command().try_get_matches_from(words).is_ok()
    };
    for flag in FLAGS.iter().filter(|flag| flag.value == ValueKind::Integer) {
        let Effect::Own(own) = flag.effect else { continue };
        let Some((first, last)) = range_of(own) else {
            assert!(["listen-sock-fd", "keepalive-idle"].contains(&own), "--{own} has no range");
            continue;
        };
        let (first, last) = (i128::from(first), i128::from(last));
        assert!(accepts(own, first) && accepts(own, last), "--{own}: {first} to {last}");
        assert!(!accepts(own, first - 1), "--{own} {}", first - 1);
        assert!(last == i128::from(i64::MAX) || !accepts(own, last + 1), "--{own} {}", last + 1);
    }
}

#[test]
fn the_line_that_is_shown_has_no_secret() {
    for words in [
        &["--etcd-password", "hunter2", "-p1"][..],
        &["--etcd-password=hunter2"],
        &["--etcd-pass=hunter2"],
        &["--etcd-passwd", "hunter2"],
        &["--etcd-passwd=hunter2"],
        &["-xhunter2"],
        &["-x", "hunter2"],
        &["--config", "etcd://ops:hunter2@h:1/k"],
        &["--config=etcds://ops:hunter2@h/k"],
        &["--config=etcd//ops:hunter2@h/k"],
        &["-fetcd://ops:hunter2@h/k"],
        &["--config-str", r#"{"hunter2": 1}"#],
        &["--config-str= {\"hunter2\": \"@import(a)\"}"],
        &["--log-path", "etcd://ops:hun@hunter2@h/k"],
    ] {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let done = translate(words.clone(), &Options::command(), 6).expect("it is accepted");
        assert!(!done.shown.contains("hunter2") && done.shown.contains("..."), "{words:?}: {}", done.shown);
        assert!(!format!("{:?}", done.notes).contains("hunter2"), "{words:?}: {:?}", done.notes);
        let Ok(options) = Options::from_words(None, words) else { continue };
        assert_eq!(options.command_line, done.shown);
    }
    let shown = |words: &[&str]| translate(words.iter().map(OsString::from), &Options::command(), 6).map(|it| it.shown);
    assert_eq!(shown(&["-p1", "-f", "a\nb", "-t", "7"]).as_deref(), Ok("-p1 -f a b -t 7"));
    assert_eq!(
        shown(&["--config=etcd://ops:x@h/k", "--etcd-password", "x"]).as_deref(),
        Ok("--config=etcd://...@h/k --etcd-password ...")
    );
    assert!(translated(&["etcd://ops:hunter2@h/k"]).is_err_and(|why| !why.contains("hunter2")));
}

#[test]
fn the_line_that_is_shown_is_bounded() {
    let name = "n".repeat(LINE_CHARS_MAX);
    let words: Vec<OsString> = (0..100).map(|_| format!("--service-name={name}").into()).collect();
    let shown = translate(words, &Options::command(), 6).expect("it is accepted").shown;
    assert!((LINE_CHARS_MAX..=LINE_CHARS_MAX + 3).contains(&shown.len()), "{}", shown.len());
    assert_eq!(shown.find("..."), Some(WORD_CHARS_MAX));
}

/// A configuration may use `%mcr_opts-OPTION%` with any name of mcrouter's.
#[test]
fn every_flag_is_an_option_with_its_value() {
    let options =
        |words: &[&str]| Options::from_words(None, words.iter().map(OsString::from)).expect("parses").as_given;
    let value = |options: &[(String, String)], name: &str| {
        let found: Vec<_> = options.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect();
        assert!(found.len() < 2, "{name}: {found:?}");
        found.into_iter().next()
    };
    let default = options(&[]);
    for flag in FLAGS.iter().filter(|flag| flag.name.len() > 1 && !["help", "version"].contains(&flag.name)) {
        let name = flag.name.replace('-', "_");
        assert!(value(&default, &name).is_some(), "{name}");
    }
    let given = options(&[
        "--listen-addresses=10.0.0.1",
        "--target-max-pending-requests=9",
        "-a/spool",
        "--fibers-stack-size",
        "9000",
        "--use-thrift=0",
        "--thread-affinity",
        "--fibers-stack-size=9001",
    ]);
    for (name, expected_default, expected) in [
        ("listen_addresses", "", "10.0.0.1"),
        ("target_max_pending_requests", "100000", "9"),
        ("async_dir", "", "/spool"),
        ("stats_root", "", ""),
        ("retry_timeout", "1000", "1000"),
        ("fibers_stack_size", "24576", "9001"),
        ("use_thrift", "false", "false"),
        ("thread_affinity", "false", "true"),
        ("server_ssl_service_identity", "memcache", "memcache"),
    ] {
        assert_eq!(value(&default, name).as_deref(), Some(expected_default), "{name}");
        assert_eq!(value(&given, name).as_deref(), Some(expected), "{name}");
    }
    let constants =
        Options::from_words(None, [OsString::from("-p1")]).expect("parses").macro_constants(7).expect("good");
    assert!(constants.contains_key("mcr_opts-listen_addresses") && constants.contains_key("mcr_opts-use_thrift"));
}
