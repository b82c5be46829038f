//! Tests of the command line.

use super::as_given::options_as_given;
use super::*;
use crate::frontend::listen::Endpoint;
use crate::spool::Fsync;
use lookaside_client::WindowSettings;
use lookaside_client::config::Source;
use lookaside_routing::Security;
use std::path::Path;

fn parse(arguments: &[&str]) -> Result<Options, UsageError> {
    Options::from_words(None, arguments.iter().map(OsString::from))
}

#[test]
fn the_command_line_is_well_formed() {
    Options::command().debug_assert();
}

#[test]
fn one_source_of_configuration_is_required_and_config_overrides_the_others() {
    let source = |arguments: &[&str]| parse(arguments).expect("parses").configuration.source();
    assert!(source(&[]).is_err_and(|why| why.contains("-f PATH")));
    assert!(source(&["-f", "a.json", "--config-str", "{}"]).is_err_and(|why| why.contains("both")));
    assert_eq!(source(&["-f", "b.json", "--config", "file:a.json"]), Ok(Source::File("a.json".into())));
    assert_eq!(source(&["--config-str", "{}", "--config", "file:a.json"]), Ok(Source::File("a.json".into())));
    assert_eq!(source(&["-f", "a.json"]), Ok(Source::File("a.json".into())));
    assert_eq!(source(&["--config", "file:a.json"]), Ok(Source::File("a.json".into())));
    assert_eq!(source(&["--config-str", "{}"]), Ok(Source::Text("{}".into())));
    let etcd = source(&["--config", "etcd://a:1/k"]).map(|source| source.to_string());
    assert_eq!(etcd.as_deref(), Ok("etcd://a:1/k"));
    assert!(source(&["--config", "etcd://a:1"]).is_err_and(|why| why.contains("key is missing")));
    for option in ["-f", "--config"] {
        let why = source(&[option, "etdc://ops:secret@a:1/k"]).expect_err("mistyped");
        assert!(why.contains("...@a:1/k") && !why.contains("secret"), "{why}");
    }
    assert!(source(&["--config", "a.json"]).is_err_and(|why| why.contains("-f PATH")));
}

#[test]
fn the_history_is_beside_a_configuration_in_etcd_or_at_the_key_of_the_option() {
    let history = |arguments: &[&str]| {
        let configuration = parse(arguments).expect("parses").configuration;
        configuration.history(&configuration.source().expect("one source"))
    };
    let shown = |arguments: &[&str]| history(arguments).map(|found| found.map(|location| location.to_string()));
    let text = |text: &str| Ok(Some(text.to_owned()));
    assert_eq!(shown(&["-f", "a.json"]), Ok(None));
    assert_eq!(shown(&["--config", "etcd://a:1/k"]), text("etcd://a:1/k.history"));
    for source in [["-f", "a.json"], ["--config", "file:a.json"], ["--config-str", "{}"]] {
        let found = shown(&[source[0], source[1], "--config-history", "etcds://a:1,b/k.history"]);
        assert_eq!(found, text("etcds://a:1,b:2379/k.history"), "{source:?}");
    }
    let location = history(&["-f", "a.json", "--config-history", "etcd://ops@a:1/h", "--etcd-password", "secret"]);
    let user = location.expect("good").expect("there").user.expect("a user");
    assert_eq!((&*user.name, &*user.password), ("ops", "secret"));
    // It says what is so without it.
    let same = ["--config", "etcd://ops@a:1/k", "--config-history", "etcd://ops@a:1/k.history"];
    assert_eq!(shown(&same), text("etcd://a:1/k.history"));
    for other in ["etcd://ops@a:1/k", "etcd://a:1/k.history", "etcd://ops@b:1/k.history", "etcds://ops@a:1/k.history"] {
        let refused = shown(&["--config", "etcd://ops@a:1/k", "--config-history", other]);
        assert!(refused.as_ref().is_err_and(|why| why.contains("etcd://a:1/k.history for")), "{other}: {refused:?}");
    }
    for bad in ["file:a.json", "/a", "etdc://ops:secret@a:1/k", "etcd://ops:secret@a:1", "etcd://ops:secret@a:x/k"] {
        let why = shown(&["-f", "a.json", "--config-history", bad]).expect_err(bad);
        assert!(why.starts_with("--config-history") && !why.contains("secret"), "{bad}: {why}");
    }
}

#[test]
fn one_thread_by_default_and_one_per_core_on_request() {
    let threads = |more: &[&str]| parse(&[&["--config-str", "{}"], more].concat()).expect("parses").threads();
    assert_eq!((threads(&[]), threads(&["--num-proxies", "3"]), threads(&["--proxy-threads=2"])), (1, 3, 2));
    for all in [&["--num-proxies", "0"], &["--proxy-threads", "auto"], &["--num-proxies", "%CPU_CORES%"]] {
        assert_eq!(threads(all), cores(), "{all:?}");
    }
}

#[test]
fn connections_are_bounded_as_asked() {
    let bound = |value: &str| parse(&["--config-str", "{}", "--max-conns", value]).expect("parses").connections_max();
    assert_eq!((bound("0"), bound("7")), (usize::MAX, 7));
    assert!(bound("1") > 1, "1 stands for the limit on open files");
}

#[test]
fn connections_to_servers_are_made_when_they_are_needed() {
    let options = |more: &[&str]| parse(&[&["--config-str", "{}"], more].concat()).expect("parses").servers;
    assert!(!options(&[]).destination_options(false).connect_eagerly);
    assert!(options(&["--connect-ahead"]).destination_options(false).connect_eagerly);
    assert!(options(&[]).destination_options(true).connect_eagerly, "another process serves meanwhile");
    assert!(!options(&[]).destination_options(false).health.is_never_tko);
    assert!(options(&["--disable-tko-tracking"]).destination_options(false).health.is_never_tko);
    assert_eq!(options(&["-r", "77"]).destination_options(false).health.probe_initial_ms, 77);
    assert_eq!(options(&["--retry-timeout=78"]).destination_options(false).health.probe_initial_ms, 78);
}

#[test]
fn keepalive_has_mcrouters_short_flags() {
    let keepalive =
        |more: &[&str]| parse(&[&["--config-str", "{}"], more].concat()).map(|found| found.servers.keepalive());
    assert_eq!(keepalive(&["-I", "300"]).expect("parses"), None, "-K turns it on");
    let found = keepalive(&["-K", "3", "-i", "5", "-I", "7"]).expect("parses").expect("it is on");
    assert_eq!((found.probes, found.interval.as_secs(), found.idle.as_secs()), (3, 5, 7));
    for bad in [["-I", "0"], ["-i", "0"], ["-K", "-1"]] {
        assert!(keepalive(&bad).is_err(), "{bad:?}");
    }
    let Err(UsageError::Clap(error)) = parse(&["--config-str", "{}", "-I", "2000000"]) else { panic!("it is refused") };
    assert!(error.to_string().contains("--value-bytes-max"), "{error}");
}

#[test]
fn under_mcrouters_name_the_defaults_are_mcrouters() {
    let parse_as =
        |program: &str, words: &[&str]| Options::from_words(Some(program.as_ref()), words.iter().map(OsString::from));
    let figures = |options: &Options| {
        let addresses = options.listen.listeners(Default::default()).expect("good");
        let health = options.servers.destination_options(false).health;
        let probes = (health.probe_initial_ms, health.probe_max_ms);
        (format!("{:?}", addresses[0].endpoint), options.connections_max(), options.client_timeout, probes)
    };
    let at = |address: &str| format!("{:?}", Endpoint::Tcp { address: address.parse().expect("good"), choice: 0 });
    for program in ["mcrouter", "/usr/bin/mcrouter", "./mcrouter"] {
        let options = parse_as(program, &["-p", "7"]).expect("parses");
        assert_eq!(figures(&options), (at("0.0.0.0:7"), usize::MAX, 1_000, (10_000, 60_000)), "{program}");
        assert!(options.notes.iter().any(|note| note.contains("mcrouter's defaults")), "{:?}", options.notes);
        let given = ["-p7", "--listen-addresses=127.0.0.2", "--max-conns=9", "--client-timeout", "8", "-r", "6"];
        let options = parse_as(program, &given).expect("parses");
        assert_eq!(figures(&options), (at("127.0.0.2:7"), 9, 8, (6, 60_000)), "what is given is in force");
        let Err(UsageError::Refused(why)) = parse_as(program, &[]) else { panic!("mcrouter has no default port") };
        assert!(why.contains("--port"), "{why}");
        for words in [&["--ssl-port=7"][..], &["-s", "/r"], &["-l", "[::1]:7"], &["--validate-config"]] {
            assert!(parse_as(program, words).is_ok(), "{words:?}");
        }
        assert!(parse_as(program, &["--validate-config=run"]).is_err());
    }
    for program in ["lookaside-router", "/mcrouter/lookaside-router", "mcrouter2"] {
        let options = parse_as(program, &[]).expect("parses");
        assert_eq!(figures(&options), (at("127.0.0.1:5000"), CONNECTIONS_MAX, 60_000, (1_000, 5_000)), "{program}");
        assert!(options.notes.is_empty(), "{:?}", options.notes);
    }
}

#[test]
fn only_gets_refuses_flushes_too() {
    let settings = |more: &[&str]| parse(&[&["--config-str", "{}"], more].concat()).expect("parses").settings();
    assert!(settings(&["--enable-flush-cmd"]).flush_enabled);
    assert!(!settings(&["--enable-flush-cmd", "--allow-only-gets"]).flush_enabled);
}

#[test]
fn validation_exits_or_runs() {
    let found = |more: &[&str]| {
        parse(&[&["--config-str", "{}"], more].concat()).map(|found| found.configuration.validate_config)
    };
    assert_eq!(found(&[]).expect("parses"), None);
    assert_eq!(found(&["--validate-config"]).expect("parses"), Some(Validation::Exit));
    assert_eq!(found(&["--validate-config=exit"]).expect("parses"), Some(Validation::Exit));
    assert_eq!(found(&["--validate-config=run", "-p", "1"]).expect("parses"), Some(Validation::Run));
    assert!(found(&["--validate-config=maybe"]).is_err());
}

#[test]
fn options_as_given_contain_no_secret() {
    let command = Options::command();
    let history = "--config-history=etcd://a:secret@b/k.history";
    let config = "--config=etcd://a:secret@b/k";
    let arguments = ["lookaside-router", config, history, "--etcd-password", "secret", "-t", "7"];
    let given = options_as_given(&command.try_get_matches_from(arguments).expect("parses"));
    let value = |name: &str| given.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
    assert_eq!((value("server_timeout"), value("route_prefix")), (Some("7"), Some("/././")));
    assert_eq!((value("enable_flush_cmd"), value("config_str")), (Some("false"), None));
    assert_eq!((value("config"), value("etcd_password")), (Some("etcd://b:2379/k"), Some("(given)")));
    assert_eq!(value("config_history"), Some("etcd://b:2379/k.history"));
    assert!(!format!("{given:?}").contains("secret"), "{given:?}");
}

#[test]
fn macros_have_mcrouters_constants() {
    let constants = |more: &[&str]| {
        let found = parse(&[&["--config-str", "{}", "-R", "/east/web/"], more].concat()).expect("parses");
        found.macro_constants(7).expect("good")
    };
    let text = |value: &str| MacroConstant::Text(value.to_owned());
    let found = constants(&["-p", "7,8", "--num-proxies", "3", "--service-name", "cache"]);
    for (name, expected) in [
        ("default-route", text("/east/web/")),
        ("default-region", text("east")),
        ("default-cluster", text("web")),
        ("hostid", MacroConstant::Number(7)),
        ("router-name", text("7")),
        ("service-name", text("cache")),
        ("router-info-name", text("Memcache")),
        ("num-proxies", MacroConstant::Number(3)),
        ("service-router-capable", MacroConstant::Number(0)),
        ("mcr_opts-num_proxies", text("3")),
        ("mcr_opts-server_timeout", text("1000")),
    ] {
        assert_eq!(found.get(name), Some(&expected), "{name}");
    }
    for without_port in [["-s", "/run/r"], ["--listen-sock-fd", "3"]] {
        assert_eq!(constants(&without_port)["router-name"], text("0"), "{without_port:?}");
    }
    let given = ["--config-params", "tier:web,zone:1:2", "--additional-config-params", "tier:db"];
    let found = constants(&given);
    assert_eq!((&found["tier"], &found["zone"]), (&text("db"), &text("1:2")));
}

#[test]
fn spool_has_two_names() {
    let options = |more: &[&str]| parse(&[&["--config-str", "{}"], more].concat()).expect("parses");
    assert_eq!(options(&[]).spool.directory(), None);
    for name in ["--spool", "--async-dir", "-a"] {
        assert_eq!(options(&[name, "/spool"]).spool.directory(), Some(Path::new("/spool")));
    }
    assert_eq!(options(&["-a", "/spool", "--asynclog-disable"]).spool.directory(), None);
    let policy = |text| options(&["--spool-fsync", text]).spool_settings().fsync;
    assert_eq!((policy("always"), policy("never")), (Fsync::Always, Fsync::Never));
    assert_eq!(policy("interval:50"), Fsync::Interval(Duration::from_millis(50)));
    for bad in ["interval", "interval:0", "interval:x", "sometimes"] {
        assert!(parse(&["--config-str", "{}", "--spool-fsync", bad]).is_err(), "{bad}");
    }
}

#[test]
fn peers_may_use_tls() {
    let line = ["--config-str", "{}", "-a", "/spool", "--spool-peers", "a:1,b:2:ascii:ssl,[::1]:3:ascii:plain"];
    let policies = parse(&line).expect("parses").spool.peer_policies();
    let securities: Vec<_> = policies.iter().map(|(address, policy)| (&*address.0, policy.security)).collect();
    assert_eq!(securities, [("a:1", Security::Plain), ("b:2", Security::Tls), ("[::1]:3", Security::Plain)]);
    for bad in ["a", "a:0", ":1", "a:1:ssl"] {
        assert!(parse(&["--config-str", "{}", "-a", "/spool", "--spool-peers", bad]).is_err(), "{bad}");
    }
}

#[test]
fn window_is_off_adaptive_by_loss_or_a_size() {
    let window =
        |text| parse(&["--config-str", "{}", "--window", text]).map(|options| options.servers.window.settings());
    assert_eq!(parse(&["--config-str", "{}"]).expect("parses").servers.window.settings(), None);
    assert_eq!(window("adaptive").expect("parses"), Some(WindowSettings::by_delay()));
    assert_eq!(window("loss").expect("parses"), Some(WindowSettings::default()));
    assert_eq!(window("50").expect("parses"), Some(WindowSettings::fixed(50)));
    for bad in ["0", "-1", "wide", ""] {
        assert!(window(bad).is_err(), "{bad}");
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    for bad in [["-t", "0"], ["-p", "70000"], ["--idle-timeout", "9999999999"]] {
        assert!(parse(&[&["--config-str", "{}"], &bad[..]].concat()).is_err(), "{bad:?}");
    }
}

#[test]
fn mcrouters_bounds_have_its_defaults_and_zero_is_none() {
    let parsed = |more: &[&str]| parse(&[&["--config-str", "{}"], more].concat()).expect("parses");
    let of_servers = |more: &[&str]| parsed(more).servers.destination_options(false);
    let default = of_servers(&[]);
    assert_eq!((default.inflight_requests_max, default.outstanding_requests_max), (usize::MAX, 100_000));
    assert_eq!(default.idle_interval_ms, Some(60_000));
    let given = of_servers(&[
        "--target-max-inflight-requests=5",
        "--target-max-pending-requests=10",
        "--reset-inactive-connection-interval=0",
    ]);
    assert_eq!(
        (given.inflight_requests_max, given.outstanding_requests_max),
        (5, 15),
        "waiting besides those in flight"
    );
    assert_eq!(given.idle_interval_ms, None);
    let of_clients = |more: &[&str]| parsed(more).settings();
    assert_eq!(of_clients(&[]).requests_max, 34_133);
    assert_eq!(of_clients(&["--max-client-outstanding-reqs", "0"]).requests_max, usize::MAX);
    assert_eq!(of_clients(&["--client-timeout", "1000"]).client_timeout, Some(Duration::from_secs(1)));
    assert_eq!(of_clients(&["--client-timeout", "0"]).client_timeout, None);
    assert_eq!(parsed(&[]).shadows.outstanding_max(), 1_000);
    assert_eq!(parsed(&["--target-max-shadow-requests", "0"]).shadows.outstanding_max(), usize::MAX);
    assert!(parsed(&["--group-remote-errors"]).settings().group_remote_errors);
    assert_eq!(of_clients(&[]).limits.value_bytes_max, 64 << 20);
    let batch_size = |more: &[&str]| Some(parsed(more).defaults().expect("valid").big_values?.batch_size);
    assert_eq!(batch_size(&["--big-value-batch-size", "3"]), None, "none are split");
    assert_eq!(batch_size(&["--big-value-split-threshold", "100"]), Some(10));
    assert_eq!(batch_size(&["--big-value-split-threshold", "100", "--big-value-batch-size", "0"]), Some(0));
    let hides_flag = |more: &[&str]| {
        let line = [&["--big-value-split-threshold", "100"], more].concat();
        parsed(&line).defaults().expect("valid").big_values.map(|settings| settings.hides_flag)
    };
    assert_eq!(hides_flag(&[]), Some(false));
    assert_eq!(hides_flag(&["--big-value-hide-reply-flag"]), Some(true));
}
