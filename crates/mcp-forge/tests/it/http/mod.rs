//! The HTTP service: the real program, real sockets, clients of every kind.

mod docs;
mod door;
mod environment_routes;
mod hostile;
mod lifecycle;
mod oauth;
mod principals;
mod rest;
pub(crate) mod rows;
mod served;
mod troubles;
