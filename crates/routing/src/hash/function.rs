//! Hashes by the names that configurations use, and the names and weights that each needs. No request passes here.
//!
//! | name | needs | origin |
//! |---|---|---|
//! | `Ch3`, `Crc32`, `ConstShard` | | mcrouter |
//! | `WeightedCh3` | weights from 0 to 1, 0.5 where missing | mcrouter |
//! | `Rendezvous`, `WeightedRendezvous` | tags; weights from 0 to 1, 0.5 where missing | mcrouter |
//! | `libmemcached`, `python-memcached`, `gomemcache` | | the client of that name |
//! | `libmemcached-ketama`, `spymemcached-ketama`, `pymemcache` | names | the client of that name |
//! | `libmemcached-ketama-weighted`, `dalli`, `twemproxy-ketama:DIGEST`, `twemproxy-modula:DIGEST` | names; whole weights from 1, 1 where missing | the client of that name |

use super::{
    ch3::SERVERS_MAX,
    digest::Digest,
    picker::{Picker, Table},
    rendezvous::{Pymemcache, Rendezvous},
    ring::Ring,
};
use std::{borrow::Cow, fmt};

/// How keys are spread over servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashFunction {
    /// mcrouter's consistent hash; the default.
    #[default]
    Ch3,
    /// mcrouter's Ch3 with a weight for each server.
    WeightedCh3,
    /// CRC-32 modulo the number of servers.
    Crc32,
    /// The key names its server.
    ConstShard,
    /// The server with the highest score.
    Rendezvous,
    /// The server with the highest weighted score.
    WeightedRendezvous,
    /// libmemcached without further behaviours: one-at-a-time modulo the number of servers.
    Libmemcached,
    /// libmemcached with `KETAMA` alone, whose points are no MD5s.
    LibmemcachedKetama,
    /// libmemcached with `KETAMA_WEIGHTED` (PHP's `OPT_LIBKETAMA_COMPATIBLE`).
    LibmemcachedKetamaWeighted,
    /// spymemcached's `KetamaNodeLocator`.
    SpymemcachedKetama,
    /// twemproxy's `distribution: ketama`.
    TwemproxyKetama(Digest),
    /// twemproxy's `distribution: modula`.
    TwemproxyModula(Digest),
    /// pymemcache's `HashClient`.
    Pymemcache,
    /// python-memcached's: 15 bits of CRC-32, modulo the number of servers.
    PythonMemcached,
    /// gomemcache's: CRC-32 modulo the number of servers.
    Gomemcache,
    /// dalli's ring.
    Dalli,
}

const PLAIN: [HashFunction; 14] = [
    HashFunction::Ch3,
    HashFunction::WeightedCh3,
    HashFunction::Crc32,
    HashFunction::ConstShard,
    HashFunction::Rendezvous,
    HashFunction::WeightedRendezvous,
    HashFunction::Libmemcached,
    HashFunction::LibmemcachedKetama,
    HashFunction::LibmemcachedKetamaWeighted,
    HashFunction::SpymemcachedKetama,
    HashFunction::Pymemcache,
    HashFunction::PythonMemcached,
    HashFunction::Gomemcache,
    HashFunction::Dalli,
];

/// The names of servers that a hash needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamesNeeded {
    /// None.
    No,
    /// Names of their own, which have to be given.
    Tags,
    /// `host:port`.
    HostAndPort,
    /// `host:port`, but `host` alone for port 11211.
    HostAndOddPort,
    /// `address:port`: the address that the client resolved, which is not known here.
    AddressAndPort,
}

/// The weights that a hash needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightsNeeded {
    /// None.
    No,
    /// From 0 to 1.
    Parts,
    /// Whole numbers from 1 to [`WEIGHT_MAX`].
    Whole,
}

impl HashFunction {
    /// All functions, twemproxy's with each digest.
    pub fn all() -> impl Iterator<Item = HashFunction> {
        let twemproxy = Digest::OF_TWEMPROXY
            .into_iter()
            .flat_map(|digest| [HashFunction::TwemproxyKetama(digest), HashFunction::TwemproxyModula(digest)]);
        PLAIN.into_iter().chain(twemproxy)
    }

    /// The function of that name.
    pub fn from_name(name: &str) -> Option<HashFunction> {
        HashFunction::all().find(|function| function.name() == name)
    }

    /// The name in a configuration.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            HashFunction::Ch3 => "Ch3",
            HashFunction::WeightedCh3 => "WeightedCh3",
            HashFunction::Crc32 => "Crc32",
            HashFunction::ConstShard => "ConstShard",
            HashFunction::Rendezvous => "Rendezvous",
            HashFunction::WeightedRendezvous => "WeightedRendezvous",
            HashFunction::Libmemcached => "libmemcached",
            HashFunction::LibmemcachedKetama => "libmemcached-ketama",
            HashFunction::LibmemcachedKetamaWeighted => "libmemcached-ketama-weighted",
            HashFunction::SpymemcachedKetama => "spymemcached-ketama",
            HashFunction::Pymemcache => "pymemcache",
            HashFunction::PythonMemcached => "python-memcached",
            HashFunction::Gomemcache => "gomemcache",
            HashFunction::Dalli => "dalli",
            HashFunction::TwemproxyKetama(digest) => return Cow::Owned(format!("twemproxy-ketama:{}", digest.name())),
            HashFunction::TwemproxyModula(digest) => return Cow::Owned(format!("twemproxy-modula:{}", digest.name())),
        })
    }

    pub(crate) fn names_needed(self) -> NamesNeeded {
        match self {
            HashFunction::Rendezvous | HashFunction::WeightedRendezvous => NamesNeeded::Tags,
            HashFunction::Pymemcache | HashFunction::Dalli => NamesNeeded::HostAndPort,
            HashFunction::LibmemcachedKetama
            | HashFunction::LibmemcachedKetamaWeighted
            | HashFunction::TwemproxyKetama(_)
            | HashFunction::TwemproxyModula(_) => NamesNeeded::HostAndOddPort,
            HashFunction::SpymemcachedKetama => NamesNeeded::AddressAndPort,
            _ => NamesNeeded::No,
        }
    }

    pub(crate) fn weights_needed(self) -> WeightsNeeded {
        match self {
            HashFunction::WeightedCh3 | HashFunction::WeightedRendezvous => WeightsNeeded::Parts,
            HashFunction::LibmemcachedKetamaWeighted
            | HashFunction::Dalli
            | HashFunction::TwemproxyKetama(_)
            | HashFunction::TwemproxyModula(_) => WeightsNeeded::Whole,
            _ => WeightsNeeded::No,
        }
    }

    /// Whether all of the key is hashed, as in other clients, or only the part before `|#|`.
    fn reads_whole_key(self) -> bool {
        !matches!(
            self,
            HashFunction::Ch3
                | HashFunction::WeightedCh3
                | HashFunction::Crc32
                | HashFunction::ConstShard
                | HashFunction::Rendezvous
                | HashFunction::WeightedRendezvous
        )
    }
}

/// A hash function with its names, weights and salt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyHash {
    /// The function.
    pub function: HashFunction,
    /// Appended to the hashed part of the key; empty by default. A change moves every key.
    pub salt: String,
    /// The weight of each server, if the function has weights. For missing ones see the table above.
    pub weights: Vec<f64>,
    /// The name of each server, if the function needs names.
    pub names: Vec<String>,
}

/// The maximum number of servers of a ring, or of a hash that computes a score for each.
pub const RING_SERVERS_MAX: usize = 10_000;

/// The largest whole weight.
pub const WEIGHT_MAX: u32 = 1_000;

/// Why a hash cannot spread keys over a number of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyHashError {
    /// There is no server, or there are too many.
    Servers {
        /// The number of servers.
        servers: usize,
        /// The maximum of this function.
        servers_max: usize,
    },
    /// There are not as many names as servers.
    Names {
        /// The function.
        function: HashFunction,
        /// The number of names.
        names: usize,
        /// The number of servers.
        servers: usize,
    },
    /// A weight is not valid for the function.
    Weight {
        /// The function.
        function: HashFunction,
        /// The server's index.
        server: usize,
    },
    /// No server has a weight above 0.
    NoWeight,
}

impl std::error::Error for KeyHashError {}

impl fmt::Display for KeyHashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyHashError::Servers { servers, servers_max } => {
                write!(f, "{servers} servers are too many for this hash: expected 1 to {servers_max}")
            }
            KeyHashError::Names { function, names, servers } => write!(
                f,
                "the hash {} needs names, and there are {names} for {servers} servers: expected one tag for each server",
                function.name()
            ),
            KeyHashError::Weight { function, server } => write!(
                f,
                "the weight of server {server} is not valid for the hash {}: expected {}",
                function.name(),
                match function.weights_needed() {
                    WeightsNeeded::Parts => "a number from 0 to 1".to_owned(),
                    _ => format!("a whole number from 1 to {WEIGHT_MAX}"),
                }
            ),
            KeyHashError::NoWeight => write!(f, "no server has a weight above 0: expected at least one"),
        }
    }
}

/// A weight of 1 in WeightedCh3.
const WHOLE: f64 = 4_294_967_296.0;

impl KeyHash {
    /// Makes the tables for a number of servers. Costs up to 160 MD5s or SHA-1s for each server, once.
    pub fn picker_for(&self, servers: usize) -> Result<Picker, KeyHashError> {
        self.check(servers)?;
        let (weights, names, count) = (self.all_weights(servers), &self.names, servers as u32);
        let table = match self.function {
            HashFunction::Ch3 => Table::Ch3(count),
            HashFunction::WeightedCh3 => {
                Table::WeightedCh3(weights.iter().map(|weight| (weight * WHOLE) as u64).collect())
            }
            HashFunction::Crc32 => Table::Remainder(Digest::Crc32Positive, count),
            HashFunction::ConstShard => Table::ConstShard(count),
            HashFunction::Rendezvous => Table::Rendezvous(Rendezvous::new(names, &[])),
            HashFunction::WeightedRendezvous => Table::Rendezvous(Rendezvous::new(names, &weights)),
            HashFunction::Libmemcached => Table::Remainder(Digest::OneAtATime, count),
            HashFunction::LibmemcachedKetama => Table::Ring(Digest::OneAtATime, Ring::libmemcached(names)),
            HashFunction::LibmemcachedKetamaWeighted => Table::Ring(Digest::Md5, Ring::ketama(names, &weights)),
            HashFunction::SpymemcachedKetama => Table::Ring(Digest::Md5, Ring::spymemcached(names)),
            HashFunction::TwemproxyKetama(digest) => Table::Ring(digest, Ring::ketama(names, &weights)),
            HashFunction::TwemproxyModula(digest) => {
                // twemproxy orders servers by their names, shorter ones first.
                let mut order: Vec<u32> = (0..count).collect();
                order.sort_by_key(|&at| (names[at as usize].len(), &names[at as usize]));
                let slots = order.into_iter().flat_map(|at| std::iter::repeat_n(at, weights[at as usize] as usize));
                Table::Slots(digest, slots.collect())
            }
            HashFunction::Pymemcache => Table::Pymemcache(Pymemcache::new(names)),
            HashFunction::PythonMemcached => Table::Remainder(Digest::PythonMemcached, count),
            HashFunction::Gomemcache => Table::Remainder(Digest::Crc32, count),
            HashFunction::Dalli => Table::Ring(Digest::Crc32, Ring::dalli(names, &weights)),
        };
        Ok(Picker { salt: self.salt.as_bytes().into(), whole_key: self.function.reads_whole_key(), table })
    }

    /// Checks that [`KeyHash::picker_for`] can make tables for a number of servers.
    pub(crate) fn check(&self, servers: usize) -> Result<(), KeyHashError> {
        let function = self.function;
        let (names_needed, weights_needed) = (function.names_needed(), function.weights_needed());
        let servers_max = match (names_needed, weights_needed) {
            (NamesNeeded::No, WeightsNeeded::No | WeightsNeeded::Parts) => SERVERS_MAX,
            _ => RING_SERVERS_MAX,
        };
        if !(1..=servers_max).contains(&servers) {
            return Err(KeyHashError::Servers { servers, servers_max });
        }
        if names_needed != NamesNeeded::No && self.names.len() != servers {
            return Err(KeyHashError::Names { function, names: self.names.len(), servers });
        }
        let is_valid = |weight: f64| match weights_needed {
            WeightsNeeded::No => true,
            WeightsNeeded::Parts => (0.0..=1.0).contains(&weight),
            WeightsNeeded::Whole => (1.0..=f64::from(WEIGHT_MAX)).contains(&weight) && weight.fract() == 0.0,
        };
        if let Some(server) = self.weights.iter().take(servers).position(|&weight| !is_valid(weight)) {
            return Err(KeyHashError::Weight { function, server });
        }
        match weights_needed == WeightsNeeded::Parts && self.all_weights(servers).iter().all(|&weight| weight == 0.0) {
            true => Err(KeyHashError::NoWeight),
            false => Ok(()),
        }
    }

    fn all_weights(&self, servers: usize) -> Vec<f64> {
        let missing = if self.function.weights_needed() == WeightsNeeded::Parts { 0.5 } else { 1.0 };
        self.weights.iter().copied().chain(std::iter::repeat(missing)).take(servers).collect()
    }
}
