//! Recovery at start: reads what an earlier run left on disk and decides what may be lost of it.
//!
//! ```text
//!   DIR/10.0.0.7%3A11211/0000000000000004.deletes     a folder per server; bytes other than letters, digits,
//!                                                     `.`, `-`, `_` are % and hex
//!                        00c0ffee00c0ffee.fence       another router has a backlog for this server
//!       router/00c0ffee00c0ffee-3                    this router's id towards its peers, and the number of this run
//! ```
//!
//! | found | treated as |
//! |---|---|
//! | an intact segment | its deletes; a flush record in it stands for everything older |
//! | a torn tail ([`super::record`]) | truncated and logged |
//! | damage in the middle | a flush |
//! | a newer format | an error: only the newer version can read the backlog |

use super::ids::RouterId;
use super::peer_fence::FenceFile;
use super::peer_protocol::FENCE_MAX;
use super::record::{Condition, HEADER, Record, Scan, encode, scan};
use super::segments::{AppendTarget, RecoveredSegment, TotalBytes, file_name, file_number};
use super::server_log::ServerLog;
use super::storage::Disk;
use lookaside_client::TkoTrackers;
use lookaside_protocol::percent;
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The most servers that are known, by the configuration, from an earlier run or from peers. Beyond it requests of
/// peers are refused.
pub(super) const SERVERS_MAX: usize = 10_000;
const IDENTITY_FOLDER: &str = "router";
/// The names of peer fences in older builds.
const OLD_FENCE_SUFFIX: &str = ".hold";

/// All servers with a backlog or a peer fence, fenced. A peer fence is valid from now for as long as its router has
/// asked for, and at least for `peer_fence_for`.
pub(super) fn recover(
    disk: &dyn Disk,
    tko_trackers: &Arc<TkoTrackers>,
    total: &TotalBytes,
    peer_fence_for: Duration,
) -> Result<BTreeMap<Address, Arc<ServerLog>>, String> {
    let failed = |error: io::Error| format!("cannot read the spool: {error}");
    let mut servers = BTreeMap::new();
    for folder in disk.folders().map_err(failed)? {
        if folder == IDENTITY_FOLDER {
            continue;
        }
        let Some(address) = server_of_folder(&folder) else {
            tracing::warn!(folder, "ignoring an unknown folder in the spool");
            continue;
        };
        let server = ServerLog::new(address.clone(), folder.clone(), tko_trackers.fence(&address));
        recover_segments(disk, &server, total)?;
        for name in disk.files(&folder).map_err(failed)? {
            if let Some(router) = router_of_fence_file(&name) {
                let text = disk.read(&folder, &name).unwrap_or_default();
                let saved = parse_peer_fence(&text).unwrap_or_default();
                let file = FenceFile { duration: saved, bytes: text.len() as u64 };
                server.fence_for_peer(router, 0, Instant::now() + saved.max(peer_fence_for), file);
            } else if name.ends_with(OLD_FENCE_SUFFIX) {
                tracing::warn!(
                    server = %address, file = name,
                    "peer fence of an older build ignored: upgrade all routers and remove the file"
                );
            }
        }
        let backlog = server.backlog();
        if backlog.is_empty() && server.peer_fences() == 0 {
            disk.remove_folder(&folder).map_err(failed)?;
            continue;
        }
        tracing::info!(
            server = %address, deletes = backlog.deletes, flush_pending = backlog.flush_pending,
            "recovered undelivered deletes"
        );
        servers.insert(address, server);
    }
    match servers.len() {
        0..=SERVERS_MAX => Ok(servers),
        count => Err(format!(
            "the spool has deletes for {count} servers, more than {SERVERS_MAX}; remove the folders of servers that are gone"
        )),
    }
}

fn recover_segments(disk: &dyn Disk, server: &ServerLog, total: &TotalBytes) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot read the spool of {}: {error}", server.address);
    let files = disk.files(&server.folder).map_err(failed)?;
    let numbers: Vec<u64> = files.iter().filter_map(|name| file_number(name)).collect();
    let mut segments = Vec::new();
    for &number in &numbers {
        let bytes = disk.read(&server.folder, &file_name(number)).map_err(failed)?;
        let scan = scan(&bytes);
        if let Condition::Newer(version) = scan.condition {
            return Err(format!(
                "the spool of {} has format {version}, written by a newer version; run that one until the spool is empty",
                server.address
            ));
        }
        if scan.condition == Condition::Torn {
            cut_torn_tail(disk, server, number, &scan, bytes.len() as u64).map_err(failed)?;
        }
        segments.push((number, classify(server, &scan, bytes.len() as u64)));
    }
    // A flush stands for everything before it.
    let is_flush = |segment: &Option<RecoveredSegment>| matches!(segment, Some(RecoveredSegment::Flush { .. }));
    let first = segments.iter().rposition(|(_, segment)| is_flush(segment)).unwrap_or(0);
    let older: Vec<u64> = segments[..first].iter().map(|(number, _)| *number).collect();
    for &(number, segment) in &segments[first..] {
        match segment {
            Some(segment) => server.add_recovered(number, segment, total),
            None => server.remove_files(disk, &[number]),
        }
    }
    server.remove_files(disk, &older);
    numbers.iter().for_each(|&number| server.skip_number(number));
    Ok(())
}

/// How a segment is treated. `None` if it is empty.
fn classify(server: &ServerLog, scan: &Scan, file_bytes: u64) -> Option<RecoveredSegment> {
    if scan.condition == Condition::Damaged {
        tracing::error!(
            server = %server.address, readable_deletes = scan.records.len(),
            "spool file damaged, deletes are lost: the server will be flushed before it is read"
        );
        return Some(RecoveredSegment::Flush { is_durable: false, bytes: file_bytes });
    }
    if scan.records.contains(&Record::FlushAll) {
        let is_durable = scan.records == [Record::FlushAll];
        return Some(RecoveredSegment::Flush { is_durable, bytes: scan.valid_bytes });
    }
    let deletes = scan.records.len() as u64;
    (deletes > 0).then_some(RecoveredSegment::Deletes { deletes, bytes: scan.valid_bytes })
}

fn cut_torn_tail(disk: &dyn Disk, server: &ServerLog, number: u64, scan: &Scan, file_bytes: u64) -> io::Result<()> {
    let torn_bytes = file_bytes - scan.valid_bytes;
    tracing::warn!(
        server = %server.address, torn_bytes, deletes = scan.records.len(),
        "the router or its machine stopped while writing a spool file: truncating the unfinished record"
    );
    disk.truncate(&server.folder, &file_name(number), scan.valid_bytes)
}

pub(super) fn peer_fence_file(router: RouterId) -> String {
    format!("{router}.fence")
}

/// The content of the file of a fence that lasts for `duration` unless it is renewed.
pub(super) fn peer_fence_text(duration: Duration) -> String {
    format!("fenced {}\n", duration.as_millis())
}

/// The longest time of its lines. `None` if the file does not say how long: a crash has left it empty, or an earlier
/// version has written it.
fn parse_peer_fence(text: &[u8]) -> Option<Duration> {
    let duration_ms = |line: &str| line.strip_prefix("fenced ")?.strip_suffix('\n')?.parse().ok();
    let durations = str::from_utf8(text).ok()?.split_inclusive('\n').filter_map(duration_ms);
    Some(Duration::from_millis(durations.max()?).min(FENCE_MAX))
}

fn router_of_fence_file(name: &str) -> Option<RouterId> {
    let digits = name.strip_suffix(".fence").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(RouterId)
}

/// This router's id towards its peers, and the number of this run. The first run draws the id from `seed`, later ones
/// read it. The number is on disk when this returns.
pub(super) fn load_identity(disk: &dyn Disk, seed: u64) -> Result<(RouterId, u64), String> {
    let failed = |error: io::Error| format!("cannot store this router's id in the spool: {error}");
    let mut newest = (RouterId(fastrand::Rng::with_seed(seed).u64(1..)), 0);
    let mut names = disk.files(IDENTITY_FOLDER).unwrap_or_default();
    // A crash may leave several: the highest run is the newest.
    for name in &names {
        if let Some((router, run)) = name.split_once('-')
            && let (Ok(router), Ok(run)) = (u64::from_str_radix(router, 16), run.parse())
            && run >= newest.1
        {
            newest = (RouterId(router), run);
        }
    }
    let (router, run) = (newest.0, newest.1 + 1);
    let name = format!("{router}-{run}");
    disk.write(IDENTITY_FOLDER, &name, 0, b"the id and the run are in the file name\n", true).map_err(failed)?;
    names.retain(|other| *other != name);
    for old in names {
        disk.remove(IDENTITY_FOLDER, &old).map_err(failed)?;
    }
    Ok((router, run))
}

pub(super) fn replace_with_flush(disk: &dyn Disk, server: &ServerLog, total: &TotalBytes) {
    let target = server.begin_flush();
    let AppendTarget::Flush { number } = target else { return };
    let mut bytes = HEADER.to_vec();
    encode(&Record::FlushAll, &mut bytes);
    let written = disk.write(&server.folder, &file_name(number), 0, &bytes, true);
    let mut replaced = Vec::new();
    let counted = written.as_ref().map(|()| (1, (bytes.len() - HEADER.len()) as u64));
    server.end_append_and_fence(target, counted, total, &mut replaced);
    server.remove_files(disk, &replaced);
    match written {
        Ok(()) => tracing::warn!(
            server = %server.address,
            "a server with undelivered deletes is not in the configuration: it will be flushed if a later one names it"
        ),
        // Its deletes stay, which is as correct but larger.
        Err(error) => tracing::error!(server = %server.address, %error, "cannot write to the spool"),
    }
}

pub(super) fn folder_name(address: &Address) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    percent::encode_except(address.0.as_bytes(), is_plain).to_string()
}

/// The server of a folder. `None` if it is not a server's folder.
fn server_of_folder(folder: &str) -> Option<Address> {
    let address = Address(percent::decode_text(folder)?.into());
    let is_address = address.0.contains([':', '/']);
    (is_address && folder_name(&address) == folder).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_name_encodes_its_servers_address() {
        for (address, folder) in [
            ("10.0.0.7:11211", "10.0.0.7%3A11211"),
            ("[::1]:11211", "%5B%3A%3A1%5D%3A11211"),
            ("cache-1.example:11211", "cache-1.example%3A11211"),
            ("/run/a b", "%2Frun%2Fa%20b"),
        ] {
            let address = Address(address.into());
            assert_eq!(folder_name(&address), folder);
            assert_eq!(server_of_folder(folder), Some(address));
        }
        for other in ["", "router", "lost+found", "%4", "%zz", "a:1", "%3a"] {
            assert_eq!(server_of_folder(other), None, "{other}");
        }
    }
}
