//! Names of packages that were reported as malicious, and are nobody's honest package today.

use super::name::PackageName;

/// One line each: the name, and behind `#` the year and what was reported.
const LIST: &str = include_str!("malicious.txt");

/// What was reported of a name, if anything was.
pub(super) fn report(name: &PackageName) -> Option<&'static str> {
    entries()
        .find(|(listed, _)| *listed == name.as_str())
        .map(|(_, report)| report)
}

/// The names, normalised as they stand in the file, and what was reported of each.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    LIST.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('#'))
        .map(|(name, report)| (name.trim(), report.trim()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::packages::{Rules, Templates, Verdict};

    /// Among the most downloaded for years.
    const POPULAR: &str = "numpy pandas requests urllib3 certifi idna charset-normalizer setuptools \
        pip wheel six python-dateutil pyyaml packaging typing-extensions boto3 botocore s3transfer \
        jmespath click jinja2 markupsafe cryptography cffi pycparser attrs protobuf pytz tzdata rsa \
        pyasn1 google-api-core google-auth grpcio scipy scikit-learn matplotlib pillow sqlalchemy \
        flask werkzeug itsdangerous django fastapi pydantic pydantic-core starlette uvicorn httpx \
        httpcore h11 anyio sniffio aiohttp yarl multidict frozenlist aiosignal pytest pluggy \
        iniconfig tomli colorama tqdm rich pygments markdown-it-py mdurl beautifulsoup4 soupsieve \
        lxml openpyxl psycopg2 redis celery pyarrow torch tensorflow keras xgboost lightgbm \
        transformers tokenizers huggingface-hub seaborn plotly jupyter ipython notebook selenium \
        scrapy paramiko pynacl bcrypt fabric jellyfish pyjwt docker pystyle sympy networkx nltk spacy \
        opencv-python statsmodels numba polars duckdb mcp openai anthropic uv";

    #[test]
    fn every_line_is_a_name_with_its_report() {
        let lines = LIST.lines().filter(|line| !line.starts_with('#')).count();
        let names: BTreeSet<&str> = entries().map(|(name, _)| name).collect();
        assert_eq!(
            names.len(),
            lines,
            "a line without a report, or a name twice"
        );
        assert!(lines >= 60, "{lines}");
        for (name, report) in entries() {
            assert_eq!(PackageName::parse(name).unwrap().as_str(), name);
            let year = report.split(',').next().unwrap();
            assert!(
                (2016..=2026).contains(&year.parse().unwrap_or(0)),
                "{report}"
            );
            assert!(report.contains(": "), "{report}");
        }
    }

    #[test]
    fn no_popular_package_and_none_of_a_template_is_listed() {
        let rules = Rules::new(&[], false, &[], &[]).unwrap();
        let popular: Vec<PackageName> = POPULAR
            .split_whitespace()
            .map(|name| PackageName::parse(name).unwrap())
            .collect();
        assert!(popular.len() >= 100);
        let templates = Templates::built_in();
        let used = templates
            .iter()
            .flat_map(|(_, template)| &template.packages);
        let used: Vec<PackageName> = used.map(|package| package.name.clone()).collect();
        assert!(used.len() > 10);
        for name in popular.iter().chain(&used) {
            assert_eq!(rules.judge(name, false), Verdict::Allowed, "{name}");
        }
    }

    #[test]
    fn a_listed_name_is_blocked_in_every_spelling_and_whoever_allows_it() {
        let anything = ["*".to_owned()];
        let rules = Rules::new(&anything, false, &[], &[]).unwrap();
        for spelling in ["jeIlyfish", "python3_dateutil", "Python3.Dateutil", "CTX"] {
            let name = PackageName::parse(spelling).unwrap();
            let Verdict::Blocked { rule } = rules.judge(&name, true) else {
                panic!("{spelling} is not blocked")
            };
            assert!(rule.contains("malicious"), "{rule}");
        }
    }
}
