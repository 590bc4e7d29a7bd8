//! What is refused and why, what is accepted and how it is written again.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Specs that must never reach an installer, each with the reason that is given: rows J1 to J4 of
/// the list of attacks, and those of J10 and J14 that could stand where a package does.
const HOSTILE: &[(&str, &[&str])] = &[
    (
        "Option",
        &[
            "--index-url http://x",
            "--index-url=http://x",
            "-i http://x",
            "-i x",
            "--extra-index-url https://x/simple",
            "-r /etc/passwd",
            "-r requirements.txt",
            "--requirement=/etc/shadow",
            "-c constraints.txt",
            "-e .",
            "-e git+https://x/y",
            "--editable .",
            "--find-links /tmp",
            "-f https://x",
            "--no-index",
            "--config-settings a=b",
            "--no-binary :all:",
            "--only-binary=:none:",
            "--pre",
            "--trusted-host x",
            "--prefer-binary",
            "-",
            "--",
            "-rf",
            "  -r x",
            "numpy --index-url http://x",
            "numpy==1.0 --hash=sha256:0000",
            "numpy -r /etc/passwd",
            "numpy==1.0 --global-option=x",
            "numpy==1.0 --config-settings x=y",
        ],
    ),
    (
        "Control",
        &[
            "numpy\n--index-url http://x",
            "numpy\r--index-url http://x",
            "numpy\r\npandas",
            "numpy\n",
            "\nnumpy",
            "numpy\0",
            "numpy\0.evil",
            "numpy\t==1.0",
            "\tnumpy",
            "numpy\u{b}",
            "numpy\u{c}evil",
            "numpy\u{1b}[2K",
            "numpy\u{7f}",
            "numpy\u{8}\u{8}",
            "3.12\nRUN id",
            "numpy\nENV X=1",
            "numpy\nONBUILD RUN id",
            "# syntax=evil/frontend\nnumpy",
            "RUN <<EOF\nid\nEOF",
        ],
    ),
    (
        "NotAscii",
        &[
            "numpy\u{2028}--index-url http://x",
            "numpy\u{2029}pandas",
            "numpy\u{85}pandas",
            "numpyſ",
            "ｎｕｍｐｙ",
            "numpy\u{200b}",
            "\u{200b}numpy",
            "\u{feff}numpy",
            "nump\u{443}",
            "r\u{435}quests",
            "numpy\u{202e}",
            "numpy\u{a0}==1.0",
            "numpy\u{2003}",
            "numpy＝＝1.0",
            "numpy==１.0",
            "numpy==1․0",
            "numpy；x",
            "scikit‐learn",
            "naïve",
            "numpy\u{301}",
            "😀",
        ],
    ),
    (
        "Marker",
        &[
            "numpy; python_version > '3'",
            "numpy;",
            ";numpy",
            "numpy==1.0;extra=='x'",
            "numpy; id",
            "numpy ;os_name=='posix'",
        ],
    ),
    (
        "Comment",
        &[
            "numpy # fine",
            "#numpy",
            "numpy#egg=x",
            "# syntax=evil/frontend",
            "numpy==1.0#",
        ],
    ),
    (
        "Expansion",
        &[
            "${HOME}",
            "$X",
            "numpy==${VERSION}",
            "${SECRETX}",
            "numpy @ https://x/${SECRETX}",
            "https://x/${SECRETX}",
            "%x%",
            "%USERPROFILE%",
            "%2e%2e",
            "numpy`id`",
            "$(id)",
            "numpy$IFS",
        ],
    ),
    (
        "DirectReference",
        &[
            "numpy @ https://x/numpy-1.0-py3-none-any.whl",
            "numpy@https://x/y.whl",
            "numpy @ file:///etc/passwd",
            "numpy @ git+https://x/y",
            "numpy @ git+ssh://git@x/y",
            "numpy @ ./local",
            "numpy[a] @ https://x",
            "numpy@1.0",
            "@scope/name",
            "name@sha256:0000",
            "numpy @",
        ],
    ),
    (
        "Address",
        &[
            "https://x/numpy-1.0-py3-none-any.whl",
            "http://169.254.169.254/",
            "file:///etc/passwd",
            "file:numpy",
            "git+https://x/y",
            "git+ssh://git@x/y.git",
            "hg+http://x/y",
            "svn+ssh://x",
            "docker://x",
            "oci:x",
            "dir:x",
            "C:\\numpy",
            "://",
            "numpy==1.0:x",
        ],
    ),
    (
        "Path",
        &[
            ".",
            "..",
            "./numpy",
            "../numpy",
            "/numpy",
            "/etc/passwd",
            "a/b",
            "numpy/",
            "~",
            "~/numpy",
            "~root",
            ".numpy",
            "numpy-1.0-py3-none-any.whl",
            "numpy.tar.gz",
            "numpy-1.0.zip",
            "NUMPY.WHL",
            "numpy.tgz",
            "numpy.egg",
            "//x/share",
        ],
    ),
    (
        "Backslash",
        &[
            "numpy \\",
            "numpy\\",
            "\\\\x\\share",
            "numpy\\nevil",
            ".\\numpy",
            "numpy==1.0 \\",
        ],
    ),
    (
        "Name",
        &[
            "numpy.",
            "numpy-",
            "numpy_",
            "_numpy",
            "numpy.==1.0",
            "==1.0",
            "~=1.0",
            ">=1.0",
            "*",
            "*numpy",
            "[extra]",
            "(numpy)",
            "\"numpy\"",
            "'numpy'",
            "!numpy",
            "{numpy}",
            "|id",
            "&id",
            "<<EOF",
            ",numpy",
            "=numpy",
        ],
    ),
    (
        "Extras",
        &[
            "numpy[",
            "numpy[]",
            "numpy[ ]",
            "numpy[a",
            "numpy[a,b==1.0",
            "numpy[a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q]",
        ],
    ),
    (
        "Extra",
        &[
            "numpy[*]",
            "numpy[a,]",
            "numpy[,]",
            "numpy[a b]",
            "numpy[-a]",
            "numpy[a=b]",
            "numpy[[a]]",
            "numpy['a']",
        ],
    ),
    (
        "Parentheses",
        &["numpy (>=1.0)", "numpy(==1.0)", "numpy[a] (>=1)"],
    ),
    (
        "Trailing",
        &[
            "numpy pandas",
            "numpy 1.0",
            "numpy*",
            "nump*",
            "numpy]",
            "numpy, pandas",
            "numpy,",
            "numpy[a]b",
            "numpy[a][b]",
            "numpy|id",
            "numpy&id",
            "numpy && id",
            "numpy\"",
            "numpy'",
            "numpy{1}",
            "numpy+cpu",
            "numpy^1.0",
            "numpy?",
            "num py",
            "ENV X=1",
            "RUN id",
            "os_name and numpy",
        ],
    ),
    (
        "ArbitraryEquality",
        &[
            "numpy===1.0",
            "numpy === 1.0",
            "numpy>=1,===1.0",
            "numpy====1.0",
        ],
    ),
    (
        "Operator",
        &[
            "numpy=1.0",
            "numpy=>1.0",
            "numpy=<1.0",
            "numpy<>1.0",
            "numpy!1.0",
            "numpy~1.0",
            "numpy>>1.0",
            "numpy>=1.0,",
            "numpy>=1.0,,<2",
            "numpy>=1.0,2.0",
            "numpy>==1.0",
            "numpy>=1.0, ,<2",
        ],
    ),
    (
        "Version",
        &[
            "numpy==",
            "numpy>= ",
            "numpy==abc",
            "numpy== =1.0",
            "numpy==,==1.0",
            "numpy==1.0 pandas",
            "numpy>=1.0 <2.0",
            "numpy== 1 .0",
            "numpy==1..0",
            "numpy==1.0.",
            "numpy==.1",
            "numpy==1.0x",
            "numpy==latest",
            "numpy==1.0-",
            "numpy==-1",
            "numpy==1.0+",
            "numpy==1e3",
            "numpy==0x10",
            "numpy==1.0|id",
            "numpy==1.0)",
            "numpy==\"1.0\"",
            "numpy==99999999999999999999",
            "numpy==1.0]",
        ],
    ),
    (
        "Local",
        &[
            "numpy==1.0+cpu",
            "torch==2.0+cu121",
            "numpy>=1.0+x",
            "numpy!=1.0+a.b",
        ],
    ),
    (
        "Wildcard",
        &[
            "numpy==*",
            "numpy==1*",
            "numpy==1.*.2",
            "numpy==1.*.*",
            "numpy>=1.*",
            "numpy<1.*",
            "numpy~=1.0.*",
            "numpy==1.0a1.*",
            "numpy==1.0.dev1.*",
            "numpy==1.0.post1.*",
            "numpy!=*.1",
        ],
    ),
    ("Compatible", &["numpy~=1", "numpy~=1a1", "numpy~=1!2"]),
    ("Empty", &["", " ", "     "]),
];

/// The variant's name.
fn kind(error: &RequirementError) -> String {
    let debug = format!("{error:?}");
    let end = debug.find(|letter: char| !letter.is_alphanumeric());
    debug[..end.unwrap_or(debug.len())].to_owned()
}

#[test]
fn hostile_specs_are_refused_each_for_its_reason() {
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for (expected, specs) in HOSTILE {
        for spec in *specs {
            assert!(seen.insert(*spec), "{spec:?} is there twice");
            let Err(error) = Requirement::parse(spec) else {
                panic!("{spec:?} is accepted")
            };
            if kind(&error) != *expected {
                wrong.push(format!("{spec:?} is not {expected} but {}", kind(&error)));
            }
            let shown = error.to_string();
            assert!(
                shown.is_ascii() || shown.contains('…') || *expected != "Control",
                "{shown}"
            );
            assert!(!shown.chars().any(char::is_control), "{shown:?}");
            assert!(shown.len() < 600, "{shown}");
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(seen.len() >= 120, "{}", seen.len());
}

#[test]
fn what_is_longer_than_any_real_spec_is_refused() {
    let long_name = "a".repeat(129);
    let long = format!("numpy=={}", "1.".repeat(300));
    let many = format!("numpy{}", ">=1,".repeat(17));
    // Its canonical text is longer than it is.
    let grows = format!("a=={}", ["1-1"; 16].join(",=="));
    let within = format!("{}{}", "b".repeat(128), &grows[1..]);
    for (spec, expected) in [
        (long_name.as_str(), "Name"),
        (&long, "TooLong"),
        (&"a".repeat(1 << 20), "TooLong"),
        (&"\u{443}".repeat(1 << 16), "TooLong"),
        (&many, "TooManySpecifiers"),
        (&format!("numpy=={}1", "1.".repeat(100)), "Version"),
    ] {
        let error = Requirement::parse(spec).unwrap_err();
        assert_eq!(kind(&error), expected, "{error}");
        assert!(error.to_string().len() < 600, "{error}");
    }
    for spec in [&grows, &within] {
        let requirement = Requirement::parse(spec).unwrap();
        assert_eq!(
            Requirement::parse(&requirement.to_string()),
            Ok(requirement)
        );
    }
}

#[test]
fn each_reason_names_the_text_the_rule_and_the_way_out() {
    let mut texts = String::new();
    for (_, specs) in HOSTILE {
        let error = Requirement::parse(specs[0]).unwrap_err();
        texts.push_str(&error.to_string());
        texts.push('\n');
    }
    insta::assert_snapshot!(texts);
}

/// What is accepted, and its canonical text. The integration test shows the same table to uv.
pub(in crate::packages) const ACCEPTED: &[(&str, &str)] = &[
    ("numpy", "numpy"),
    (" numpy ", "numpy"),
    ("NumPy", "numpy"),
    ("num.py", "num-py"),
    ("num_py", "num-py"),
    ("scikit_learn", "scikit-learn"),
    ("scikit--LEARN", "scikit-learn"),
    ("zope.interface", "zope-interface"),
    ("a._-b", "a-b"),
    ("0", "0"),
    ("numpy==1.24.0", "numpy==1.24.0"),
    ("numpy == 1.24.0", "numpy==1.24.0"),
    ("numpy>=1.24.0,<2", "numpy>=1.24.0,<2"),
    ("numpy >= 1.24.0 , < 2", "numpy>=1.24.0,<2"),
    ("numpy!=1.25", "numpy!=1.25"),
    ("numpy<=2.0", "numpy<=2.0"),
    ("numpy>1", "numpy>1"),
    ("numpy~=1.24", "numpy~=1.24"),
    ("numpy~=1.24.0rc1", "numpy~=1.24.0rc1"),
    ("numpy==1.*", "numpy==1.*"),
    ("numpy==1.24.*", "numpy==1.24.*"),
    ("numpy!=1.24.*", "numpy!=1.24.*"),
    ("numpy==2!1.*", "numpy==2!1.*"),
    ("numpy==2!1.0", "numpy==2!1.0"),
    ("numpy==0!1.0", "numpy==1.0"),
    ("numpy==v1.0", "numpy==1.0"),
    ("numpy==01.02", "numpy==1.2"),
    ("numpy==1.0alpha1", "numpy==1.0a1"),
    ("numpy==1.0-beta-2", "numpy==1.0b2"),
    ("numpy==1.0RC1", "numpy==1.0rc1"),
    ("numpy==1.0-1", "numpy==1.0.post1"),
    ("numpy==1.0.post1", "numpy==1.0.post1"),
    ("numpy>=1.0.dev0", "numpy>=1.0.dev0"),
    ("numpy==1.0a1.post2.dev3", "numpy==1.0a1.post2.dev3"),
    ("requests[socks]", "requests[socks]"),
    ("requests[socks,security]", "requests[security,socks]"),
    (
        "requests [ Socks , use_chardet ] >= 2.0",
        "requests[socks,use-chardet]>=2.0",
    ),
    ("requests[socks,socks]", "requests[socks]"),
    ("python-dateutil>=2.8.2", "python-dateutil>=2.8.2"),
    ("certifi==2026.10.19.post1", "certifi==2026.10.19.post1"),
];

#[test]
fn what_is_accepted_is_written_in_one_way() {
    for (text, canonical) in ACCEPTED {
        let requirement = Requirement::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(requirement.to_string(), *canonical);
        assert_eq!(Requirement::parse(canonical), Ok(requirement.clone()));
        let json = serde_json::to_string(&requirement).unwrap();
        assert_eq!(
            serde_json::from_str::<Requirement>(&json).unwrap(),
            requirement
        );
    }
    assert!(serde_json::from_str::<Requirement>("\"-r x\"").is_err());
}

/// Letters that mean nothing to a shell, a requirements file or a Containerfile where they stand.
fn is_safe(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-[],.=!<>~*".contains(letter)
}

fn near_misses() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-zA-Z0-9._-]{1,12}",
        "(==|!=|<=|>=|<|>|~=|===|=)",
        "v?[0-9]{1,3}(\\.[0-9]{1,2}){0,3}((a|b|rc|.post|.dev|-)[0-9]{0,2})?(\\.\\*)?",
        "\\[[a-zA-Z0-9._, -]{0,12}\\]",
        Just(",".to_owned()),
        Just(" ".to_owned()),
        "[;#@$%`/\\\\:\n\r\t\0~+!*(){}'\"|&-]",
        "\\PC",
    ];
    prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
}

fn plausible() -> impl Strategy<Value = String> {
    let version = "v?([0-9]!)?[0-9]{1,3}(\\.[0-9]{1,2}){0,3}([._-]?(a|beta|rc|pre|post|rev|dev)[._-]?[0-9]{0,2}){0,2}(\\.\\*)?";
    let name = "[a-zA-Z0-9]([a-zA-Z0-9._-]{0,10}[a-zA-Z0-9])?";
    let specifier = ("(==|!=|<=|>=|<|>|~=)", " ?", version).prop_map(|(a, b, c)| a + &b + &c);
    let specifiers = prop::collection::vec(specifier, 0..4).prop_map(|all| all.join(","));
    let extras = prop_oneof![
        Just(String::new()),
        prop::collection::vec(name, 1..4).prop_map(|all| format!("[{}]", all.join(","))),
    ];
    (name, extras, specifiers).prop_map(|(a, b, c)| a + &b + &c)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_is_accepted_is_written_safely_and_read_again(
        text in prop_oneof![near_misses(), plausible(), "\\PC{0,40}", "[ -~]{0,30}"],
    ) {
        if let Ok(requirement) = Requirement::parse(&text) {
            let written = requirement.to_string();
            prop_assert!(written.chars().all(is_safe), "{written:?}");
            prop_assert!(written.starts_with(requirement.name.as_str()));
            prop_assert!(written.starts_with(|first: char| first.is_ascii_alphanumeric()));
            prop_assert_eq!(Requirement::parse(&written), Ok(requirement));
        }
    }
}

/// The control of the property: its texts are accepted often enough to say something.
#[test]
fn many_of_the_random_texts_are_accepted() {
    use proptest::{strategy::ValueTree as _, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let accepted = (0..500)
        .filter(|_| {
            let text = plausible().new_tree(&mut runner).unwrap().current();
            Requirement::parse(&text).is_ok()
        })
        .count();
    assert!(accepted > 150, "{accepted} of 500");
}
