//! The built binary, over real sockets: well-behaved clients, misbehaving clients, and the process itself.

mod binary_stats;
mod process;
mod running_server;
mod slow_clients;
mod text_protocol;
mod udp;
