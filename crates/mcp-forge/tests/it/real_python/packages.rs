//! Packages with C code, from a virtual environment.

use std::path::{Path, PathBuf};

use mcp_forge::turn::{Outcome, Report};
use serde_json::json;

use super::places::roomy;
use crate::sandbox::run_with;

#[tokio::test(flavor = "multi_thread")]
async fn numpy_decomposes_a_matrix() {
    let report = run("
import numpy
matrix = numpy.random.default_rng(1).normal(size=(300, 200))
u, s, v = numpy.linalg.svd(matrix, full_matrices=False)
numpy.abs(u * s @ v - matrix).max() < 1e-10")
    .await;
    assert_eq!(report.result, json!(true), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pandas_groups_a_file() {
    let report = run("
import pandas
pandas.DataFrame({'city': ['Rome', 'Oslo', 'Rome'], 'total': [1.5, 2.0, 3.0]}).to_csv('orders.csv')
pandas.read_csv('orders.csv').groupby('city').total.sum()")
    .await;
    assert_eq!(
        report.result,
        json!({"name": "total", "index": ["Oslo", "Rome"], "data": [2.0, 4.5]}),
        "{report:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn matplotlib_shows_a_figure_that_nobody_showed() {
    let report = run("
import matplotlib.pyplot as plt
plt.plot([1, 3, 2])
plt.title('growth')
None")
    .await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    let images: Vec<_> = report
        .displays
        .iter()
        .filter_map(|display| display.data.get("image/png"))
        .collect();
    let [image] = images[..] else {
        panic!("{} images: {report:?}", images.len())
    };
    // The first bytes of every PNG file, in base64.
    assert!(
        image.as_str().unwrap().starts_with("iVBORw0KGgo"),
        "{image}"
    );
}

async fn run(code: &str) -> Report {
    let mut config = roomy();
    config.native.python = Some(python());
    let report = run_with(&config, code).await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    report
}

/// The virtual environment that `cargo xtask test` makes.
pub(crate) fn python() -> PathBuf {
    let tools = std::env::var_os("FORGE_TEST_TOOLS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-tools"),
        PathBuf::from,
    );
    let python = tools.join("venv/bin/python");
    assert!(
        python.exists(),
        "{} is missing: run cargo xtask test",
        python.display()
    );
    python
}
