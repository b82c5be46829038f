//! The eight bytes in front of every datagram (memcached's `protocol.txt`, "UDP protocol").
