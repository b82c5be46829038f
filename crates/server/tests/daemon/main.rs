//! The built binary, over real sockets: clients that behave, clients that do not, and the process's own manners.

mod conversations;
mod process;
mod running_server;
mod slow_clients;
mod udp;
