//! The podman engine: containers, made through a container API's socket. Docker's speaks the same.

pub mod images;
pub mod socket;
pub mod versions;
