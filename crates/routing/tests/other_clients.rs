//! Keys stay where other clients put them. The vectors were written by the client itself, with the script beside them.

use lookaside_routing::{HashFunction, KeyHash};

#[test]
fn keys_stay_where_python_memcached_put_them() {
    let hash = KeyHash { function: HashFunction::PythonMemcached, salt: String::new() };
    let lines: Vec<&str> = include_str!("vectors/python_memcached.txt").lines().collect();
    assert_eq!(lines.len(), 100);
    for line in lines {
        let [key, servers, index] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(hash.pick(key.as_bytes(), servers.parse().unwrap()).to_string(), index, "{line}");
    }
}
