//! A client that reads servers directly, driven by lines of standard input. The end-to-end tests use it.
//!
//! ```text
//! $ direct_client router.json 127.0.0.1:5000 127.0.0.1:5001
//! set user:42 alice
//! stored
//! get user:42
//! hit alice
//! ```
//!
//! The configuration is a file or `etcd://HOST:PORT/KEY`. In front of it, in this order, `--udp`: gets by UDP;
//! `--replicas OWN OTHER`: keys have the routing prefix OWN, and a lookup that takes 20 ms is sent to OTHER, too;
//! `--updates-directly`: updates go to servers, too; `--deadline MS`: the deadline of each call, in milliseconds.
//!
//! | line | reply |
//! |---|---|
//! | `get KEY` | `hit VALUE`, `stale VALUE`, `miss`, or `error WHY` |
//! | `set KEY VALUE`, `delete KEY` | `stored`, `deleted`, `not_found`, or `error WHY` |
//! | `read KEY FILE` | the same as of `get`; if the value is missing, it is loaded from the file and filled |
//! | `plain KEY` | as `get`, without a lease |
//! | `burst COUNT KEY...` | COUNT gets of all the keys at a time: `hits=N misses=N errors=N slowest_ms=N` |
//! | `tasks` | the number of tasks that run |
//! | `permitted` | `true` or `false`: whether reads go to servers now |
//! | `statistics` | each counter as `name=number`, on one line |

use lookaside_client::config::{EtcdLocation, Source};
use lookaside_client::{
    Client, ClientError, Codec, DirectRoute, HedgeDelay, HedgeSettings, Lookup, Origin, ReadOptions, TypedClient,
    TypedError, UdpOptions,
};
use lookaside_routing::{Address, Defaults, RoutingPrefix};
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When a lookup is late.
const HEDGE_DELAY: Duration = Duration::from_millis(20);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let is_udp = arguments.next_if_eq("--udp").is_some();
    let prefixes = match arguments.next_if_eq("--replicas") {
        Some(_) => Some((next_prefix(&mut arguments)?, next_prefix(&mut arguments)?)),
        None => None,
    };
    let sends_updates = arguments.next_if_eq("--updates-directly").is_some();
    let has_deadline = arguments.next_if_eq("--deadline").is_some();
    let deadline_ms = if has_deadline { arguments.next().as_deref().map(str::parse).transpose()? } else { None };
    let source = arguments
        .next()
        .ok_or("usage: direct_client [--udp] [--replicas OWN OTHER] [--updates-directly] [--deadline MS] CONFIGURATION [ROUTER...]")?;
    let source = match EtcdLocation::parse(&source) {
        Some(location) => Source::Etcd(location?),
        None => Source::File(source.into()),
    };
    let routers: Vec<Address> = arguments.map(|router| Address(router.into())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let builder = DirectRoute::builder(source, routers);
        let builder = if is_udp { builder.udp(UdpOptions::default()) } else { builder };
        let builder = if sends_updates { builder.send_updates_directly() } else { builder };
        let builder = match &prefixes {
            Some((own, _)) => builder.defaults(Defaults { prefix: own.clone(), ..Defaults::default() }),
            None => builder,
        };
        let route = builder.build().await?;
        let client = Client::new(route.clone());
        let client = match prefixes {
            Some((_, other)) => {
                let settings =
                    HedgeSettings { delay: HedgeDelay::Fixed(HEDGE_DELAY), share_max: 1.0, plain_gets: false };
                client.with_hedging(route.replicas(other), settings)
            }
            None => client,
        };
        let client = match deadline_ms {
            Some(deadline_ms) => client.with_deadline(Duration::from_millis(deadline_ms)),
            None => client,
        };
        // Standard input blocks, and the permit is to be renewed meanwhile.
        while let Ok(Some(line)) = tokio::task::spawn_blocking(read_line).await {
            let reply = execute(&line, &client, &route).await;
            println!("{reply}");
            std::io::stdout().flush()?;
        }
        route.close().await;
        Ok(())
    })
}

fn next_prefix(arguments: &mut impl Iterator<Item = String>) -> Result<RoutingPrefix, Box<dyn std::error::Error>> {
    Ok(RoutingPrefix::parse(&arguments.next().ok_or("--replicas needs two routing prefixes")?)?)
}

/// A line of standard input; `None` at its end.
fn read_line() -> Option<String> {
    let mut line = String::new();
    let bytes = std::io::stdin().lock().read_line(&mut line).ok()?;
    (bytes > 0).then(|| line.trim_end().to_owned())
}

async fn execute(line: &str, client: &Client, route: &Arc<DirectRoute>) -> String {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    let reply = match words[..] {
        ["get", key] => client.get(key).await.map(show_lookup),
        ["set", key, value] => client.set(key, value.to_owned(), 0, 0).await.map(|()| "stored".to_owned()),
        ["delete", key] => client.delete(key).await.map(|was_there| match was_there {
            true => "deleted".to_owned(),
            false => "not_found".to_owned(),
        }),
        ["read", key, file] => Ok(read(client, key, file).await),
        ["plain", key] => Ok(get_plain(client, key).await),
        ["burst", count, keys] => Ok(burst(client, count.parse().unwrap_or(1), keys).await),
        ["tasks"] => Ok(tokio::runtime::Handle::current().metrics().num_alive_tasks().to_string()),
        ["permitted"] => Ok(route.is_permitted().to_string()),
        ["statistics"] => Ok(show_statistics(client, route)),
        _ => Ok(format!("error unknown command {line:?}")),
    };
    reply.unwrap_or_else(|error: ClientError| format!("error {error}"))
}

async fn read(client: &Client, key: &str, file: &str) -> String {
    // The file is the row of a database.
    let load = || async { std::fs::read(file).map(Into::into) };
    match client.read(key, &ReadOptions::default(), load).await {
        Ok(read) if read.origin == Origin::Cache => format!("hit {}", String::from_utf8_lossy(&read.value)),
        Ok(_) => "miss".to_owned(),
        Err(error) => format!("error {error:?}"),
    }
}

async fn get_plain(client: &Client, key: &str) -> String {
    let value: Result<Option<String>, TypedError> = TypedClient::new(client.clone(), Codec::default()).get(key).await;
    match value {
        Ok(Some(value)) => format!("hit {value}"),
        Ok(None) => "miss".to_owned(),
        Err(error) => format!("error {error}"),
    }
}

async fn burst(client: &Client, count: usize, keys: &str) -> String {
    let keys: Vec<&str> = keys.split(' ').collect();
    let gets = (0..count).map(async |_| {
        let started = Instant::now();
        let lookups = client.get_many(&keys).await;
        (lookups, started.elapsed())
    });
    let (mut hits, mut misses, mut errors, mut slowest) = (0, 0, 0, Duration::ZERO);
    for (lookups, took) in futures_util::future::join_all(gets).await {
        slowest = slowest.max(took);
        let Ok(lookups) = lookups else {
            errors += keys.len();
            continue;
        };
        for lookup in lookups {
            match lookup {
                Ok(Lookup::Hit { .. }) => hits += 1,
                Ok(_) => misses += 1,
                Err(_) => errors += 1,
            }
        }
    }
    format!("hits={hits} misses={misses} errors={errors} slowest_ms={}", slowest.as_millis())
}

fn show_lookup(lookup: Lookup) -> String {
    match lookup {
        Lookup::Hit { value, .. } => format!("hit {}", String::from_utf8_lossy(&value)),
        Lookup::Stale { value, .. } => format!("stale {}", String::from_utf8_lossy(&value)),
        Lookup::Miss { .. } => "miss".to_owned(),
    }
}

fn show_statistics(client: &Client, route: &DirectRoute) -> String {
    let mut counters: Vec<String> = route.statistics().named().map(|(name, value)| format!("{name}={value}")).collect();
    let udp = route.udp_statistics().unwrap_or_default();
    counters.extend(udp.named().map(|(name, value)| format!("udp_{name}={value}")));
    counters.extend(client.statistics().named().map(|(name, value)| format!("client_{name}={value}")));
    counters.join(" ")
}
