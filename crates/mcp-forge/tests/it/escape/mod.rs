//! Escape tests: hostile code in a real sandbox, and the same code without the layer that holds it.
//!
//! A row of a table is one attack. It runs twice. In a real sandbox it must fail, by its own account
//! and by what the host sees: canaries untouched, neighbours unharmed, nothing left behind. Then in
//! a test build that leaves a layer out it must *succeed*: a probe that cannot succeed proves
//! nothing. `docs/security-tests.md` lists the rows.

mod case;
pub(crate) mod elsewhere;
mod host;
mod look;
mod reliability;
mod siblings;
mod tables;
mod traces;

use case::Case;
pub(crate) use look::cgroups;

#[tokio::test]
async fn processes() {
    case::run_all(tables::PROCESSES).await;
}

#[tokio::test]
async fn memory_and_files() {
    case::run_all(tables::MEMORY_AND_FILES).await;
}

#[tokio::test]
async fn views() {
    case::run_all(tables::VIEWS).await;
}

#[tokio::test]
async fn kernel() {
    case::run_all(tables::KERNEL).await;
}

#[tokio::test]
async fn network() {
    case::run_all(tables::NETWORK).await;
}

#[tokio::test]
async fn python() {
    case::run_all(tables::PYTHON).await;
}

#[test]
fn the_documented_table_is_the_tested_one() {
    let documented = include_str!("../../../../../docs/security-tests.md");
    let rows: Vec<&str> = documented
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Row "))
        .collect();
    let tested: Vec<String> = tables::all()
        .map(Case::row)
        .chain(siblings::rows())
        .chain(reliability::rows())
        .chain(crate::sessions::rows::rows())
        .chain(crate::podman::escape::rows())
        .chain(crate::jobs::escape::rows())
        .chain(crate::environments::rows::rows())
        .chain(crate::http::rows::rows())
        .collect();
    assert_eq!(
        rows.join("\n"),
        tested.join("\n"),
        "put these rows into docs/security-tests.md"
    );
}
