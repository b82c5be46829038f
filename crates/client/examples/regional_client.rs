//! A client in a replica region, with remote markers, driven by lines of standard input. The end-to-end tests use it.
//!
//! ```text
//! $ regional_client 127.0.0.1:5000
//! write user:42
//! name user:42 marker:user:42|#|2b7e151628aed2a6
//! finish
//! finished
//! read user:42
//! load master
//! alice
//! loaded alice
//! ```
//!
//! The argument is the router of the cluster, which sends keys with the prefix `marker:` to the regional pool. In front
//! of it, in this order, `--per-key`: one marker for each key, as in the paper; `--accept-lag`: writes go on without
//! markers; `--replica-when-unknown`: keys are read from the replica if the pool does not answer; `--ttl SECONDS`:
//! the life of a marker.
//!
//! | line | reply |
//! |---|---|
//! | `write KEY...` | `name KEY...`, the keys to name in the transaction, or `error WHY` |
//! | | `unmarked KEY... name KEY...` if some have no marker |
//! | `finish`, `abort` | `finished`, `aborted`, or `error WHY`, for the last write |
//! | `read KEY` | `hit VALUE`; or `load master` or `load replica`, the value as the next line, and `loaded VALUE` |
//! | `read-past-cache KEY`, `read-master KEY` | the same, but for `hit` |
//! | `delete KEY` | `deleted` or `error WHY` |
//! | `statistics` | each counter of markers as `name=number`, on one line |

use bytes::Bytes;
use lookaside_client::{
    Client, DestinationOptions, MarkerForm, MarkerSettings, Origin, ReadError, ReadFrom, ReadOptions, RegionalClient,
    RemoteWrite, TcpDestination, TcpNetwork, WhenNotSet,
};
use lookaside_routing::{Address, DestinationRoute};
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut settings = MarkerSettings::default();
    if arguments.next_if_eq("--per-key").is_some() {
        settings.form = MarkerForm::PerKey;
    }
    if arguments.next_if_eq("--accept-lag").is_some() {
        settings.when_not_set = WhenNotSet::AcceptLag;
    }
    if arguments.next_if_eq("--replica-when-unknown").is_some() {
        settings.when_unknown = ReadFrom::Replica;
    }
    if arguments.next_if_eq("--ttl").is_some() {
        settings.ttl_s = arguments.next().ok_or("--ttl needs seconds")?.parse()?;
    }
    let usage = "usage: regional_client [--per-key] [--accept-lag] [--replica-when-unknown] [--ttl SECONDS] ROUTER";
    let router = Address(arguments.next().ok_or(usage)?.into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let router = TcpDestination::new(router, Arc::new(TcpNetwork), DestinationOptions::default());
        let route = Arc::new(DestinationRoute::new(Arc::new(router), true));
        let client = RegionalClient::new(Client::new(route.clone()), route, settings)?;
        let mut write = None;
        while let Some(line) = next_line().await {
            let reply = execute(&line, &client, &mut write).await;
            print_line(&reply);
        }
        Ok(())
    })
}

/// A line of standard input; `None` at its end. Standard input blocks.
async fn next_line() -> Option<String> {
    let read = || {
        let mut line = String::new();
        let bytes = std::io::stdin().lock().read_line(&mut line).ok()?;
        (bytes > 0).then(|| line.trim_end().to_owned())
    };
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

fn print_line(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("standard output is open");
}

async fn execute(line: &str, client: &RegionalClient, write: &mut Option<RemoteWrite>) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let reply = match (&words[..], &write) {
        (["write", keys @ ..], _) => match client.begin_write(keys).await {
            Ok(begun) => {
                let shown = show_write(&begun);
                *write = Some(begun);
                Ok(shown)
            }
            Err(error) => Ok(format!("error {error}")),
        },
        (["finish"], Some(write)) => write.finish().await.map(|()| "finished".to_owned()),
        (["abort"], Some(write)) => write.abort().await.map(|()| "aborted".to_owned()),
        (["read", key], _) => Ok(read(client, key).await),
        (["read-past-cache", key], _) => Ok(show_loaded(client.read_past_cache(&[key], load_one).await)),
        (["read-master", key], _) => Ok(show_loaded(client.read_master(&[key], load_one).await)),
        (["delete", key], _) => client.client().delete(key).await.map(|_| "deleted".to_owned()),
        (["statistics"], _) => {
            let counters = client.marker_statistics();
            Ok(counters.named().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
        }
        _ => Ok(format!("error unknown command {line:?}")),
    };
    reply.unwrap_or_else(|error| format!("error {error}"))
}

fn show_write(write: &RemoteWrite) -> String {
    let show = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
    let named: Vec<String> = write.keys().map(show).collect();
    let unmarked: Vec<String> = write.unmarked().map(|(key, _)| show(key)).collect();
    match &unmarked[..] {
        [] => format!("name {}", named.join(" ")),
        _ => format!("unmarked {} name {}", unmarked.join(" "), named.join(" ")),
    }
}

/// The value of a key from the database that the next line of standard input stands for.
async fn load(from: ReadFrom) -> Result<Bytes, &'static str> {
    print_line(match from {
        ReadFrom::Master => "load master",
        ReadFrom::Replica => "load replica",
    });
    next_line().await.map(Bytes::from).ok_or("standard input has ended")
}

async fn load_one(from: ReadFrom, _: Vec<Bytes>) -> Result<Vec<Bytes>, &'static str> {
    Ok(vec![load(from).await?])
}

fn show_loaded(loaded: Result<Vec<Bytes>, ReadError<&str>>) -> String {
    match loaded {
        Ok(values) => format!("loaded {}", String::from_utf8_lossy(&values[0])),
        Err(error) => format!("error {error}"),
    }
}

async fn read(client: &RegionalClient, key: &str) -> String {
    match client.read(key, &ReadOptions::default(), load).await {
        Ok(read) => {
            let word = if read.origin == Origin::Database { "loaded" } else { "hit" };
            format!("{word} {}", String::from_utf8_lossy(&read.value))
        }
        Err(error) => format!("error {error}"),
    }
}
