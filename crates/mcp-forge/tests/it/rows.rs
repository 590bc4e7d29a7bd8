//! Lines of `docs/security-tests.md` whose tests are functions by their names.

/// One line.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) tried: &'static str,
    pub(crate) must: &'static str,
    /// Each as `file::function`.
    pub(crate) tests: &'static [&'static str],
    pub(crate) control: &'static str,
}

/// The control of a row that is about no layer.
pub(crate) const BEHAVIOUR: &str = "none: behaviour, not a layer";

/// A row about behaviour.
pub(crate) const fn row(
    id: &'static str,
    tried: &'static str,
    must: &'static str,
    tests: &'static [&'static str],
) -> Row {
    Row {
        id,
        tried,
        must,
        tests,
        control: BEHAVIOUR,
    }
}

/// As the document has them.
pub(crate) fn lines(rows: &'static [Row]) -> impl Iterator<Item = String> {
    rows.iter().map(|row| {
        let tests: Vec<String> = row.tests.iter().map(|test| format!("`{test}`")).collect();
        format!(
            "| {} | {} | {} | {} | {} |",
            row.id,
            row.tried,
            row.must,
            tests.join(", "),
            row.control
        )
    })
}

/// Every test that they name is in the file that they name.
pub(crate) fn exist(rows: &[Row], sources: &[(&str, &str)]) {
    let in_controls = rows.iter().flat_map(|row| row.control.split('`'));
    let in_controls = in_controls.filter(|part| part.contains("::"));
    for test in rows
        .iter()
        .flat_map(|row| row.tests)
        .copied()
        .chain(in_controls)
    {
        let (module, function) = test.split_once("::").unwrap();
        let (_, source) = sources
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("no module of {test}"));
        let begins = [format!("fn {function}("), format!("def {function}(")];
        assert!(begins.iter().any(|begin| source.contains(begin)), "{test}");
    }
}
