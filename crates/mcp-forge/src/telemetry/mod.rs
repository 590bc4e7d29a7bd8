//! What tells people of the server while it runs: numbers for Prometheus.

pub mod prometheus;
