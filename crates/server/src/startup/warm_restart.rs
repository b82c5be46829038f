//! Warm restart (§6.4 of the paper), as the process sees it: with `--warm-restart`, attaches the store's region at the
//! start and saves it at the end; logs the outcome; and `--remove-region` removes a region.
//!
//! Every orderly end saves: SIGTERM, SIGINT, SIGUSR1 (memcached's signal for it), `shutdown`, and a start that fails
//! after the store was attached. `kill -9` and a crash do not.

use crate::cli::{Arguments, UsageError};
use crate::clock::Clock;
use crate::shared::WarmStart;
use lookaside_store::{
    ColdStartReason, Options, OptionsError, Preparation, RegionError, RegionName, RemovedRegion, Start, Store,
    remove_region,
};

/// A store that is ready but for its region.
pub(crate) enum Prepared {
    InRegion(Box<Preparation>, RegionName),
    Whole(Box<Store>),
}

/// Prepares what can be prepared while another process may still hold the region.
pub(crate) fn prepare(arguments: &Arguments, options: Options) -> anyhow::Result<Prepared> {
    let prepared = match arguments.region_name() {
        Some(name) => Preparation::new(options, name)
            .map(|preparation| Prepared::InRegion(Box::new(preparation.preallocate()), name.clone())),
        None => Store::new(options).map(|store| Prepared::Whole(Box::new(store))),
    };
    prepared.map_err(|error| describe_error(&RegionError::Options(error)))
}

/// Opens the store, in its region if it has one. The clock is set forward if it is behind the time at which the region
/// was saved. `claim` is called before the region is changed: if it fails, the region is as it was saved.
pub(crate) fn open(
    prepared: Prepared,
    clock: Clock,
    claim: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Store, Option<WarmStart>, Clock)> {
    let (preparation, name) = match prepared {
        Prepared::InRegion(preparation, name) => (preparation, name),
        Prepared::Whole(store) => return claim().map(|()| (*store, None, clock)),
    };
    let started = clock.now();
    let mut claim_result = Ok(());
    let attach_result = preparation.attach(started, || {
        claim_result = claim();
        claim_result.is_ok()
    });
    let attach_result = attach_result.map_err(|error| describe_error(&error))?;
    claim_result?;
    let (store, start) = attach_result.expect("it was wanted");
    let attach_ms = clock.now().unix_ms - started.unix_ms;
    let (items, clock) = match start {
        Start::Warm { items, saved_at } => {
            tracing::info!("region {name} attached with {items} items, in {attach_ms} ms");
            (items, clock.not_before(saved_at))
        }
        Start::Empty(ColdStartReason::New) => {
            tracing::info!("region {name} is new");
            (0, clock)
        }
        Start::Empty(why) => {
            tracing::warn!("region {name} starts empty: {why}");
            (0, clock)
        }
    };
    Ok((store, Some(WarmStart { name, items, attach_ms }), clock))
}

/// Opens the store that this process has just saved, or an empty one.
pub(crate) fn reopen(arguments: &Arguments, options: Options, clock: Clock) -> anyhow::Result<Store> {
    open(prepare(arguments, options)?, clock, || Ok(())).map(|(store, ..)| store)
}

/// Saves the store in its region, if it has one, for the next server. All threads that use it have ended.
pub(crate) fn save(store: Store, clock: Clock) -> anyhow::Result<()> {
    let started = clock.now();
    let saved = store.save(started).map_err(|error| anyhow::anyhow!("cannot save the items: {error}"))?;
    if let Some(saved) = saved {
        let save_ms = clock.now().unix_ms - started.unix_ms;
        tracing::info!("saved {} items for the next start, in {save_ms} ms", saved.items);
    }
    Ok(())
}

/// `--remove-region`: removes the region, and describes it.
pub(crate) fn remove(name: &RegionName) -> anyhow::Result<String> {
    let Some(RemovedRegion { region_bytes, items }) = remove_region(name).map_err(|error| describe_error(&error))?
    else {
        anyhow::bail!("there is no region {name}");
    };
    let items = match items {
        Some(items) => format!("{items} items"),
        None => "not shut down cleanly".to_string(),
    };
    Ok(format!("removed region {name}: {region_bytes} bytes, {items}"))
}

/// An error with the cause and what the operator can do.
fn describe_error(error: &RegionError) -> anyhow::Error {
    let advice = match error {
        RegionError::Options(_) => "see -m and -I",
        RegionError::Held { .. } => "end that server first, or choose another name with --warm-restart",
        RegionError::KeyTaken { .. } | RegionError::Foreign { .. } | RegionError::ForeignOwner { .. } => {
            "choose another name with --warm-restart"
        }
        RegionError::Mapped { .. } | RegionError::Removed { .. } => "see `ipcs -m`",
        RegionError::System { .. } => "it may belong to another user, see `ipcs -m`; or start without --warm-restart",
    };
    let why = format!("{error} ({advice})");
    match error {
        RegionError::Options(OptionsError::NoMemory { .. }) => anyhow::Error::msg(why),
        RegionError::Options(_) => UsageError(why).into(),
        _ => anyhow::Error::msg(why),
    }
}
