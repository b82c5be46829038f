//! The start: what an earlier run left on disk, and what may be lost of it.
//!
//! ```text
//!   DIR/10.0.0.7%3A11211/0000000000000004.deletes     a folder a server, its address with % and hex for what is no name
//!                        00c0ffee00c0ffee.hold        another router owes it something
//!       router/00c0ffee00c0ffee-3                    who this router is for others, and which run this is
//! ```
//!
//! | found | taken for |
//! |---|---|
//! | a whole segment | its deletes; a forget in it stands for all that is older |
//! | a torn tail | cut off, and said: nobody was told that it was kept (but see `--spool-fsync`) |
//! | damage in the middle | a forget: deletes are lost, and nobody knows which |
//! | a newer layout | an error: only the newer version knows what is owed |

use super::SERVERS_MAX;
use super::ids::Owner;
use super::record::{Condition, HEADER, Record, Scan, encode, scan};
use super::server_log::{Found, Place, Server, TotalBytes, file_name, file_number};
use super::storage::Disk;
use lookaside_client::TkoTrackers;
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Where it is kept who this router is.
const IDENTITY_FOLDER: &str = "router";
/// All servers that owe something, fenced off.
pub(super) fn load(
    disk: &dyn Disk,
    tko_trackers: &Arc<TkoTrackers>,
    total: &TotalBytes,
    hold_for: Duration,
) -> Result<BTreeMap<Address, Arc<Server>>, String> {
    let in_words = |error: io::Error| format!("the spool cannot be read: {error}");
    let mut servers = BTreeMap::new();
    for folder in disk.folders().map_err(in_words)? {
        if folder == IDENTITY_FOLDER {
            continue;
        }
        let Some(address) = address_of(&folder) else {
            tracing::warn!(folder, "this folder in the spool is not the spool's, and is left alone");
            continue;
        };
        let server = Server::new(address.clone(), folder.clone(), tko_trackers.fence(&address));
        load_server(disk, &server, total)?;
        for name in disk.files(&folder).map_err(in_words)? {
            if let Some(owner) = hold_owner(&name) {
                server.hold(owner, 0, Instant::now() + hold_for);
            }
        }
        if server.owed().is_nothing() && server.holds() == 0 {
            disk.remove_folder(&folder).map_err(in_words)?;
            continue;
        }
        let owed = server.owed();
        tracing::info!(server = %address, deletes = owed.records, forget = owed.forget, "owed from an earlier run");
        servers.insert(address, server);
    }
    match servers.len() {
        0..=SERVERS_MAX => Ok(servers),
        count => Err(format!(
            "the spool has deletes for {count} servers, more than {SERVERS_MAX}; remove the folders of those that are gone"
        )),
    }
}

fn load_server(disk: &dyn Disk, server: &Server, total: &TotalBytes) -> Result<(), String> {
    let in_words = |error: io::Error| format!("the spool of {} cannot be read: {error}", server.address);
    let files = disk.files(&server.folder).map_err(in_words)?;
    let numbers: Vec<u64> = files.iter().filter_map(|name| file_number(name)).collect();
    let mut found = Vec::new();
    for &number in &numbers {
        let bytes = disk.read(&server.folder, &file_name(number)).map_err(in_words)?;
        let scan = scan(&bytes);
        if let Condition::Newer(version) = scan.condition {
            return Err(format!(
                "the spool of {} is in layout {version}, which a newer version wrote; start that version until it is empty",
                server.address
            ));
        }
        if scan.condition == Condition::Torn {
            cut(disk, server, number, &scan, bytes.len() as u64).map_err(in_words)?;
        }
        found.push((number, judge(server, &scan, bytes.len() as u64)));
    }
    // A forget stands for all that came before it.
    let first = found.iter().rposition(|(_, found)| matches!(found, Some(Found::Forget { .. }))).unwrap_or(0);
    let older: Vec<u64> = found[..first].iter().map(|(number, _)| *number).collect();
    for &(number, found) in &found[first..] {
        match found {
            Some(found) => server.find(number, found, total),
            None => server.remove(disk, &[number]),
        }
    }
    server.remove(disk, &older);
    numbers.iter().for_each(|&number| server.skip_number(number));
    Ok(())
}

/// What a segment is taken for; nothing if it holds nothing.
fn judge(server: &Server, scan: &Scan, file_bytes: u64) -> Option<Found> {
    if scan.condition == Condition::Damaged {
        tracing::error!(
            server = %server.address, good_deletes = scan.records.len(),
            "the spool is damaged and deletes are lost: the server will forget everything before it is read"
        );
        return Some(Found::Forget { is_durable: false, bytes: file_bytes });
    }
    if scan.records.contains(&Record::Forget) {
        return Some(Found::Forget { is_durable: scan.records == [Record::Forget], bytes: scan.good_bytes });
    }
    let records = scan.records.len() as u64;
    (records > 0).then_some(Found::Deletes { records, bytes: scan.good_bytes })
}

fn cut(disk: &dyn Disk, server: &Server, number: u64, scan: &Scan, file_bytes: u64) -> io::Result<()> {
    let torn_bytes = file_bytes - scan.good_bytes;
    tracing::warn!(
        server = %server.address, torn_bytes, deletes = scan.records.len(),
        "the end of a file of the spool was being written when the router or its machine ended: it is cut off"
    );
    disk.truncate(&server.folder, &file_name(number), scan.good_bytes)
}

/// The name of the file that says that the server is held for `owner`.
pub(super) fn hold_name(owner: Owner) -> String {
    format!("{:016x}.hold", owner.0)
}

fn hold_owner(name: &str) -> Option<Owner> {
    let digits = name.strip_suffix(".hold").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(Owner)
}

/// Who this router is for others: the same as in the run before, drawn from `seed` at the first; and how many runs came
/// before. The number is on disk when this returns.
pub(super) fn identify(disk: &dyn Disk, seed: u64) -> Result<(Owner, u64), String> {
    let in_words = |error: io::Error| format!("the spool cannot say who this router is: {error}");
    let mut found = (Owner(fastrand::Rng::with_seed(seed).u64(1..)), 0);
    let mut names = disk.files(IDENTITY_FOLDER).unwrap_or_default();
    // Of several, the last is the newest; the others are left from a crash.
    for name in &names {
        if let Some((owner, run)) = name.split_once('-')
            && let (Ok(owner), Ok(run)) = (u64::from_str_radix(owner, 16), run.parse())
            && run >= found.1
        {
            found = (Owner(owner), run);
        }
    }
    let run = found.1 + 1;
    let name = format!("{:016x}-{run}", found.0.0);
    disk.write(IDENTITY_FOLDER, &name, 0, b"the name of this file says it\n", true).map_err(in_words)?;
    names.retain(|other| *other != name);
    for old in names {
        disk.remove(IDENTITY_FOLDER, &old).map_err(in_words)?;
    }
    Ok((found.0, run))
}

/// Replaces all that `server` owes by a forget.
pub(super) fn retire(disk: &dyn Disk, server: &Server, total: &TotalBytes) {
    let place = server.begin_forget();
    let Place::Forget { number } = place else { return };
    let mut bytes = HEADER.to_vec();
    encode(&Record::Forget, &mut bytes);
    let written = disk.write(&server.folder, &file_name(number), 0, &bytes, true);
    let mut dropped = Vec::new();
    let counted = written.as_ref().map(|()| (1, (bytes.len() - HEADER.len()) as u64));
    server.end(place, counted, total, &mut dropped);
    server.remove(disk, &dropped);
    match written {
        Ok(()) => tracing::warn!(
            server = %server.address,
            "the configuration does not name this server, which owes deletes: should it come back, it will forget everything"
        ),
        // Its deletes stay, which is as good, but for their size.
        Err(error) => tracing::error!(server = %server.address, %error, "the spool cannot be written to"),
    }
}

/// A server's folder.
pub(super) fn folder_name(address: &Address) -> String {
    let mut name = String::new();
    for &byte in address.0.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

/// The server of a folder, if it is one.
fn address_of(folder: &str) -> Option<Address> {
    let mut bytes = Vec::new();
    let mut rest = folder.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        bytes.push(match first {
            b'%' => {
                let (digits, behind) = rest.split_first_chunk::<2>()?;
                rest = behind;
                u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let address = Address(String::from_utf8(bytes).ok()?.into());
    let is_address = address.0.contains([':', '/']);
    (is_address && folder_name(&address) == folder).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_bears_its_servers_address() {
        for (address, folder) in [
            ("10.0.0.7:11211", "10.0.0.7%3A11211"),
            ("[::1]:11211", "%5B%3A%3A1%5D%3A11211"),
            ("cache-1.example:11211", "cache-1.example%3A11211"),
            ("/run/a b", "%2Frun%2Fa%20b"),
        ] {
            let address = Address(address.into());
            assert_eq!(folder_name(&address), folder);
            assert_eq!(address_of(folder), Some(address));
        }
        for other in ["", "router", "lost+found", "%4", "%zz", "a:1", "%3a"] {
            assert_eq!(address_of(other), None, "{other}");
        }
    }
}
