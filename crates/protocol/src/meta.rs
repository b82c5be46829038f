//! The meta dialect: `mg ms md ma me mn` (memcached's `protocol.txt`, "Meta Commands").

/// Which of the meta commands that name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// A meta command's verb, flags and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaOperation<B> {
    /// The verb.
    pub verb: MetaVerb,
    /// The flags as they were sent, separated by single spaces.
    pub flags: B,
    /// The value, of an `ms`.
    pub value: Option<B>,
}

/// What a meta command's answer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaStatus {
    /// `HD`: done, or found.
    Done,
    /// `VA`: found, and here is the value.
    Value,
    /// `EN`: a miss of `mg` or `me`.
    Miss,
    /// `NF`: not found.
    NotFound,
    /// `NS`: not stored.
    NotStored,
    /// `EX`: the CAS unique has changed.
    Exists,
    /// `ME`: an item's metadata.
    Debug,
}

/// The answer to a meta command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaReply<B> {
    /// How it went.
    pub status: MetaStatus,
    /// The flags (of `ME`: the key and the metadata), separated by single spaces.
    pub flags: B,
    /// The value; present with [`MetaStatus::Value`] and only then.
    pub value: Option<B>,
}

impl<B> MetaOperation<B> {
    /// The same operation with its bytes held another way.
    pub fn map<C>(self, mut hold: impl FnMut(B) -> C) -> MetaOperation<C> {
        MetaOperation { verb: self.verb, flags: hold(self.flags), value: self.value.map(hold) }
    }
}

impl<B> MetaReply<B> {
    /// The same reply with its bytes held another way.
    pub fn map<C>(self, mut hold: impl FnMut(B) -> C) -> MetaReply<C> {
        MetaReply { status: self.status, flags: hold(self.flags), value: self.value.map(hold) }
    }
}

/// A meta answer that is all in its line.
pub(crate) fn status_line<'a>(word: &[u8], rest: &'a [u8]) -> Option<MetaReply<&'a [u8]>> {
    let status = match word {
        b"HD" => MetaStatus::Done,
        b"EN" => MetaStatus::Miss,
        b"NF" => MetaStatus::NotFound,
        b"NS" => MetaStatus::NotStored,
        b"EX" => MetaStatus::Exists,
        b"ME" => MetaStatus::Debug,
        _ => return None,
    };
    Some(MetaReply { status, flags: rest.trim_ascii(), value: None })
}

/// `VA`, its length taken off.
pub(crate) fn value_line<'a>(rest: &'a [u8], value: &'a [u8]) -> MetaReply<&'a [u8]> {
    MetaReply { status: MetaStatus::Value, flags: rest.trim_ascii(), value: Some(value) }
}

/// Appends a meta command.
pub(crate) fn compose_meta_request<B: AsRef<[u8]>>(key: &[u8], operation: &MetaOperation<B>, out: &mut Vec<u8>) {
    out.extend_from_slice(match operation.verb {
        MetaVerb::Get => b"mg ",
        MetaVerb::Set => b"ms ",
        MetaVerb::Delete => b"md ",
        MetaVerb::Arithmetic => b"ma ",
        MetaVerb::Debug => b"me ",
    });
    out.extend_from_slice(key);
    compose_rest(operation.flags.as_ref(), operation.value.as_ref().map(AsRef::as_ref), out);
}

/// Appends a meta answer.
pub(crate) fn compose_meta_reply<B: AsRef<[u8]>>(reply: &MetaReply<B>, out: &mut Vec<u8>) {
    out.extend_from_slice(match reply.status {
        MetaStatus::Done => b"HD",
        MetaStatus::Value => b"VA",
        MetaStatus::Miss => b"EN",
        MetaStatus::NotFound => b"NF",
        MetaStatus::NotStored => b"NS",
        MetaStatus::Exists => b"EX",
        MetaStatus::Debug => b"ME",
    });
    compose_rest(reply.flags.as_ref(), reply.value.as_ref().map(AsRef::as_ref), out);
}

fn compose_rest(flags: &[u8], value: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        out.push(b' ');
        out.extend_from_slice(itoa::Buffer::new().format(value.len()).as_bytes());
    }
    if !flags.is_empty() {
        out.push(b' ');
        out.extend_from_slice(flags);
    }
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}
