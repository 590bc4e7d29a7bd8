//! Environments: packages that code may import, built once under policy.

pub mod gateway;
