//! The built `lookaside-router`, driven over real sockets, with servers that the test plays.

use crate::fake_server::FakeServer;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Reached only if a test fails.
const DEADLINE: Duration = Duration::from_secs(30);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lookaside-router"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs to the end, for runs that end by themselves.
fn run(arguments: &[&str]) -> Output {
    command(arguments).stdout(Stdio::piped()).output().expect("the binary is built")
}

struct Daemon {
    child: Child,
    address: SocketAddr,
    log: mpsc::Receiver<String>,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Daemon {
        let mut child = command(arguments).args(["--port", "0"]).spawn().expect("the binary is built");
        let (lines, log) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        thread::spawn(move || stderr.lines().map_while(Result::ok).all(|line| lines.send(line).is_ok()));
        let mut daemon = Daemon { child, address: ([127, 0, 0, 1], 0).into(), log };
        let ready = daemon.wait_for_log("listening on ");
        let address = ready.split("listening on ").nth(1).expect("just seen");
        daemon.address = address.trim().parse().expect("an address");
        daemon
    }

    fn wait_for_log(&self, what: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left).unwrap_or_else(|_| panic!("{what:?} was never logged"));
            if line.contains(what) {
                return line;
            }
        }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        Client { reader: BufReader::new(stream) }
    }

    fn request(&self, request: &str) -> String {
        self.connect().request(request)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().expect("kill is there").success());
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end");
            thread::yield_now();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Sends one command and reads its reply, up to the line that ends it.
    fn request(&mut self, request: &str) -> String {
        self.reader.get_mut().write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).expect("an answer in time") > 0, "closed after {answer:?}");
            let more = line.starts_with("VALUE") || line.starts_with("STAT");
            answer.push_str(&line);
            if line.starts_with("VALUE") {
                let bytes: usize = line.split_whitespace().nth(3).expect("a length").parse().expect("a number");
                let mut block = vec![0; bytes + 2];
                self.reader.read_exact(&mut block).expect("the value");
                answer.push_str(&String::from_utf8_lossy(&block));
            }
            if !more {
                return answer;
            }
        }
    }
}

/// Repeats a request until the reply is as wanted.
fn wait_for(what: &str, mut ask: impl FnMut() -> String, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = ask();
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: last answer {answer:?}");
        thread::yield_now();
    }
}

fn one_pool(servers: &[&FakeServer]) -> String {
    let servers: Vec<_> = servers.iter().map(|server| format!("\"{}\"", server.address)).collect();
    let pool = format!(r#"{{"servers": [{}], "flush_new_servers": false}}"#, servers.join(", "));
    format!(r#"{{"pools": {{"main": {pool}}}, "route": "PoolRoute|main"}}"#)
}

#[test]
fn keys_are_distributed_over_servers_and_multigets_collected() {
    let servers = [FakeServer::start(), FakeServer::start()];
    let daemon = Daemon::start(&["--config-str", &one_pool(&[&servers[0], &servers[1]])]);
    let mut client = daemon.connect();
    for key in 0..100 {
        assert_eq!(client.request(&format!("set key:{key} 0 0 1\r\nx\r\n")), "STORED\r\n");
    }
    let keys: String = (0..100).map(|key| format!(" key:{key}")).collect();
    let expected: String = (0..100).map(|key| format!("VALUE key:{key} 0 1\r\nx\r\n")).collect();
    assert_eq!(client.request(&format!("get{keys}\r\n")), expected + "END\r\n");
    assert_eq!(client.request("delete key:7\r\n"), "DELETED\r\n");
    assert_eq!(client.request("get key:7\r\n"), "END\r\n");
    let counts = servers.each_ref().map(|server| server.state.lock().unwrap().values.len());
    assert_eq!(counts.iter().sum::<usize>(), 99);
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
    let owner = servers.iter().find(|server| server.asked().contains(&"delete key:7".to_owned())).expect("one of them");
    let line = owner.address.to_string();
    let expected = format!("VALUE __mcrouter__.route(get,key:7) 0 {}\r\n{line}\r\nEND\r\n", line.len());
    assert_eq!(client.request("get __mcrouter__.route(get,key:7)\r\n"), expected);
    let (stats, detailed) = (client.request("stats servers\r\n"), client.request("stats servers_detailed\r\n"));
    for server in &servers {
        assert!(detailed.contains(&format!("STAT destination:{} state:up sent:", server.address)), "{detailed}");
        assert!(
            stats.contains(&format!("STAT {}:ascii:plain:notcompressed-1000 avg_latency_us:", server.address)),
            "{stats}"
        );
    }
}

#[test]
fn signals_end_the_daemon_cleanly() {
    let server = FakeServer::start();
    for signal in ["-INT", "-TERM"] {
        let mut daemon = Daemon::start(&["--config-str", &one_pool(&[&server])]);
        let mut client = daemon.connect();
        assert_eq!(client.request("get a\r\n"), "END\r\n");
        daemon.signal(signal);
        assert_eq!(daemon.end().code(), Some(0), "{signal}");
        let mut rest = String::new();
        assert_eq!(client.reader.read_to_string(&mut rest).expect("closed, not reset"), 0);
    }
}

fn write_over(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a temporary folder");
    fs::rename(&new, path).expect("a temporary folder");
}

#[test]
fn valid_change_is_applied_and_invalid_one_is_refused() {
    let (first, second) = (FakeServer::start(), FakeServer::start());
    first.put("k", "first");
    second.put("k", "second");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, one_pool(&[&first])).unwrap();
    let daemon = Daemon::start(&["-f", path.to_str().unwrap()]);
    let get = || daemon.request("get k\r\n");
    assert_eq!(get(), "VALUE k 0 5\r\nfirst\r\nEND\r\n");

    write_over(&path, &one_pool(&[&second]));
    wait_for("the change", get, |answer| answer == "VALUE k 0 6\r\nsecond\r\nEND\r\n");

    write_over(
        &path,
        "{\n  \"pools\": {\"main\": {\"servers\": [\"127.0.0.1:1\"]}},\n  \"route\": \"PoolRoute|nowhere\"\n}\n",
    );
    let stats =
        wait_for("the refusal", || daemon.request("stats\r\n"), |stats| stats.contains("STAT config_failures 1\r\n"));
    assert!(stats.contains("STAT config_last_refusal ") && stats.contains("nowhere"), "{stats}");
    let logged = daemon.wait_for_log("refused");
    assert!(logged.contains(path.to_str().unwrap()) && logged.contains("nowhere"), "{logged}");
    assert_eq!(get(), "VALUE k 0 6\r\nsecond\r\nEND\r\n");

    write_over(&path, &one_pool(&[&first]));
    wait_for("the next change", get, |answer| answer == "VALUE k 0 5\r\nfirst\r\nEND\r\n");
}

#[test]
fn reload_keeps_connections_to_servers_that_stay() {
    let (stays, comes) = (FakeServer::start(), FakeServer::start());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, one_pool(&[&stays])).unwrap();
    let daemon = Daemon::start(&["-f", path.to_str().unwrap(), "--num-proxies", "1"]);
    assert_eq!(daemon.request("get k\r\n"), "END\r\n");
    write_over(&path, &one_pool(&[&stays, &comes]));
    let keys: String = (0..50).map(|key| format!(" {key}")).collect();
    let many = || daemon.request(&format!("get{keys}\r\n"));
    wait_for("the change", many, |_| !comes.asked().is_empty());
    let asked = stays.asked().len();
    wait_for("the old server", many, |_| stays.asked().len() > asked);
    let connections = || stays.state.lock().unwrap().connections.to_string();
    wait_for("no second connection", connections, |connections| connections == "1");
}

#[test]
fn servers_are_connected_to_before_the_first_client_and_before_a_reload_is_in_force() {
    let (first, second) = (FakeServer::start(), FakeServer::start());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    fs::write(&path, one_pool(&[&first])).unwrap();
    let connections = |server: &FakeServer| server.state.lock().unwrap().connections;
    let daemon = Daemon::start(&["-f", path.to_str().unwrap(), "--num-proxies", "1", "--connect-ahead"]);
    wait_for("a connection in advance", || connections(&first).to_string(), |connections| connections == "1");
    assert!(first.asked().is_empty(), "no client has sent a request");
    write_over(&path, &one_pool(&[&second]));
    let put = |server: &FakeServer| server.put("k", "v");
    put(&second);
    wait_for("the change", || daemon.request("get k\r\n"), |answer| answer == "VALUE k 0 1\r\nv\r\nEND\r\n");
    assert_eq!(connections(&second), 1);
}

#[test]
fn gutter_replaces_a_dead_server() {
    let (main, gutter) = (FakeServer::start(), FakeServer::start());
    let configuration = format!(
        r#"{{
            "pools": {{"main": {{"servers": ["{}"]}}, "gutter": {{"servers": ["{}"]}}}},
            "route": {{
                "type": "OperationSelectorRoute",
                "default_policy": {{
                    "type": "FailoverWithExptimeRoute",
                    "normal": "PoolRoute|main", "failover": "PoolRoute|gutter", "failover_exptime": 10
                }},
                "operation_policies": {{
                    "delete": {{"type": "AllSyncRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"]}}
                }}
            }}
        }}"#,
        main.address, gutter.address
    );
    let daemon =
        Daemon::start(&["--config-str", &configuration, "--probe-timeout-initial", "50", "--num-proxies", "1"]);
    let mut client = daemon.connect();
    assert_eq!(client.request("set k 0 0 1\r\na\r\n"), "STORED\r\n");
    main.stop();
    assert_eq!(client.request("get k\r\n"), "END\r\n", "a miss in the gutter, and no error");
    assert_eq!(client.request("set k 0 0 1\r\nb\r\n"), "STORED\r\n");
    assert_eq!(client.request("get k\r\n"), "VALUE k 0 1\r\nb\r\nEND\r\n");
    assert!(gutter.asked().contains(&"set k 10".to_owned()), "{:?}", gutter.asked());
    let answer = client.request("delete k\r\n");
    assert!(answer.starts_with("SERVER_ERROR Server unavailable. Reason: mc_res_connect_error"), "{answer}");
    let stats = client.request("stats suspect_servers\r\n");
    assert!(stats.starts_with(&format!("STAT {} status:tko num_failures:", main.address)), "{stats}");
    assert!(!stats.contains(&gutter.address.to_string()), "{stats}");

    let back = FakeServer::start_at(main.address);
    back.put("k", "c");
    wait_for("the server's return", || client.request("get k\r\n"), |answer| answer == "VALUE k 0 1\r\nc\r\nEND\r\n");
    assert_eq!(client.request("stats suspect_servers\r\n"), "END\r\n");
}

#[test]
fn flush_all_reaches_every_server_if_it_is_enabled() {
    let servers = [FakeServer::start(), FakeServer::start()];
    let configuration = one_pool(&[&servers[0], &servers[1]]);
    let daemon = Daemon::start(&["--config-str", &configuration, "--enable-flush-cmd"]);
    assert_eq!(daemon.request("flush_all\r\n"), "OK\r\n");
    assert_eq!(servers.each_ref().map(|server| server.state.lock().unwrap().flushes), [1, 1]);
    servers[1].stop();
    let answer = daemon.request("flush_all\r\n");
    assert!(answer.starts_with(&format!("SERVER_ERROR not flushed: {}", servers[1].address)), "{answer}");
}

/// Each thread once had its own health of a server: after an outage one thread returned a value that the server still
/// had, while another refused its delete until its own next probe.
#[test]
fn server_is_back_for_all_threads_at_once() {
    let server = FakeServer::start();
    server.put("k", "old");
    let probes = ["--probe-timeout-initial", "200", "--probe-timeout-max", "1000"];
    let daemon = Daemon::start(&[&["--config-str", &one_pool(&[&server]), "--num-proxies", "4"], &probes[..]].concat());
    // The kernel distributes these over the threads; all are on one with a probability of 4^-31.
    let mut clients: Vec<Client> = (0..32).map(|_| daemon.connect()).collect();
    let ask = |clients: &mut Vec<Client>, request: &str| -> Vec<String> {
        clients.iter_mut().map(|client| client.request(request)).collect()
    };
    assert!(ask(&mut clients, "get k\r\n").iter().all(|answer| answer.contains("old")));
    server.stop();
    ask(&mut clients, "get k\r\n");
    let statistic = |name: &str| -> u64 {
        let stats = daemon.request("stats servers_detailed\r\n");
        let (_, rest) = stats.split_once(&format!(" {name}:")).expect("a line for the server");
        rest.split_whitespace().next().expect("a value").parse().expect("a number")
    };
    wait_for("some probes", || statistic("probes").to_string(), |probes| probes.parse::<u64>().unwrap() >= 4);
    assert!(ask(&mut clients, "delete k\r\n").iter().all(|answer| answer.contains("SERVER_ERROR")));

    let back = FakeServer::start_at(server.address);
    back.put("k", "old");
    let first_to_see =
        |clients: &mut Vec<Client>| ask(clients, "get k\r\n").iter().any(|answer| answer.contains("old"));
    let deadline = Instant::now() + DEADLINE;
    while !first_to_see(&mut clients) {
        assert!(Instant::now() < deadline, "it did not come back");
    }
    let answers = ask(&mut clients, "delete k\r\n");
    assert!(answers.iter().all(|answer| !answer.contains("SERVER_ERROR")), "{answers:?}");
}

/// `flush_all` was once executed after all commands behind it in the same read.
#[test]
fn flush_is_executed_in_order() {
    let server = FakeServer::start();
    let daemon = Daemon::start(&["--config-str", &one_pool(&[&server]), "--enable-flush-cmd"]);
    let mut client = daemon.connect();
    assert_eq!(client.request("set a 0 0 3\r\nold\r\n"), "STORED\r\n");
    let request = "get a\r\nflush_all\r\nget a\r\nset b 0 0 3\r\nnew\r\nget b\r\n";
    assert_eq!(client.request(request), "VALUE a 0 3\r\nold\r\nEND\r\n");
    let answers: Vec<String> = (0..4).map(|_| client.request("")).collect();
    assert_eq!(answers, ["OK\r\n", "END\r\n", "STORED\r\n", "VALUE b 0 3\r\nnew\r\nEND\r\n"]);
}

#[test]
fn used_port_is_named_with_the_option_to_change() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let server = FakeServer::start();
    let output = run(&["--config-str", &one_pool(&[&server]), "-p", &address.port().to_string()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(&address.to_string()) && error.contains("--port"), "{error}");
}

#[test]
fn missing_or_invalid_configuration_is_named_with_an_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.json");
    let path = path.to_str().unwrap();
    let refused = |code: i32, arguments: &[&str], words: &[&str]| {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{arguments:?}: {error}");
    };
    refused(2, &["-f", path, "-p", "0"], &[path, "cannot be read", "Can not read config from"]);
    fs::write(path, "{\n  \"pools\": {},\n  \"route\": \"PoolRoute|main\"\n}\n").unwrap();
    refused(2, &["-f", path, "-p", "0"], &[path, "main", "line 3"]);
    refused(3, &["-f", path, "--validate-config"], &[path, "main", "line 3"]);
    refused(3, &["-p", "0"], &["-f PATH"]);
    refused(3, &["--config-str", "{}", "-R", "nonsense"], &["nonsense"]);
}

#[test]
fn valid_configuration_is_reported_as_good() {
    let server = FakeServer::start();
    let output = run(&["--config-str", &one_pool(&[&server]), "--validate-config"]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("good"), "{output:?}");
    assert_eq!(server.state.lock().unwrap().connections, 0);
}

#[test]
fn help_has_examples() {
    let output = run(&["--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && help.contains("Examples:") && help.contains("--validate-config"), "{help}");
}
