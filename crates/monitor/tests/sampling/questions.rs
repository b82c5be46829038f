//! The questions to a cluster, over a network whose routers and servers are played here, by a clock that is advanced.

use lookaside_client::{Listener, Network, Stream};
use lookaside_invalidator::{Commit, Commits, Position};
use lookaside_monitor::{
    asking::{Asker, MonitorClock, Through},
    questions::{FindingObserver, Questions},
    sampling::{AgeCounts, EndOfLog, Moment, Sampler, SamplerOptions},
};
use lookaside_routing::{Address, BoxFuture};
use lookaside_sync::Mutex;
use std::{
    future::ready,
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream},
    sync::Notify,
    time::{Instant, sleep},
};

/// Answers a command of an address, without the line end; `None` if the host does not accept connections.
type Answer = Arc<dyn Fn(&str, &str) -> Option<String> + Send + Sync>;

/// The hosts of a cluster, and what they were asked.
#[derive(Clone)]
struct PlayedHosts {
    answer: Answer,
    asked: Arc<Mutex<Vec<(Instant, String, String)>>>,
}

impl PlayedHosts {
    fn new(answer: impl Fn(&str, &str) -> Option<String> + Send + Sync + 'static) -> PlayedHosts {
        PlayedHosts { answer: Arc::new(answer), asked: Arc::default() }
    }

    async fn serve(self, address: String, stream: DuplexStream) {
        let (received, mut replies) = tokio::io::split(stream);
        let mut lines = BufReader::new(received).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Some(reply) = (self.answer)(&address, &line) else { return };
            self.asked.lock().push((Instant::now(), address.clone(), line));
            // The client may have closed the connection; what it has sent before is counted all the same.
            let _ = replies.write_all(format!("{reply}\r\n").as_bytes()).await;
        }
    }
}

impl Network for PlayedHosts {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        if (self.answer)(&address.0, "").is_none() {
            return Box::pin(ready(Err(io::ErrorKind::ConnectionRefused.into())));
        }
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(self.clone().serve(address.0.to_string(), theirs));
        Box::pin(ready(Ok(Box::new(ours) as Box<dyn Stream>)))
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(ready(Err(io::ErrorKind::Unsupported.into())))
    }
}

/// A monitor's questions to one cluster.
struct Watched {
    sampler: Arc<Mutex<Sampler>>,
    sampled: Arc<Notify>,
    clock: MonitorClock,
}

impl Watched {
    /// Asks the `hosts` in a task of its own, up to `per_s_max` questions a second.
    fn start(hosts: &PlayedHosts, through: Through, addresses: &[&str], per_s_max: u32) -> Watched {
        Watched::start_observed(hosts, through, addresses, per_s_max, Box::new(|_| {}))
    }

    fn start_observed(
        hosts: &PlayedHosts,
        through: Through,
        addresses: &[&str],
        per_s_max: u32,
        on_finding: FindingObserver,
    ) -> Watched {
        let begun = Instant::now();
        let clock: MonitorClock = Arc::new(move || Moment { ms: 1_000_000 + begun.elapsed().as_millis() as u64 });
        let options = SamplerOptions { one_in: 1, ages_s: vec![1, 10], pending_max: 1_000 };
        let mut sampler = Sampler::new(options, [("one", "east")]);
        sampler.start_reading("log", &Position("0".into()));
        let (sampler, sampled) = (Arc::new(Mutex::new(sampler)), Arc::new(Notify::new()));
        let addresses: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
        let network: Arc<dyn Network> = Arc::new(hosts.clone());
        let questions = Questions {
            asker: Asker::new(through, &addresses, Duration::from_secs(1), &network, &clock),
            sampler: sampler.clone(),
            cluster: 0,
            clock: clock.clone(),
            sampled: sampled.clone(),
            per_s_max,
            on_finding,
        };
        tokio::spawn(questions.ask_repeatedly());
        Watched { sampler, sampled, clock }
    }

    /// Reads a commit of these keys now.
    fn commit(&self, keys: impl IntoIterator<Item = String>) {
        let keys = keys.into_iter().map(String::into_bytes).collect();
        let commit = Commit { position: Position("1".into()), keys, committed_at: SystemTime::UNIX_EPOCH };
        let commits = Commits { commits: vec![commit], position: Position("1".into()) };
        self.sampler.lock().add_commits(&commits, (self.clock)(), &|_, _| false);
        self.sampled.notify_waiters();
    }

    /// What was found at the first age.
    fn counts(&self) -> AgeCounts {
        *self.sampler.lock().clusters[0].counts().next().expect("there is an age").1
    }
}

/// The router that was asked first is killed, and another one is asked from then on. Each value that was filled after
/// the delete, but not five seconds after it, was undecided: a third of all in a measurement with faults.
#[tokio::test(start_paused = true)]
async fn a_value_that_another_router_finds_is_new_if_it_was_not_there_at_first() {
    let is_killed = Arc::new(Mutex::new(false));
    let killed = is_killed.clone();
    let hosts = PlayedHosts::new(move |address, _| match (address, *killed.lock()) {
        ("r1:1", true) => None,
        ("r1:1", false) => Some("EN".to_owned()),
        _ => Some("ME k exp=-1 la=0 cas=7 fetch=no cls=1 size=64 age=0-1500 hidden=no".to_owned()),
    });
    let watched = Watched::start(&hosts, Through::Routers, &["r1:1", "r2:1"], 1_000);
    watched.commit(["k".to_owned()]);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(hosts.asked.lock().iter().map(|(_, address, _)| address.as_str()).collect::<Vec<_>>(), ["r1:1"]);
    *is_killed.lock() = true;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(watched.counts(), AgeCounts { new: 1, ..AgeCounts::default() });
}

impl PlayedHosts {
    /// The most questions within some seconds.
    fn most_in(&self, seconds: u64) -> usize {
        let asked = self.asked.lock();
        let after = |from: Instant| from..from + Duration::from_secs(seconds);
        let within = |from: Instant| asked.iter().filter(|(at, ..)| after(from).contains(at)).count();
        asked.iter().map(|(at, ..)| within(*at)).max().unwrap_or_default()
    }
}

/// With servers the bound was one of keys: a cluster of eight got eight times the questions.
#[tokio::test(start_paused = true)]
async fn the_rate_bounds_the_questions_to_all_hosts_of_a_cluster() {
    let servers: Vec<String> = (1..=8).map(|n| format!("s{n}:1")).collect();
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    for (through, hosts, per_s_max) in
        [(Through::Servers, servers.clone(), 200), (Through::Servers, servers, 3), (Through::Routers, vec!["r1:1"], 50)]
    {
        let played = PlayedHosts::new(|_, _| Some("EN".to_owned()));
        let watched = Watched::start(&played, through, &hosts, per_s_max);
        watched.commit((0..400).map(|n| format!("key:{n}")));
        sleep(Duration::from_secs(30)).await;
        let (most, per_key) = (played.most_in(1), if through == Through::Servers { hosts.len() } else { 1 });
        // A key is asked about at all servers at once, also if the rate is lower than their number.
        let allowed = (per_s_max as usize).max(per_key);
        assert!((1..=allowed).contains(&most), "{hosts:?}: {most} questions in a second, {per_s_max} allowed");
        assert!(watched.counts().absent + watched.counts().late > 0, "{hosts:?}: {:?}", watched.counts());
    }
}

/// A router that accepts questions and answers none costs as many questions as it was sent.
#[tokio::test(start_paused = true)]
async fn questions_that_are_repeated_count_too() {
    let played = PlayedHosts::new(|address, command| match (address, command) {
        ("hung:1", "") => Some(String::new()),
        // Nothing that is a reply: the connection is closed.
        ("hung:1", _) => Some("?".to_owned()),
        _ => Some("SERVER_ERROR try again".to_owned()),
    });
    let watched = Watched::start(&played, Through::Routers, &["hung:1", "r2:1"], 40);
    watched.commit((0..400).map(|n| format!("key:{n}")));
    sleep(Duration::from_secs(10)).await;
    assert!(played.asked.lock().len() > 100);
    let most = played.most_in(2);
    assert!((40..=2 * 40).contains(&most), "{most} questions in two seconds, 40 a second allowed");
    assert!(watched.counts().failed > 0);
}

/// The log named the router, and the operator had to find out which of its servers has the old value.
#[tokio::test(start_paused = true)]
async fn the_server_of_an_old_value_is_asked_for() {
    let hosts = PlayedHosts::new(|_, command| {
        Some(match command {
            "me old a" => "ME old exp=-1 la=0 cas=7 fetch=no cls=1 size=64 age=90000-91000 hidden=no".to_owned(),
            "get __mcrouter__.route(get,old)" => {
                let name = command.strip_prefix("get ").expect("it begins so");
                format!("VALUE {name} 0 15\r\n10.0.1.11:11211\r\nEND")
            }
            _ => "EN".to_owned(),
        })
    });
    let found = Arc::new(Mutex::new(Vec::<(String, Option<String>)>::new()));
    let finding = found.clone();
    let on_finding: FindingObserver = Box::new(move |new| {
        let key = String::from_utf8_lossy(&new.sample.key).into_owned();
        finding.lock().push((key, new.looks[0].1.servers.clone()));
    });
    let watched = Watched::start_observed(&hosts, Through::Routers, &["r1:1"], 1_000, on_finding);
    // The value is older than this time, before the commit.
    let end = EndOfLog { begun_at: (watched.clock)(), position: Position("0".into()) };
    watched.sampler.lock().add_end_of_log("log", end);
    watched.commit(["old".to_owned(), "other".to_owned()]);
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(watched.counts(), AgeCounts { old: 1, absent: 1, ..AgeCounts::default() });
    let server = Some("10.0.1.11:11211".to_owned());
    assert_eq!(*found.lock(), [("old".to_owned(), server), ("other".to_owned(), None)]);
    let routes = hosts.asked.lock().iter().filter(|(_, _, command)| command.starts_with("get ")).count();
    assert_eq!(routes, 1, "only the old value is asked for");
}

/// They were not counted: when many values were old, a router got up to twice the questions that --rate allows.
#[tokio::test(start_paused = true)]
async fn questions_for_the_servers_of_old_values_count_too() {
    let hosts = PlayedHosts::new(|_, command| {
        Some(match command.strip_prefix("get ") {
            Some(name) => format!("VALUE {name} 0 15\r\n10.0.1.11:11211\r\nEND"),
            None => "ME k exp=-1 la=0 cas=7 fetch=no cls=1 size=64 age=90000-91000 hidden=no".to_owned(),
        })
    });
    let watched = Watched::start(&hosts, Through::Routers, &["r1:1"], 40);
    let end = EndOfLog { begun_at: (watched.clock)(), position: Position("0".into()) };
    watched.sampler.lock().add_end_of_log("log", end);
    watched.commit((0..400).map(|n| format!("key:{n}")));
    sleep(Duration::from_secs(10)).await;
    let of_servers = hosts.asked.lock().iter().filter(|(_, _, command)| command.starts_with("get ")).count();
    assert!(of_servers >= 40, "{of_servers} servers were asked for");
    let most = hosts.most_in(2);
    assert!((40..=2 * 40).contains(&most), "{most} questions in two seconds, 40 a second allowed");
}
