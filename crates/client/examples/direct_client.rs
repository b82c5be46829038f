//! A client that reads servers directly, driven by lines of standard input. The end-to-end tests use it.
//!
//! ```text
//! $ direct_client router.json 127.0.0.1:5000 127.0.0.1:5001        (--udp in front of all: gets by UDP)
//! set user:42 alice
//! stored
//! get user:42
//! hit alice
//! ```
//!
//! | line | reply |
//! |---|---|
//! | `get KEY` | `hit VALUE`, `stale VALUE`, `miss`, or `error WHY` |
//! | `set KEY VALUE`, `delete KEY` | `stored`, `deleted`, `not_found`, or `error WHY` |
//! | `read KEY FILE` | the same as of `get`; if the value is missing, it is loaded from the file and filled |
//! | `permitted` | `true` or `false`: whether reads go to servers now |
//! | `statistics` | each counter as `name=number`, on one line |

use lookaside_client::config::Source;
use lookaside_client::{Client, ClientError, DirectRoute, Lookup, Origin, ReadOptions, UdpOptions};
use lookaside_routing::Address;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let is_udp = arguments.next_if_eq("--udp").is_some();
    let file = arguments.next().ok_or("usage: direct_client [--udp] CONFIGURATION ROUTER...")?;
    let routers: Vec<Address> = arguments.map(|router| Address(router.into())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let builder = DirectRoute::builder(Source::File(file.into()), routers);
        let builder = if is_udp { builder.udp(UdpOptions::default()) } else { builder };
        let route = builder.build().await?;
        let client = Client::new(route.clone());
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
        ["permitted"] => Ok(route.is_permitted().to_string()),
        ["statistics"] => Ok(show_statistics(route)),
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

fn show_lookup(lookup: Lookup) -> String {
    match lookup {
        Lookup::Hit { value, .. } => format!("hit {}", String::from_utf8_lossy(&value)),
        Lookup::Stale { value, .. } => format!("stale {}", String::from_utf8_lossy(&value)),
        Lookup::Miss { .. } => "miss".to_owned(),
    }
}

fn show_statistics(route: &DirectRoute) -> String {
    let mut counters: Vec<String> = route.statistics().named().map(|(name, value)| format!("{name}={value}")).collect();
    let udp = route.udp_statistics().unwrap_or_default();
    counters.extend(udp.named().map(|(name, value)| format!("udp_{name}={value}")));
    counters.join(" ")
}
