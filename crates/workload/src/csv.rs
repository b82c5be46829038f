//! A line of Twitter's CSV (Yang et al., OSDI 2020): `timestamp,key,key size,value size,client,operation,ttl`. The last
//! three may be missing.

/// A request as a trace has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsvRequest<'a> {
    /// The second of the trace's clock.
    pub time_s: usize,
    /// The key, which may be anonymised, and be of another length than the real one.
    pub key: &'a str,
    /// The length of the real key, in bytes.
    pub key_bytes: u32,
    /// The length of the value, in bytes; 0 if the request has none and it is not known.
    pub value_bytes: u32,
    /// The client; `None` if the trace does not have it.
    pub client: Option<&'a str>,
    /// The operation, such as `get` or `set`; `None` if the trace does not have it.
    pub operation: Option<&'a str>,
    /// The exptime in seconds; 0: none.
    pub ttl_s: u32,
}

impl<'a> CsvRequest<'a> {
    /// Parses a line; `None` if it is malformed.
    pub fn parse(line: &'a str) -> Option<CsvRequest<'a>> {
        let mut fields = line.split(',').map(str::trim);
        let time_s = fields.next()?.parse().ok()?;
        let key = fields.next()?;
        let key_bytes = fields.next()?.parse().ok()?;
        let value_bytes = fields.next()?.parse().ok()?;
        let client = fields.next().filter(|client| !client.is_empty());
        let operation = fields.next().filter(|operation| !operation.is_empty());
        let ttl_s = fields.next().and_then(|field| field.parse().ok()).unwrap_or(0);
        Some(CsvRequest { time_s, key, key_bytes, value_bytes, client, operation, ttl_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_fields_may_be_missing() {
        let request = CsvRequest::parse("7,user:1,6,100,30,get,60").unwrap();
        assert_eq!((request.time_s, request.key, request.key_bytes, request.value_bytes), (7, "user:1", 6, 100));
        assert_eq!((request.client, request.operation, request.ttl_s), (Some("30"), Some("get"), 60));
        let request = CsvRequest::parse("7, user:1, 6, 100").unwrap();
        assert_eq!((request.client, request.operation, request.ttl_s), (None, None, 0));
        for line in ["", "7,user:1,6", "x,user:1,6,100", "7,user:1,-1,100"] {
            assert_eq!(CsvRequest::parse(line), None, "{line}");
        }
    }
}
