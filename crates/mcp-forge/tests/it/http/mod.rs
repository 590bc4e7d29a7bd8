//! The HTTP service: the real program, real sockets, clients of every kind.

mod crowd;
mod docs;
mod door;
mod environment_routes;
mod hostile;
mod lifecycle;
mod principals;
mod rest;
mod served;
mod tasks;
mod uploads;
