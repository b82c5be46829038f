//! What the kernel knows of this process, by mcrouter's names: memory, faults and processor time.

use crate::stats::counters::write_stat;
use std::fs;

/// The unit of times in `/proc`, which is the same on all machines.
const TICKS_PER_S: f64 = 100.0;

/// Fields of `/proc/self/stat` behind the name of the program.
const MINOR_FAULTS: usize = 7;
const MAJOR_FAULTS: usize = 9;
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;

/// Appends the lines of `stats`; none of what cannot be read.
pub(super) fn write(out: &mut Vec<u8>) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    for (name, at) in [("ps_num_minor_faults", MINOR_FAULTS), ("ps_num_major_faults", MAJOR_FAULTS)] {
        if let Some(faults) = field(at) {
            write_stat(name, faults, out);
        }
    }
    for (names, at) in
        [(["ps_user_time_sec", "rusage_user"], USER_TICKS), (["ps_system_time_sec", "rusage_system"], SYSTEM_TICKS)]
    {
        if let Some(ticks) = field(at) {
            let seconds = ticks as f64 / TICKS_PER_S;
            names.iter().for_each(|name| write_stat(name, format_args!("{seconds:.3}"), out));
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (name, wanted) in [("ps_rss", "VmRSS:"), ("ps_vsize", "VmSize:")] {
        let kib = status.lines().find_map(|line| line.strip_prefix(wanted)?.trim().strip_suffix(" kB"));
        if let Some(kib) = kib.and_then(|kib| kib.parse::<u64>().ok()) {
            write_stat(name, kib * 1024, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_number() {
        let mut out = Vec::new();
        write(&mut out);
        let text = String::from_utf8(out).expect("text");
        let number = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
            line.expect(name).parse().expect(name)
        };
        assert!(number("ps_rss") > 100_000.0 && number("ps_vsize") >= number("ps_rss"));
        assert!(number("ps_num_minor_faults") > 0.0 && number("ps_num_major_faults") >= 0.0);
        assert!(number("ps_user_time_sec") == number("rusage_user") && number("rusage_system") >= 0.0);
    }
}
