//! Which modules a snippet imports, as far as its lines tell: a hint for the engine, never a rule.

/// Names looked at, at most: a hint is not worth more.
const MOST_NAMES: usize = 64;

/// The top-level modules that the code names in `import` statements, each once. `asyncio` is one of
/// them where the code awaits.
pub(super) fn scan(code: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        let is_new = !names.iter().any(|known| known == name);
        if is_new && !name.is_empty() && names.len() < MOST_NAMES {
            names.push(name.to_owned());
        }
    };
    for statement in code.split(['\n', ';']) {
        let mut words = statement.split_whitespace();
        match words.next() {
            Some("import") => {
                let listed = statement.trim_start().trim_start_matches("import");
                listed.split(',').for_each(|name| add(top_level(name)));
            }
            Some("from") => words
                .next()
                .into_iter()
                .for_each(|name| add(top_level(name))),
            _ => {}
        }
        if statement.contains("await ") || statement.contains("async ") {
            add("asyncio");
        }
    }
    names
}

/// `numpy` of ` numpy.linalg as la`; nothing of `.relative`.
fn top_level(name: &str) -> &str {
    let name = name.trim_start();
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_found_wherever_they_stand() {
        let code = "import os, numpy.linalg as la; import pandas as pd\n\
                    from scipy import stats\n\
                    if True:\n    import json\n\
                    x = await f()\n\
                    text = 'import' + ' nothing'\n\
                    from . import me\n\
                    important = 1\nimport os";
        let expected = ["os", "numpy", "pandas", "scipy", "json", "asyncio"];
        assert_eq!(scan(code), expected);
    }

    #[test]
    fn a_snippet_that_is_all_imports_has_a_bounded_hint() {
        let code = (0..10_000)
            .map(|n| format!("import m{n}"))
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(scan(&code).len(), MOST_NAMES);
    }
}
