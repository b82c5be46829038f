//! mcrouter's flags, and what becomes of each here. `docs/from_mcrouter.md` has this table; a test compares them.
//!
//! **To support a flag**: declare it as an argument of [`crate::Options`], and turn its row into `Own` of that
//! argument.

use Effect::{Missing, Own, Refused, Same, Useless};
use ValueKind::{Integer, Level, Number, Optional, Text, Toggle};

/// A flag of the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag<'a> {
    /// Without the dashes.
    pub(crate) name: &'a str,
    /// `None` if there is no short form.
    pub(crate) short: Option<char>,
    pub(crate) value: ValueKind,
    pub(crate) effect: Effect<'a>,
}

/// The kind of value that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// None: the flag turns something on. `=0`, `=1`, `=false` and `=true` set it.
    Toggle,
    Integer,
    Number,
    Text,
    /// Text behind `=`, or none.
    Optional,
    /// A level of the log: `-v`, `-vv`, `-v3`, `-v 3`.
    Level,
}

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect<'a> {
    /// It is this argument here.
    Own(&'a str),
    /// Nothing is to be done, for this reason. It is not logged.
    Same(&'a str),
    /// It cannot have an effect here, for this reason. A line of the log says so.
    Useless(&'a str),
    /// It asks for something that does not happen. A line of the log says what.
    Missing(&'a str),
    /// It restricts access by means that do not exist here, so the router does not start.
    Refused(&'a str),
}

const fn flag(name: &'static str, value: ValueKind, effect: Effect<'static>) -> Flag<'static> {
    Flag { name, short: None, value, effect }
}

const fn short(short: char, flag: Flag<'static>) -> Flag<'static> {
    Flag { short: Some(short), ..flag }
}

const FIBERS: Effect<'static> = Useless("requests are tasks of tokio, not fibers");
const NO_DELAY: Effect<'static> = Useless("a change is read once it is complete, and applied at once");
const NO_THREADS: Effect<'static> = Useless("the kernel spreads connections over the threads of --num-proxies");
const NO_RTT: Effect<'static> = Useless("retransmissions and round trips are not measured");
const NO_THRIFT: Effect<'static> = Missing("servers and clients do not speak thrift here");
const NO_COMPRESSION: Effect<'static> = Missing("values are not compressed");
const NO_SHADOWS: Effect<'static> = Missing("copies to shadows are not bounded by it");
const NO_BOUND: Effect<'static> =
    Missing("requests are not held back by it; --target-max-pending-requests bounds them");
const NO_AXON: Effect<'static> = Missing("there are no such external connections");
const NO_QOS: Effect<'static> = Missing("sockets keep the system's class of service");
const NO_IDENTITY: Effect<'static> = Missing("ssl_service_identity of a pool names what its certificates must carry");
const RESTRICTS: Effect<'static> = Refused("it restricts access, and that check does not exist here");

/// mcrouter's flags in the order of their names.
pub(crate) const FLAGS: &[Flag<'static>] = &[
    short('D', flag("D", Text, Useless("it has no effect in mcrouter either"))),
    flag("acl-checker-enable", Toggle, Missing("no access list is read")),
    flag("acl-checker-enforce", Toggle, RESTRICTS),
    flag("additional-config-params", Text, Own("additional-config-params")),
    flag("additional-ssl-service-identities", Text, NO_IDENTITY),
    flag("allow-only-gets", Toggle, Own("allow-only-gets")),
    short('a', flag("async-dir", Text, Own("spool"))),
    flag("asynclog-disable", Toggle, Own("asynclog-disable")),
    short('b', flag("b", Toggle, Useless("the router stays in the foreground: a supervisor runs it"))),
    flag("big-value-batch-size", Integer, Own("big-value-batch-size")),
    flag("big-value-hide-reply-flag", Toggle, Own("big-value-hide-reply-flag")),
    flag("big-value-split-threshold", Integer, Own("big-value-split-threshold")),
    flag("carbon-router-name", Text, Useless("there is one kind of router")),
    flag("client-timeout", Integer, Own("client-timeout")),
    flag("collect-rxmit-stats-every-hz", Integer, NO_RTT),
    flag("config", Text, Own("config")),
    flag("config-dump-root", Text, Own("config-dump-root")),
    short('f', flag("config-file", Text, Own("config-file"))),
    flag("config-params", Text, Own("config-params")),
    flag("config-str", Text, Own("config-str")),
    flag("connect-timeout-retries", Integer, Missing("a connect timeout counts at once")),
    flag("constantly-reload-configs", Toggle, Useless("a configuration is read again when it has changed")),
    flag("core-multiplier", Number, Missing("threads are given by --num-proxies")),
    flag("core-multiplier-threshold", Integer, Missing("threads are given by --num-proxies")),
    flag("cross-cluster-timeout-ms", Integer, Own("cross-cluster-timeout-ms")),
    flag("cross-region-timeout-ms", Integer, Own("cross-region-timeout-ms")),
    short('d', flag("d", Toggle, Useless("it has no effect in mcrouter either"))),
    flag("debug-fifo-root", Text, Missing("requests are not written to pipes")),
    flag("default-qos-class", Integer, NO_QOS),
    flag("default-qos-path", Integer, NO_QOS),
    flag("delete-carbon-instance-upon-init-failure", Toggle, Useless("a router that cannot start ends")),
    flag("disable-failure-logging", Toggle, Missing("failures are logged")),
    flag("disable-fibers-use-guard-pages", Toggle, FIBERS),
    flag("disable-miss-on-get-errors", Toggle, Same("the default here")),
    flag("disable-reload-configs", Toggle, Own("disable-reload-configs")),
    flag("disable-request-deadline-check", Toggle, Useless("requests carry no deadline")),
    flag("disable-send-to-main-shard-split", Toggle, Useless("a host asks its own split only")),
    flag("disable-shard-split-route", Toggle, Own("disable-shard-split-route")),
    flag("disable-tko-tracking", Toggle, Own("disable-tko-tracking")),
    flag("dump_preprocessed_config_enabled", Toggle, Missing("__mcrouter__.preprocessed_config has it")),
    flag("enable-axonlog", Toggle, NO_AXON),
    flag("enable-compression", Toggle, NO_COMPRESSION),
    flag("enable-flush-cmd", Toggle, Own("enable-flush-cmd")),
    flag("enable-logging-route", Toggle, Own("enable-logging-route")),
    flag("enable-pass-through-mode", Toggle, Useless("replies are passed on as they are where they can be")),
    flag("enable-qos", Toggle, NO_QOS),
    flag("enable-server-compression", Toggle, NO_COMPRESSION),
    flag("enable-service-router", Toggle, NO_AXON),
    flag("enable-ssl-tfo", Toggle, Useless("connections are opened without TCP fast open")),
    flag("external-carbon-connection-log-max-burst", Integer, NO_AXON),
    flag("external-carbon-connection-log-rate-per-hour", Integer, NO_AXON),
    flag("external-carbon-connection-log-sample-rate", Integer, NO_AXON),
    flag("external-carbon-connection-logging-enabled", Toggle, NO_AXON),
    flag("fibers-max-pool-size", Integer, FIBERS),
    flag("fibers-pool-resize-period-ms", Integer, FIBERS),
    flag("fibers-record-stack-size-every", Integer, FIBERS),
    flag("fibers-stack-size", Integer, FIBERS),
    flag("file-observer-poll-period-ms", Integer, NO_DELAY),
    flag("file-observer-sleep-before-update-ms", Integer, NO_DELAY),
    flag("force-same-thread", Toggle, NO_THREADS),
    flag("gets", Toggle, Useless("gets are always passed on")),
    flag("group-remote-errors", Toggle, Own("group-remote-errors")),
    short('h', flag("help", Toggle, Own("help"))),
    flag("jemalloc-nodump-buffers", Toggle, Useless("the allocator is mimalloc")),
    short('K', flag("keepalive-count", Integer, Own("keepalive-count"))),
    short('I', flag("keepalive-idle", Integer, Own("keepalive-idle"))),
    short('i', flag("keepalive-interval", Integer, Own("keepalive-interval"))),
    flag("key-client-binding-enable", Toggle, RESTRICTS),
    flag("key-client-binding-nonlookaside-enable", Toggle, RESTRICTS),
    flag("key-client-binding-nonlookaside-verifier", Toggle, RESTRICTS),
    flag("listen-addresses", Text, Own("listen")),
    flag("listen-sock-fd", Integer, Own("listen-sock-fd")),
    short('L', flag("log-path", Text, Own("log-path"))),
    flag("logging-rtt-outlier-threshold-us", Integer, NO_RTT),
    flag("max-client-outstanding-reqs", Integer, Own("max-client-outstanding-reqs")),
    flag("max-conns", Integer, Own("max-conns")),
    flag("max-dumped-config-age", Integer, Own("max-dumped-config-age")),
    flag("max-no-flush-event-loops", Integer, Useless("replies are written when their batch is complete")),
    flag("max-rxmit-reconnect-threshold", Integer, NO_RTT),
    flag("max-shadow-token-map-size", Integer, Own("max-shadow-token-map-size")),
    flag("max_preprocessed_config_history", Integer, Missing("__mcrouter__.preprocessed_config has it")),
    flag("min-rxmit-reconnect-threshold", Integer, NO_RTT),
    flag("miss-on-get-errors", Toggle, Own("miss-on-get-errors")),
    flag("num-listening-sockets", Integer, NO_THREADS),
    flag("num-proxies", Integer, Own("num-proxies")),
    flag("pem-ca-path", Text, Own("pem-ca-path")),
    flag("pem-cert-path", Text, Own("pem-cert-path")),
    flag("pem-key-path", Text, Own("pem-key-path")),
    flag("pool-stats-config-file", Text, Missing("statistics by pool are metrics (--metrics-address)")),
    short('p', flag("port", Text, Own("port"))),
    flag("post-reconfiguration-delay-ms", Integer, NO_DELAY),
    flag("prefix-acl-checker-enable", Toggle, Missing("no access list is read")),
    flag("prefix-acl-checker-enforce", Toggle, RESTRICTS),
    short('r', flag("probe-timeout-initial", Integer, Own("probe-timeout-initial"))),
    flag("probe-timeout-max", Integer, Own("probe-timeout-max")),
    flag("proxy-cpu-interval-s", Integer, Useless("servers are not sent the router's load")),
    flag("proxy-max-inflight-requests", Integer, NO_BOUND),
    flag("proxy-max-inflight-shadow-requests", Integer, NO_SHADOWS),
    flag("proxy-max-throttled-requests", Integer, NO_BOUND),
    flag("proxy-threads", Text, Own("num-proxies")),
    flag("reconfiguration-delay-ms", Integer, NO_DELAY),
    flag("reconfiguration-jitter-ms", Integer, NO_DELAY),
    flag("remote-thread", Toggle, NO_THREADS),
    flag("reset-inactive-connection-interval", Integer, Own("reset-inactive-connection-interval")),
    flag("retain-source-ip", Toggle, Same("routes know the client's address")),
    flag("retry-timeout", Integer, Own("probe-timeout-initial")),
    short('R', flag("route-prefix", Text, Own("route-prefix"))),
    flag("rss-limit-mb", Integer, Missing("the memory of the process is not limited by it")),
    flag("runtime-vars-file", Text, Own("runtime-vars-file")),
    flag("rxmit-latency-deviation-us", Integer, NO_RTT),
    flag("send-invalid-route-to-default", Toggle, Own("send-invalid-route-to-default")),
    flag("server-load-interval-ms", Integer, Useless("clients are not sent the router's load")),
    flag("server-pem-ca-path", Text, Own("server-pem-ca-path")),
    flag("server-pem-cert-path", Text, Own("server-pem-cert-path")),
    flag("server-pem-key-path", Text, Own("server-pem-key-path")),
    flag("server-ssl-service-identity", Text, Missing("clients' certificates are checked by their CA alone")),
    short('t', flag("server-timeout", Integer, Own("server-timeout"))),
    flag("service-name", Text, Own("service-name")),
    flag("skip-sanity-checks", Toggle, Useless("configurations are always checked")),
    flag("ssl-connection-cache", Toggle, Useless("TLS sessions are resumed where a server allows it")),
    flag("ssl-handshake-offload", Toggle, NO_THREADS),
    flag("ssl-port", Text, Own("ssl-port")),
    flag("ssl-require-peer-certs", Toggle, Own("ssl-require-peer-certs")),
    flag("ssl-service-identity", Text, NO_IDENTITY),
    flag("ssl-service-identity-authorization-enforce", Toggle, RESTRICTS),
    flag("ssl-service-identity-authorization-log", Toggle, NO_IDENTITY),
    flag("ssl-use-ktls12", Toggle, Useless("TLS is in the process")),
    flag("ssl-verify-peers", Toggle, Same("certificates of servers are always verified")),
    flag("stats-async-queue-length", Integer, Useless("statistics have no queue")),
    flag("stats-logging-interval", Integer, Own("stats-logging-interval")),
    flag("stats-root", Text, Own("stats-root")),
    flag("target-max-inflight-requests", Integer, Own("target-max-inflight-requests")),
    flag("target-max-pending-requests", Integer, Own("target-max-pending")),
    flag("target-max-shadow-requests", Integer, Own("target-max-shadow-requests")),
    flag("tcp-listen-backlog", Integer, Own("tcp-listen-backlog")),
    flag("tcp-rto-min", Integer, Useless("the system decides when it retransmits")),
    flag("tcp-zero-copy-threshold", Integer, Useless("replies are copied to the socket")),
    flag("test-mode", Toggle, Useless("there is no such mode")),
    flag("tfo-queue-size", Integer, Useless("connections are opened without TCP fast open")),
    flag("thread-affinity", Toggle, NO_THREADS),
    flag("thrift-compression-threshold", Integer, NO_THRIFT),
    flag("thrift-listen-sock-fd", Integer, NO_THRIFT),
    flag("thrift-port", Text, NO_THRIFT),
    flag("timeouts-until-tko", Integer, Own("timeouts-until-tko")),
    flag("tls-prefer-ocb-cipher", Toggle, Useless("rustls chooses the cipher")),
    flag("tls-ticket-key-seed-path", Text, Missing("tickets of TLS sessions end with the process")),
    flag("unix-domain-sock", Text, Own("unix-domain-sock")),
    flag("use-asynclog-version2", Toggle, Missing("the spool has a layout of its own, which the router replays")),
    flag("use-mux-io-thread-pool", Toggle, NO_THREADS),
    flag("use-thrift", Toggle, NO_THRIFT),
    flag("validate-config", Optional, Own("validate-config")),
    short('v', flag("verbosity", Level, Own("verbosity"))),
    short('V', flag("version", Toggle, Own("version"))),
    flag("waiting-request-timeout-ms", Integer, NO_BOUND),
    flag("within-cluster-timeout-ms", Integer, Own("within-cluster-timeout-ms")),
];

/// What numbers an argument of this router can be, both ends included. mcrouter's range is wider, so a number beyond is
/// replaced by the nearest end.
const RANGES: &[(&str, i64, i64)] = &[
    ("big-value-batch-size", 0, U32_MAX),
    ("big-value-split-threshold", 0, 1 << 30),
    ("client-timeout", 0, U32_MAX),
    ("cross-cluster-timeout-ms", 0, U32_MAX),
    ("cross-region-timeout-ms", 0, U32_MAX),
    ("keepalive-count", 0, 127),
    ("keepalive-interval", 1, 32_767),
    ("max-client-outstanding-reqs", 0, U32_MAX),
    ("max-conns", 0, U32_MAX),
    ("max-dumped-config-age", 0, i64::MAX),
    ("max-shadow-token-map-size", 0, U32_MAX),
    ("num-proxies", 0, 1_024),
    ("probe-timeout-initial", 1, U32_MAX),
    ("probe-timeout-max", 1, U32_MAX),
    ("reset-inactive-connection-interval", 0, U32_MAX),
    ("server-timeout", 1, U32_MAX),
    ("stats-logging-interval", 0, i64::MAX),
    ("target-max-inflight-requests", 0, U32_MAX),
    ("target-max-pending", 1, U32_MAX),
    ("target-max-shadow-requests", 0, U32_MAX),
    ("tcp-listen-backlog", 1, i32::MAX as i64),
    ("timeouts-until-tko", 1, U32_MAX),
    ("within-cluster-timeout-ms", 0, U32_MAX),
];

const U32_MAX: i64 = u32::MAX as i64;

/// The first and the last number that an argument can be; `None` if it is no number, or not to be replaced:
/// a descriptor, and `keepalive-idle`, whose `-I` is the largest value in memcached's command lines.
pub(super) fn range_of(own: &str) -> Option<(i64, i64)> {
    RANGES.iter().find(|(name, ..)| *name == own).map(|(_, first, last)| (*first, *last))
}

/// Arguments that mcrouter refuses too if they are below the range.
pub(super) const STRICT: &[&str] = &["keepalive-count", "keepalive-idle", "keepalive-interval", "server-timeout"];

/// mcrouter's defaults of flags that are no arguments here, where they are not 0, off or empty.
const DEFAULTS: &[(&str, &str)] = &[
    ("carbon-router-name", "Memcache"),
    ("core-multiplier", "0.0"),
    ("external-carbon-connection-log-max-burst", "500"),
    ("external-carbon-connection-log-rate-per-hour", "3600"),
    ("external-carbon-connection-log-sample-rate", "10000"),
    ("fibers-max-pool-size", "1000"),
    ("fibers-pool-resize-period-ms", "60000"),
    ("fibers-record-stack-size-every", "100000"),
    ("fibers-stack-size", "24576"),
    ("file-observer-poll-period-ms", "100"),
    ("file-observer-sleep-before-update-ms", "1000"),
    ("max-no-flush-event-loops", "5"),
    ("num-listening-sockets", "1"),
    ("reconfiguration-delay-ms", "1000"),
    ("server-ssl-service-identity", "memcache"),
    ("stats-async-queue-length", "50"),
    ("tcp-rto-min", "-1"),
    ("tfo-queue-size", "100000"),
    ("thrift-listen-sock-fd", "-1"),
];

impl Flag<'_> {
    /// Its value in mcrouter if it is not given.
    pub(crate) fn default(&self) -> &'static str {
        match (DEFAULTS.iter().find(|(name, _)| *name == self.name), self.value) {
            (Some((_, default)), _) => default,
            (None, ValueKind::Toggle) => "false",
            (None, ValueKind::Integer | ValueKind::Number | ValueKind::Level) => "0",
            (None, ValueKind::Text | ValueKind::Optional) => "",
        }
    }
}

/// Arguments of this router that restrict access. A flag that is written nearly like one of them is refused.
pub(super) const RESTRICTING: &[&str] = &[
    "allow-only-gets",
    "auth-file",
    "enable-sasl",
    "pem-ca-path",
    "server-pem-ca-path",
    "ssl-require-peer-certs",
    "unix-mask",
];
