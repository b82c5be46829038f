//! `lookaside replay --plain`: replays in strict order, with plain gets and sets, so that hit ratios can be compared.

use super::Options;
use anyhow::{Result, bail};
use lookaside_client::{DestinationOptions, TcpDestination, TcpNetwork};
use lookaside_routing::Address;
use lookaside_workload::{
    Progress, StrictReplayOptions, StrictReplayReport, Trace, compulsory_misses, fill, replay_strictly,
};
use std::{io::Write, sync::Arc};

/// A long timeout, so that no request fails on a busy machine.
const REPLY_TIMEOUT_MS: u64 = 60_000;
const MIB: u64 = 1 << 20;

/// Replays or fills, and reports.
pub fn run(options: &Options, trace: &Arc<Trace>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let settings = DestinationOptions { server_timeout_ms: REPLY_TIMEOUT_MS, ..DestinationOptions::default() };
        let server = TcpDestination::new(Address(options.endpoint.as_str().into()), Arc::new(TcpNetwork), settings);
        let batch_requests = options.concurrency as usize;
        if let Some(mib) = options.fill {
            let failures = fill(&server, trace, u64::from(mib) * MIB, batch_requests).await;
            return match failures {
                0 => Ok(()),
                _ => bail!("{failures} values were not stored"),
            };
        }
        let plain = StrictReplayOptions {
            requests_max: options.requests.unwrap_or(usize::MAX),
            warmup_requests: options.warmup,
            batch_requests,
            speed: options.speed,
        };
        let progress = Arc::new(Progress::default());
        let display =
            tokio::spawn(super::show_progress(progress.clone(), trace.requests.len().min(plain.requests_max)));
        let report = replay_strictly(&server, trace, &plain, &progress).await;
        display.abort();
        print(&report, compulsory_misses(trace, &plain), options.json)
    })
}

fn print(report: &StrictReplayReport, (compulsory, compulsory_bytes): (u64, u64), json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let of_gets = |count: u64| count as f64 / report.gets.max(1) as f64;
    let of_bytes = |bytes: u64| bytes as f64 / report.bytes.max(1) as f64;
    if json {
        let line = serde_json::json!({
            "gets": report.gets, "misses": report.misses, "bytes": report.bytes, "missed_bytes": report.missed_bytes,
            "expiring_gets": report.expiring_gets, "expiring_misses": report.expiring_misses,
            "updates": report.updates, "deletes": report.deletes, "deleted": report.deleted,
            "errors": report.errors, "refused": report.refused, "seconds": report.took.as_secs_f64(),
            "miss_ratio": of_gets(report.misses), "byte_miss_ratio": of_bytes(report.missed_bytes),
            "floor": of_gets(compulsory), "byte_floor": of_bytes(compulsory_bytes),
        });
        return Ok(writeln!(out, "{line}")?);
    }
    writeln!(out, "gets             {:>12}", report.gets)?;
    writeln!(out, "misses           {:>12}   {:.4}", report.misses, of_gets(report.misses))?;
    writeln!(out, "  compulsory     {:>12}   {:.4}", compulsory, of_gets(compulsory))?;
    if report.expiring_gets > 0 {
        let ratio = report.expiring_misses as f64 / report.expiring_gets as f64;
        writeln!(out, "  that expire    {:>12}   {ratio:.4} of {} gets", report.expiring_misses, report.expiring_gets)?;
    }
    writeln!(out, "missed bytes     {:>12}   {:.4}", report.missed_bytes, of_bytes(report.missed_bytes))?;
    writeln!(out, "  compulsory     {:>12}   {:.4}", compulsory_bytes, of_bytes(compulsory_bytes))?;
    writeln!(out, "updates, deletes {:>12}   {}, {} of them found", report.updates, report.deletes, report.deleted)?;
    writeln!(out, "errors, refused  {:>12}   {}", report.errors, report.refused)?;
    writeln!(out, "took             {:>12.1} s", report.took.as_secs_f64())?;
    Ok(())
}
