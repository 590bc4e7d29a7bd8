//! The connection to a runner: framed, bounded, untrusted on the way in.

pub mod wire;
