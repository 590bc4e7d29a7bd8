//! The help texts, and what the arguments mean.

use clap::{CommandFactory, Parser};

use super::*;

#[test]
fn arguments_are_consistent() {
    Arguments::command().debug_assert();
}

/// Every help text, as someone reads it who sees the command for the first time.
#[test]
fn help_texts() {
    let mut root = Arguments::command().term_width(100);
    root.build();
    insta::assert_snapshot!("help", root.render_long_help());
    for command in root.get_subcommands_mut() {
        if command.get_name() == "help" {
            continue;
        }
        let name = command.get_name().to_owned();
        insta::assert_snapshot!(format!("help_{name}"), command.render_long_help());
        for inner in command
            .get_subcommands_mut()
            .filter(|inner| inner.get_name() != "help")
        {
            insta::assert_snapshot!(
                format!("help_{name}_{}", inner.get_name()),
                inner.render_long_help()
            );
        }
    }
}

#[test]
fn code_comes_from_exactly_one_place() {
    let parse =
        |arguments: &[&str]| Arguments::try_parse_from([&["mcp-forge", "run"], arguments].concat());
    for arguments in [
        &["-c", "1"][..],
        &["file.py"],
        &["-"],
        &["-c", "1", "--tools", "a,b", "--timeout", "5m"],
    ] {
        assert!(parse(arguments).is_ok(), "{arguments:?}");
    }
    for arguments in [
        &[][..],
        &["-c", "1", "file.py"],
        &["-c", "1", "--timeout", "soon"],
        &["-c", "1", "--timeout", "NaN"],
    ] {
        assert_eq!(
            parse(arguments).unwrap_err().exit_code(),
            2,
            "{arguments:?}"
        );
    }
}

#[test]
fn the_callers_mistakes_are_told_from_ours() {
    let rejected = ServiceError::Rejected {
        field: "code".to_owned(),
        message: "x".to_owned(),
    };
    assert_eq!(CliError::from(rejected).exit(), Exit::Usage);
    assert_eq!(
        CliError::from(ConfigError::NoDataDirectory).exit(),
        Exit::Usage
    );
    assert_eq!(
        CliError::from(AuditError::ReservedField(String::new())).exit(),
        Exit::Internal
    );
}
