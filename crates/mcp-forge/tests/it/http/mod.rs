//! The HTTP service: the real program, real sockets, clients of every kind.

mod collector;
mod crowd;
mod disks;
mod docs;
mod door;
mod environment_routes;
mod hostile;
mod lifecycle;
mod logged;
mod oauth;
mod observed;
mod principals;
mod quotas;
mod rest;
pub(crate) mod rows;
mod served;
mod tasks;
mod traced;
mod troubles;
mod uploads;
