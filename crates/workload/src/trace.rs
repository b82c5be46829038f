//! Request traces: the object of each request, and the size of each object.
//!
//! Two forms are read, zstd-compressed (`.zst`) or not:
//!
//! * **Packed planes**, little-endian, without a header:
//!
//!   ```text
//!   | object of each request: low bytes (n) | middle bytes (n) | high bytes (n) |
//!   | size of each object: u16 x m | requests in each second: u16 x s |
//!   ```
//!
//!   Objects are numbered from 0 in order of first use, a size is key and value together, the seconds sum to n.
//! * **Twitter's CSV** (Yang et al., OSDI 2020): `timestamp,key,key size,value size,client,operation,ttl` a line.

use crate::csv::CsvRequest;
use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};
use thiserror::Error;

/// The length of every key of a trace in a file, in bytes.
pub const KEY_BYTES: usize = 10;

/// The largest trace that is read, in bytes after decompression.
pub const TRACE_BYTES_MAX: u64 = 4 << 30;

/// The longest trace that is read, in seconds of its own clock: a line with an absurd time must not fill memory.
const TRACE_S_MAX: usize = 10_000_000;

/// The longest line of a CSV file.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Gets the object, and fills the cache on a miss.
    Get,
    /// Stores the object.
    Set,
    /// Deletes the object.
    Delete,
}

/// A trace in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The number of each request's object.
    pub requests: Vec<u32>,
    /// The verb of each request; empty: all are gets.
    pub verbs: Vec<Verb>,
    /// The size of each object in bytes, key and value together.
    pub object_bytes: Vec<u32>,
    /// The exptime of each object, in seconds; 0: none. Empty: none for all.
    pub object_exptime_s: Vec<u32>,
    /// The number of requests in each second; their sum is the number of all requests.
    pub requests_per_s: Vec<u32>,
    /// The length of every key, in bytes.
    pub key_bytes: usize,
}

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's error. It is no source, whose words would be shown twice.
        why: io::Error,
    },
    /// The file is larger than [`TRACE_BYTES_MAX`].
    #[error("the trace is over the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// A line of a CSV file does not have the expected fields.
    #[error("line {line} of the trace is not `timestamp,key,key size,value size,client,operation,ttl`: {found:?}")]
    BadLine {
        /// The line number, from 1.
        line: usize,
        /// The line, truncated.
        found: String,
    },
    /// The bytes have neither form.
    #[error("the trace ({bytes} bytes) is neither packed nor Twitter's CSV")]
    Unknown {
        /// The file's size after decompression.
        bytes: usize,
    },
}

impl TraceError {
    fn unreadable(path: &Path, why: io::Error) -> TraceError {
        TraceError::Unreadable { path: path.display().to_string(), why }
    }

    fn bad_line(index: usize, line: &str) -> TraceError {
        TraceError::BadLine { line: index + 1, found: line.chars().take(80).collect() }
    }
}

/// Opens the file of a trace; `.zst` is decompressed.
fn open_file(path: &Path) -> Result<Box<dyn Read>, TraceError> {
    let unreadable = |source| TraceError::unreadable(path, source);
    let file = std::fs::File::open(path).map_err(unreadable)?;
    if path.extension().is_some_and(|extension| extension == "zst") {
        return Ok(Box::new(zstd::Decoder::new(file).map_err(unreadable)?));
    }
    Ok(Box::new(file))
}

/// Reads a trace in Twitter's CSV line by line, of any size, and calls `record` with each request.
pub fn read_csv(path: &Path, mut record: impl FnMut(&CsvRequest<'_>)) -> Result<(), TraceError> {
    let mut lines = BufReader::new(open_file(path)?);
    let mut line = Vec::new();
    for index in 0.. {
        line.clear();
        let read = (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(|source| TraceError::unreadable(path, source))? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            record(&CsvRequest::parse(&text).ok_or_else(|| TraceError::bad_line(index, &text))?);
        }
    }
    Ok(())
}

impl Trace {
    /// The verb of request number `index`.
    pub fn verb(&self, index: usize) -> Verb {
        self.verbs.get(index).copied().unwrap_or(Verb::Get)
    }

    /// The exptime of an object, in seconds; 0: none.
    pub fn exptime_s(&self, object: u32) -> u32 {
        self.object_exptime_s.get(object as usize).copied().unwrap_or(0)
    }

    /// The length of an object's value: the object's size without the key, but at least 1.
    pub fn value_bytes(&self, object: u32) -> usize {
        (self.object_bytes[object as usize] as usize).saturating_sub(self.key_bytes).max(1)
    }

    /// Reads a trace from a file; `.zst` is decompressed.
    pub fn open(path: &Path) -> Result<Trace, TraceError> {
        let mut bytes = Vec::new();
        let read = open_file(path)?.take(TRACE_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|source| TraceError::unreadable(path, source))?;
        if bytes.len() as u64 > TRACE_BYTES_MAX {
            return Err(TraceError::TooLarge { limit_bytes: TRACE_BYTES_MAX });
        }
        Trace::parse(&bytes)
    }

    /// Reads a trace of either form from bytes.
    pub fn parse(bytes: &[u8]) -> Result<Trace, TraceError> {
        if let Some(trace) = parse_packed(bytes) {
            return Ok(trace);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if text.contains(',') => parse_csv(text),
            _ => Err(TraceError::Unknown { bytes: bytes.len() }),
        }
    }
}

/// The packed form has no header, but all of its parts fit for only one number of requests: the seconds, summed from
/// the end, give a candidate for n; the bytes in between give m; and objects must be numbered in order of first use.
fn parse_packed(bytes: &[u8]) -> Option<Trace> {
    let mut requests: usize = 0;
    for seconds in 1..=bytes.len() / 2 {
        let at = bytes.len() - 2 * seconds;
        requests += usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let other_bytes = 3 * requests + 2 * seconds;
        if other_bytes > bytes.len() {
            return None;
        }
        let sizes_bytes = bytes.len() - other_bytes;
        let objects = sizes_bytes / 2;
        if requests == 0 || !sizes_bytes.is_multiple_of(2) || objects == 0 || objects > requests {
            continue;
        }
        if let Some(objects_of_requests) = unpack_requests(&bytes[..3 * requests], objects) {
            let sizes = &bytes[3 * requests..][..sizes_bytes];
            return Some(Trace {
                requests: objects_of_requests,
                verbs: Vec::new(),
                object_bytes: words(sizes),
                object_exptime_s: Vec::new(),
                requests_per_s: words(&bytes[at..]),
                key_bytes: KEY_BYTES,
            });
        }
    }
    None
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]]))).collect()
}

fn unpack_requests(planes: &[u8], objects: usize) -> Option<Vec<u32>> {
    let requests = planes.len() / 3;
    let (low, rest) = planes.split_at(requests);
    let (middle, high) = rest.split_at(requests);
    let mut unpacked = Vec::new();
    let mut seen: u32 = 0;
    for ((&low, &middle), &high) in low.iter().zip(middle).zip(high) {
        let object = u32::from_le_bytes([low, middle, high, 0]);
        if object > seen {
            return None;
        }
        seen += u32::from(object == seen);
        unpacked.push(object);
    }
    (seen as usize == objects).then_some(unpacked)
}

/// Every line is a get of its object, whatever its operation: the replay fills by itself. An object's ttl is the
/// longest one of its lines.
fn parse_csv(text: &str) -> Result<Trace, TraceError> {
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    let (mut requests, mut object_bytes, mut object_exptime_s) = (Vec::new(), Vec::new(), Vec::new());
    let (mut requests_per_s, mut first_s) = (vec![0u32], None);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = || TraceError::bad_line(index, line);
        let request = CsvRequest::parse(line).ok_or_else(bad)?;
        let bytes = request.key_bytes.saturating_add(request.value_bytes);
        let next = object_bytes.len() as u32;
        let object = *numbers.entry(request.key).or_insert(next);
        if object == next {
            object_bytes.push(bytes);
            object_exptime_s.push(request.ttl_s);
        }
        let exptime_s = &mut object_exptime_s[object as usize];
        *exptime_s = request.ttl_s.max(*exptime_s);
        // Time never goes back: a line that is out of order is counted in the current second.
        let second =
            request.time_s.saturating_sub(*first_s.get_or_insert(request.time_s)).max(requests_per_s.len() - 1);
        if second > TRACE_S_MAX {
            return Err(bad());
        }
        requests_per_s.resize(second + 1, 0);
        requests_per_s[second] += 1;
        requests.push(object);
    }
    match requests.is_empty() {
        true => Err(TraceError::Unknown { bytes: text.len() }),
        false => {
            let verbs = Vec::new();
            Ok(Trace { requests, verbs, object_bytes, object_exptime_s, requests_per_s, key_bytes: KEY_BYTES })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(requests: &[u32], sizes: &[u16], seconds: &[u16]) -> Vec<u8> {
        let plane = |shift: u32| requests.iter().map(move |object| (object >> shift) as u8);
        let words = sizes.iter().chain(seconds).flat_map(|word| word.to_le_bytes());
        plane(0).chain(plane(8)).chain(plane(16)).chain(words).collect()
    }

    #[test]
    fn the_number_of_requests_of_a_packed_trace_is_found() {
        let requests: Vec<u32> = (0..700).map(|i| if i % 3 == 2 { i / 7 } else { i - i / 3 }).collect();
        let objects = *requests.iter().max().unwrap() + 1;
        let sizes: Vec<u16> = (0..objects as u16).map(|object| object + 20).collect();
        let bytes = packed(&requests, &sizes, &[300, 0, 400]);
        let trace = Trace::parse(&bytes).unwrap();
        assert_eq!(trace.requests, requests);
        assert_eq!(trace.object_bytes, sizes.iter().copied().map(u32::from).collect::<Vec<_>>());
        assert_eq!(trace.requests_per_s, [300, 0, 400]);
    }

    #[test]
    fn csv_numbers_objects_in_order_of_first_use() {
        let trace = Trace::parse(b"7,a,10,100,1,get,0\n7,b,11,5,1,get,0\n9,a,10,100,2,set,60\n").unwrap();
        assert_eq!(trace.requests, [0, 1, 0]);
        assert_eq!(trace.object_bytes, [110, 16]);
        assert_eq!(trace.requests_per_s, [2, 0, 1]);
        assert_eq!((trace.exptime_s(0), trace.exptime_s(1)), (60, 0));
        assert_eq!((trace.value_bytes(0), trace.value_bytes(1)), (110 - KEY_BYTES, 16 - KEY_BYTES));
    }

    #[test]
    fn an_invalid_trace_is_refused_with_the_line() {
        let error = Trace::parse(b"0,a,10,100,1,get,0\nnonsense, here\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2 of the trace"), "{error}");
        assert!(matches!(Trace::parse(&[0xff; 64]), Err(TraceError::Unknown { bytes: 64 })));
        assert!(matches!(Trace::parse(b""), Err(TraceError::Unknown { bytes: 0 })));
    }
}
