//! The time of pages that arrive at random, whatever has been answered, at a client that asks servers directly, with
//! the window that such a client has by default (§3.1 of the paper). It prints a line of JSON.
//! `experiments/cluster/incast.py` starts the servers and the router, and stores the keys.
//!
//!     page_arrivals CONFIGURATION ROUTER KEYS KEYS_PER_PAGE PAGES_PER_S QUIET_S MEASURE_S
//!
//! Pages of the first QUIET_S seconds do not count.

use bytes::Bytes;
use lookaside_client::config::Source;
use lookaside_client::{Client, DirectRoute, Lookup};
use lookaside_routing::Address;
use std::error::Error;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// How long the client may wait for its first permit.
const PERMIT_MAX: Duration = Duration::from_secs(10);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [configuration, router, keys, keys_per_page, pages_per_s, quiet_s, measure_s] = &arguments[..] else {
        return Err("usage: page_arrivals CONFIGURATION ROUTER KEYS KEYS_PER_PAGE PAGES_PER_S QUIET_S MEASURE_S".into());
    };
    let (keys, keys_per_page): (usize, usize) = (keys.parse()?, keys_per_page.parse()?);
    let pages_per_s: f64 = pages_per_s.parse()?;
    let quiet = Duration::from_secs_f64(quiet_s.parse()?);
    let measure = Duration::from_secs_f64(measure_s.parse()?);

    let builder = DirectRoute::builder(Source::File(configuration.into()), [Address(router.as_str().into())]);
    let route = builder.build().await?;
    let started = Instant::now();
    while !route.is_permitted() {
        if started.elapsed() > PERMIT_MAX {
            return Err("no permit: is the router's configuration the same?".into());
        }
        sleep(Duration::from_millis(1)).await;
    }
    let client = Client::new(route.clone());
    let mut random = fastrand::Rng::with_seed(1);
    let (began, mut pages) = (Instant::now(), JoinSet::new());
    let mut arrives = began;
    loop {
        arrives += Duration::from_secs_f64(-(1.0 - random.f64()).ln() / pages_per_s);
        if arrives >= began + quiet + measure {
            break;
        }
        sleep_until(arrives).await;
        let page: Vec<Bytes> = random.choose_multiple(0..keys, keys_per_page).into_iter().map(key).collect();
        let client = client.clone();
        pages.spawn(async move {
            let is_whole = read(&client, &page).await;
            (arrives, arrives.elapsed(), is_whole)
        });
    }
    let read: Vec<_> = pages.join_all().await.into_iter().filter(|(arrived, ..)| *arrived >= began + quiet).collect();
    let ms: Vec<String> = read.iter().map(|(_, took, _)| format!("{:.3}", took.as_secs_f64() * 1_000.0)).collect();
    let failed = read.iter().filter(|(.., is_whole)| !is_whole).count();
    let size = route.window_statistics().map_or(0, |window| window.size);
    let unpermitted = route.statistics().unpermitted_reads;
    println!(
        r#"{{"ms": [{}], "failed": {failed}, "size": {size}, "unpermitted_reads": {unpermitted}}}"#,
        ms.join(", ")
    );
    Ok(())
}

fn key(number: usize) -> Bytes {
    format!("page:{number}").into()
}

/// Reads a page; whether all its keys came.
async fn read(client: &Client, page: &[Bytes]) -> bool {
    let lookups = client.get_many(page).await.expect("valid keys");
    lookups.iter().all(|lookup| matches!(lookup, Ok(Lookup::Hit { .. })))
}
