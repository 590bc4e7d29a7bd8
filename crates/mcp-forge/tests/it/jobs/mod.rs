//! Build jobs: what one can do, and what it cannot.

mod bench;
mod escape;
mod gateway;
mod limits;
mod uv;
