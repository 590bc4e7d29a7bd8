//! The contract of engines: one table of cases that says what each of them must do the same.
//!
//! A case is code, what is asked beside it, and everything that must come back (`case.rs`). Each
//! engine runs the whole table against that (`engines.rs` lists them), and what the engines gave is
//! compared once more with each other. `docs/engines.md` lists the cases in which engines may differ.
//!
//! `CONTRACT_CASE=text` runs the cases with this text in their name. `REQUIRE_ENGINES=a,b` or `all`
//! makes it a failure when one of these engines is not to be had here; by default it is one for the
//! native engine.

use std::collections::BTreeSet;

use case::Case;
use engines::{ENGINES, EngineUnderTest};

mod case;
mod engines;
mod run;
mod show;
mod suite;

mod displays;
mod environment;
mod files;
mod limits;
mod outcomes;
mod processes;
mod sessions;
mod state;
mod stops;
mod streams;
mod tools;
mod values;

/// The page that users read is also what the test reads.
const PAGE: &str = include_str!("../../../../../docs/engines.md");

/// The whole contract.
fn table() -> impl Iterator<Item = &'static Case> {
    let topics = [
        outcomes::CASES,
        limits::CASES,
        streams::CASES,
        values::CASES,
        displays::CASES,
        tools::CASES,
        stops::CASES,
        files::CASES,
        environment::CASES,
        processes::CASES,
        sessions::CASES,
        state::CASES,
    ];
    topics.into_iter().flatten()
}

#[test]
fn native_warm_keeps_the_contract() {
    suite::check("native-warm");
}

#[test]
fn native_cold_keeps_the_contract() {
    suite::check("native-cold");
}

#[test]
fn podman_keeps_the_contract() {
    suite::check("podman");
}

#[test]
fn engines_agree_with_each_other() {
    suite::compare();
}

#[test]
fn each_engine_has_a_test() {
    let source = include_str!("mod.rs");
    for EngineUnderTest { name, .. } in ENGINES {
        assert!(
            source.contains(&format!("suite::check(\"{name}\")")),
            "{name}"
        );
    }
}

#[test]
fn names_are_unique_and_cases_are_many() {
    let names: BTreeSet<&str> = table().map(|case| case.name).collect();
    assert_eq!(names.len(), table().count(), "a name is used twice");
    assert!(names.len() >= 120, "{}", names.len());
}

#[test]
fn the_documented_differences_are_the_tested_ones() {
    let documented: Vec<&str> = PAGE
        .lines()
        .skip_while(|line| !line.starts_with("| Case "))
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Case "))
        .collect();
    let tested: Vec<String> = table().flat_map(case::rows).collect();
    assert_eq!(
        documented.join("\n"),
        tested.join("\n"),
        "put these rows into docs/engines.md"
    );
    for engine in table().flat_map(|case| case.differs).map(|one| one.engine) {
        assert!(ENGINES.iter().any(|known| known.name == engine), "{engine}");
    }
}
