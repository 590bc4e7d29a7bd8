//! The audit log: append-only, hash-chained JSON lines, written before the effect.
