//! A client of etcd's JSON gateway: the requests that a watched configuration and a shared record need, over HTTP/1.1.
//! Keys, values and user names are sent in base64, revisions as strings of digits; fields that are zero or empty are
//! left out.
//!
//! | request | reply |
//! |---|---|
//! | `POST /v3/auth/authenticate` | a token, for the header `Authorization` of later requests |
//! | `POST /v3/kv/range` | the key's value, and the revision of the store at which it was read |
//! | `POST /v3/kv/txn` | whether a key had the expected revision, so that the changes were made; if not, the key |
//! | `POST /v3/watch` | a line of JSON for each batch of changes, for as long as the connection lasts |

use super::location::EtcdUser;
use super::record::{EtcdError, EtcdValue};
use crate::Network;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::BytesMut;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lookaside_routing::Address;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The limit on connecting, and on each reply: etcd's elections take at most a few seconds.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest reply, or line of a watch. etcd's default limit on values is 1.5 MiB; base64 adds a third.
const REPLY_BYTES_MAX: usize = 32 << 20;
/// How much of a foreign reply an error shows.
const SHOWN_CHARS_MAX: usize = 200;
/// Makes an etcd member end the watch when it has no leader: it would receive no changes.
const NEEDS_LEADER: &str = "grpc-metadata-hasleader";

/// A connection to one member of etcd.
pub(super) struct EtcdClient {
    endpoint: Address,
    sender: SendRequest<Full<Bytes>>,
    token: Option<String>,
    _driver: Driver,
}

/// The task that reads and writes the connection. It ends when this is dropped.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The key at one revision.
#[derive(Debug)]
pub(super) struct KeyState {
    /// `None` if the key does not exist.
    pub(super) value: Option<Vec<u8>>,
    /// The store's revision.
    pub(super) revision: i64,
}

#[derive(Debug)]
pub(super) enum WatchEvent {
    /// The last of some changes to the key.
    Changed(KeyState),
    /// etcd ends the watch: its first revision is compacted, or the user may not watch.
    Ended(String),
    /// An event that does not concern the key.
    Other,
}

impl EtcdClient {
    /// Connects, and logs in if there is a user.
    pub(super) async fn connect(
        network: &dyn Network,
        endpoint: &Address,
        user: Option<&EtcdUser>,
    ) -> Result<EtcdClient, String> {
        let connecting = async {
            let stream = network.connect(endpoint).await.map_err(|error| error.to_string())?;
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())
        };
        let connecting = with_deadline(connecting).await;
        let (sender, connection) = connecting.map_err(|why: String| format!("{endpoint}: {why}"))?;
        let driver = tokio::spawn(async move {
            // A pending request gets the error itself.
            let _ = connection.await;
        });
        let driver = Driver(driver.abort_handle());
        let mut gateway = EtcdClient { endpoint: endpoint.clone(), sender, token: None, _driver: driver };
        if let Some(user) = user {
            gateway.authenticate(user).await?;
        }
        Ok(gateway)
    }

    async fn authenticate(&mut self, user: &EtcdUser) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Token {
            token: String,
        }
        let body = json!({ "name": user.name, "password": user.password });
        let reply: Token = self.post_json("/v3/auth/authenticate", &body).await?;
        self.token = Some(reply.token);
        Ok(())
    }

    /// Reads the key. The read is linearizable: a member without a leader does not reply.
    pub(super) async fn range(&mut self, key: &str) -> Result<KeyState, String> {
        let reply = self.ask_range(key).await?;
        let value = reply.kvs.into_iter().next().map(|kv| self.decode_value(&kv.value)).transpose()?;
        Ok(KeyState { value, revision: reply.header.revision()? })
    }

    /// Reads the key and the revision of its last change.
    pub(super) async fn value(&mut self, key: &str) -> Result<EtcdValue, EtcdError> {
        let reply = self.ask_range(key).await?;
        Ok(self.value_of(reply.kvs)?)
    }

    async fn ask_range(&mut self, key: &str) -> Result<Range, EtcdError> {
        self.post_json("/v3/kv/range", &json!({ "key": BASE64.encode(key) })).await
    }

    /// Makes `changes`, each a key and its new value, or `None` to remove it, if the last change of `key` was at
    /// `revision`; 0 if there is no such key. Returns the revision of the changes, or the key if it had another one.
    pub(super) async fn compare_and_change(
        &mut self,
        key: &str,
        revision: i64,
        changes: &[(&str, Option<&str>)],
    ) -> Result<Result<i64, EtcdValue>, EtcdError> {
        let change = |(key, value): &(&str, Option<&str>)| match value {
            Some(value) => json!({ "request_put": { "key": BASE64.encode(key), "value": BASE64.encode(value) } }),
            None => json!({ "request_delete_range": { "key": BASE64.encode(key) } }),
        };
        let (changes, key) = (changes.iter().map(change).collect::<Vec<_>>(), BASE64.encode(key));
        let body = json!({
            "compare": [{ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() }],
            "success": changes,
            "failure": [{ "request_range": { "key": key } }],
        });
        let reply: Txn = self.post_json("/v3/kv/txn", &body).await?;
        if reply.succeeded {
            return Ok(Ok(reply.header.revision()?));
        }
        let range = reply.responses.into_iter().find_map(|response| response.response_range);
        Ok(Err(self.value_of(range.map(|range| range.kvs).unwrap_or_default())?))
    }

    fn value_of(&self, kvs: Vec<KeyValue>) -> Result<EtcdValue, String> {
        let Some(kv) = kvs.into_iter().next() else { return Ok(EtcdValue::default()) };
        let text = String::from_utf8(self.decode_value(&kv.value)?);
        let text = text.map_err(|error| self.error_context(&format!("the value is not text: {error}")))?;
        let revision = kv.mod_revision.parse();
        let revision = revision.map_err(|_| format!("malformed reply: the revision is {:?}", kv.mod_revision))?;
        Ok(EtcdValue { text: Some(text), revision })
    }

    /// Watches the key from `revision` on. The connection takes no more requests.
    pub(super) async fn watch(mut self, key: &str, revision: i64) -> Result<Watch, String> {
        let body = json!({ "create_request": { "key": BASE64.encode(key), "start_revision": revision.to_string() } });
        let response = with_deadline(self.post("/v3/watch", &body)).await;
        let response = response.map_err(|error: EtcdError| self.error_context(&error.to_string()))?;
        let mut watch = Watch { gateway: self, body: response.into_body(), read: BytesMut::new() };
        // The first line confirms the watch.
        match with_deadline(watch.next()).await? {
            WatchEvent::Ended(why) => Err(why),
            _ => Ok(watch),
        }
    }

    async fn post_json<T: DeserializeOwned>(&mut self, path: &str, body: &serde_json::Value) -> Result<T, EtcdError> {
        let asked = async {
            let mut body = self.post(path, body).await?.into_body();
            let mut reply = BytesMut::new();
            while let Some(piece) = next_chunk(&mut body).await? {
                reply.extend_from_slice(&piece);
                check_size(&reply)?;
            }
            let reply = serde_json::from_slice(&reply).map_err(|error| format!("malformed reply: {error}"))?;
            Ok::<T, EtcdError>(reply)
        };
        with_deadline(asked).await.map_err(|error: EtcdError| error.map(|why| self.error_context(why)))
    }

    async fn post(&mut self, path: &str, body: &serde_json::Value) -> Result<Response<Incoming>, EtcdError> {
        let mut request = Request::post(path)
            .header(HOST, &*self.endpoint.0)
            .header(CONTENT_TYPE, "application/json")
            .header(NEEDS_LEADER, "true");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::from(body.to_string())).map_err(|error| error.to_string())?;
        // After a reply the connection may have to be polled before it takes the next request.
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let response = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => {
                let (why, is_from_etcd) = refusal(status, response.into_body()).await;
                // A changed role takes effect with the next login.
                let is_outdated_login = why.contains("auth store is old");
                // Its status is also that of a full disk and of too many requests, which end.
                let is_too_large = why.contains("message larger than max");
                let is_refused = matches!(
                    status,
                    StatusCode::BAD_REQUEST
                        | StatusCode::FORBIDDEN
                        | StatusCode::NOT_FOUND
                        | StatusCode::PAYLOAD_TOO_LARGE
                );
                Err(match is_too_large || is_refused && !is_outdated_login {
                    // A proxy refuses what it finds too large, too, and then etcd does not get it.
                    true if is_from_etcd || status == StatusCode::PAYLOAD_TOO_LARGE => EtcdError::Refused(why),
                    true => EtcdError::Foreign(why),
                    false => EtcdError::Unavailable(why),
                })
            }
        }
    }

    fn decode_value(&self, value: &str) -> Result<Vec<u8>, String> {
        BASE64.decode(value).map_err(|error| self.error_context(&format!("the value is not base64: {error}")))
    }

    fn error_context(&self, why: &str) -> String {
        format!("{}: {why}", self.endpoint)
    }
}

pub(super) struct Watch {
    gateway: EtcdClient,
    body: Incoming,
    read: BytesMut,
}

impl Watch {
    /// The next event. Cancel safe. The error is the connection's end.
    pub(super) async fn next(&mut self) -> Result<WatchEvent, String> {
        loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                let line = self.read.split_to(end + 1);
                return self.parse_event(&line);
            }
            check_size(&self.read).map_err(|why| self.gateway.error_context(&why))?;
            match next_chunk(&mut self.body).await {
                Ok(Some(piece)) => self.read.extend_from_slice(&piece),
                Ok(None) => return Err(self.gateway.error_context("the watch ended")),
                Err(why) => return Err(self.gateway.error_context(&why)),
            }
        }
    }

    fn parse_event(&self, line: &[u8]) -> Result<WatchEvent, String> {
        let error_context = |why: &str| self.gateway.error_context(why);
        let line: WatchLine =
            serde_json::from_slice(line).map_err(|error| error_context(&format!("malformed watch event: {error}")))?;
        let result = match (line.result, line.error) {
            (Some(result), None) => result,
            (_, Some(error)) => return Ok(WatchEvent::Ended(error_context(&error.to_string()))),
            (None, None) => return Ok(WatchEvent::Other),
        };
        if result.canceled {
            let why = match result.compact_revision {
                Some(revision) => format!("revisions before {revision} are compacted"),
                None => result.cancel_reason,
            };
            return Ok(WatchEvent::Ended(error_context(&format!("the watch was canceled: {why}"))));
        }
        let Some(event) = result.events.into_iter().last() else { return Ok(WatchEvent::Other) };
        let is_put = event.kind.is_empty() || event.kind == "PUT";
        let value = is_put.then(|| self.gateway.decode_value(&event.kv.value)).transpose()?;
        Ok(WatchEvent::Changed(KeyState { value, revision: result.header.revision()? }))
    }
}

#[derive(Deserialize)]
struct Range {
    header: EtcdHeader,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct Txn {
    header: EtcdHeader,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<TxnResponse>,
}

#[derive(Deserialize)]
struct TxnResponse {
    response_range: Option<TxnRange>,
}

#[derive(Deserialize)]
struct TxnRange {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Default, Deserialize)]
struct EtcdHeader {
    #[serde(default)]
    revision: String,
}

impl EtcdHeader {
    fn revision(&self) -> Result<i64, String> {
        self.revision.parse().map_err(|_| format!("malformed reply: the revision is {:?}", self.revision))
    }
}

#[derive(Default, Deserialize)]
struct KeyValue {
    #[serde(default)]
    value: String,
    #[serde(default)]
    mod_revision: String,
}

#[derive(Deserialize)]
struct WatchLine {
    result: Option<WatchResult>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WatchResult {
    #[serde(default)]
    header: EtcdHeader,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    compact_revision: Option<String>,
    #[serde(default)]
    events: Vec<EtcdEvent>,
}

#[derive(Deserialize)]
struct EtcdEvent {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    kv: KeyValue,
}

async fn with_deadline<T, E: From<String>>(what: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    timeout(REPLY_TIMEOUT, what).await.unwrap_or_else(|_| Err(format!("no reply within {REPLY_TIMEOUT:?}").into()))
}

async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, String> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}

fn check_size(reply: &BytesMut) -> Result<(), String> {
    match reply.len() <= REPLY_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("a reply of more than {REPLY_BYTES_MAX} bytes")),
    }
}

/// The reason for refusing a request, and whether it is etcd's, and not that of a proxy in between.
async fn refusal(status: StatusCode, mut body: Incoming) -> (String, bool) {
    let first = next_chunk(&mut body).await.ok().flatten().unwrap_or_default();
    parse_refusal(status, &first)
}

/// The same of a reply whose body begins with `body`.
fn parse_refusal(status: StatusCode, body: &[u8]) -> (String, bool) {
    let fields: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_slice(body).ok();
    let field = |name: &str| fields.as_ref()?.get(name)?.as_str().map(str::to_owned);
    let Some(why) = field("message").or_else(|| field("error")) else {
        let shown = first_line(body).map(|line| format!(": {line:?}")).unwrap_or_default();
        return (format!("the reply is {status}, without a reason of etcd{shown}"), false);
    };
    // Its gateway has the number of gRPC's status beside the text.
    let has_code = fields.as_ref().is_some_and(|fields| fields.get("code").is_some_and(serde_json::Value::is_u64));
    let is_from_etcd = has_code || why.starts_with("etcdserver") || why.starts_with("grpc");
    (why, is_from_etcd)
}

/// The first line of a body that is not blank, without what is beyond `SHOWN_CHARS_MAX`.
fn first_line(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(SHOWN_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error was "400 Bad Request, without a reason of etcd", and the page of the proxy that says more was dropped.
    #[test]
    fn a_refusal_that_is_not_of_etcd_shows_how_its_body_begins() {
        let parse = |body: &[u8]| parse_refusal(StatusCode::BAD_REQUEST, body);
        let foreign = |shown: &str| (format!("the reply is 400 Bad Request, without a reason of etcd{shown}"), false);
        assert_eq!(parse(b"\r\n  <h1>no \x1b[1msuch\xff host</h1> \r\nsecond"), {
            foreign(": \"<h1>no \\u{1b}[1msuch\u{fffd} host</h1>\"")
        });
        assert_eq!(parse("\u{e9}".repeat(1_000).as_bytes()), foreign(&format!(": \"{}\"", "\u{e9}".repeat(200))));
        assert_eq!(parse(b"{\"reason\": 1}"), foreign(": \"{\\\"reason\\\": 1}\""));
        assert_eq!(parse(b" \r\n"), foreign(""));
        let (why, is_from_etcd) = parse(b"{\"message\": \"etcdserver: too many\", \"code\": 8}");
        assert_eq!((&*why, is_from_etcd), ("etcdserver: too many", true));
        assert_eq!(parse(b"{\"error\": \"no backend\"}"), ("no backend".to_owned(), false));
    }
}
