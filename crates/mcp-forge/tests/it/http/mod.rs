//! The HTTP service: the real program, real sockets, clients of every kind.

mod docs;
mod door;
mod environment_routes;
mod hostile;
mod lifecycle;
mod observed;
mod principals;
mod quotas;
mod rest;
mod served;
mod traced;
