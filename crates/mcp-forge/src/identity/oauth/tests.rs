//! Tests of access tokens: made, signed and forged here.
