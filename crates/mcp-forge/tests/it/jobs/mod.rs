//! Build jobs: what one can do, and what it cannot.

mod bench;
pub(crate) mod escape;
mod gateway;
mod limits;
mod uv;
