//! Keys are on the same servers as with other clients. The vectors were written by the clients, each by the script
//! beside its file in `tests/vectors/`, which names the version.

use lookaside_routing::{HashFunction, KeyHash};

#[test]
fn keys_stay_where_python_memcached_put_them() {
    let hash = KeyHash { function: HashFunction::PythonMemcached, ..KeyHash::default() };
    let lines: Vec<&str> = include_str!("vectors/python_memcached.txt").lines().collect();
    assert_eq!(lines.len(), 100);
    for line in lines {
        let [key, servers, index] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let picker = hash.picker_for(servers.parse().unwrap()).unwrap();
        assert_eq!(picker.pick(key.as_bytes()).to_string(), index, "{line}");
    }
}

/// The name of a server in the file (`name=weight`) for a hash: libmemcached and twemproxy leave out the default port.
fn name(function: HashFunction, server: &str) -> String {
    match function {
        HashFunction::LibmemcachedKetama | HashFunction::LibmemcachedKetamaWeighted => {
            server.trim_end_matches(":11211").to_owned()
        }
        _ => server.to_owned(),
    }
}

/// `hash NAME`, `servers NAME=WEIGHT ...`, and then `key index` for each key.
fn check(vectors: &str, hashes: usize) {
    let (mut hash, mut picker) = (KeyHash::default(), None);
    let (mut cases, mut keys, mut wrong) = (0, 0, Vec::new());
    for line in vectors.lines() {
        if let Some(name) = line.strip_prefix("hash ") {
            let function = HashFunction::from_name(name).unwrap_or_else(|| panic!("{name}"));
            hash = KeyHash { function, ..KeyHash::default() };
            cases += 1;
        } else if let Some(servers) = line.strip_prefix("servers ") {
            let servers: Vec<(&str, &str)> =
                servers.split(' ').map(|server| server.rsplit_once('=').unwrap()).collect();
            hash.names = servers.iter().map(|(server, _)| name(hash.function, server)).collect();
            hash.weights = servers.iter().map(|(_, weight)| weight.parse().unwrap()).collect();
            picker = Some(hash.picker_for(servers.len()).unwrap());
        } else {
            let (key, index) = line.rsplit_once(' ').unwrap();
            let picked = picker.as_ref().unwrap().pick(key.as_bytes());
            keys += 1;
            if picked.to_string() != index {
                wrong.push(format!("{} over {:?}: {line}, not {picked}", hash.function.name(), hash.names));
            }
        }
    }
    assert_eq!((cases, keys), (hashes, hashes * 30));
    assert!(wrong.is_empty(), "{} of {keys}: {:#?}", wrong.len(), &wrong[..wrong.len().min(10)]);
}

#[test]
fn keys_stay_where_libmemcached_put_them() {
    check(include_str!("vectors/libmemcached.txt"), 10);
}

#[test]
fn keys_stay_where_gomemcache_put_them() {
    check(include_str!("vectors/gomemcache.txt"), 4);
}

#[test]
fn keys_stay_where_pymemcache_put_them() {
    check(include_str!("vectors/pymemcache.txt"), 4);
}

#[test]
fn keys_stay_where_dalli_put_them() {
    check(include_str!("vectors/dalli.txt"), 4);
}

#[test]
fn keys_stay_where_spymemcached_put_them() {
    check(include_str!("vectors/spymemcached.txt"), 4);
}

#[test]
fn keys_stay_where_twemproxy_put_them() {
    check(include_str!("vectors/twemproxy.txt"), 24);
}

/// Of mcrouter's: `rendezvous.py` says from which published parts.
#[test]
fn keys_stay_where_rendezvous_puts_them() {
    check(include_str!("vectors/rendezvous.txt"), 8);
}

#[test]
fn a_salt_is_put_behind_the_key() {
    for function in [HashFunction::Rendezvous, HashFunction::WeightedRendezvous, HashFunction::Ch3] {
        let names = (0..5).map(|name| name.to_string()).collect();
        let plain = KeyHash { function, names, weights: vec![0.5, 1.0, 0.25, 1.0, 1.0], ..KeyHash::default() };
        let salted = KeyHash { salt: "x:".into(), ..plain.clone() }.picker_for(5).unwrap();
        let plain = plain.picker_for(5).unwrap();
        for n in 0..200 {
            assert_eq!(salted.pick(format!("/r/c/{n}|#|y").as_bytes()), plain.pick(format!("{n}x:").as_bytes()));
        }
    }
}
