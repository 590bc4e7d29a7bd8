//! What both doors on HTTP share: reading bodies, and saying no.

mod intake;
mod problem;

pub(crate) use intake::{JsonError, Pieces, check_json, is_json, read_body};
pub(crate) use problem::{Problem, ProblemView, needs};
