//! The binary as a shell sees it: exit codes, streams, signals.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

use mcp_forge::audit::Audit;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};

#[expect(clippy::disallowed_methods, reason = "the binary under test")]
pub(crate) fn command(data_dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::sandbox::binary());
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", data_dir)
        .args(arguments)
        .arg("--data-dir")
        .arg(data_dir)
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(data_dir: &Path, arguments: &[&str]) -> Output {
    command(data_dir, arguments).output().unwrap()
}

pub(crate) fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn log(data_dir: &Path, records: usize) -> Audit {
    let audit = Audit::open(&data_dir.join("audit")).unwrap();
    for number in 0..records {
        audit
            .record(
                "test",
                Map::from_iter([("number".to_owned(), json!(number))]),
            )
            .unwrap();
    }
    audit
}

#[test]
fn wrong_usage_is_one_sentence_and_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.yaml");
    fs::write(&file, "execution:\n  default_timeot: 3\n").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, part) in [
        (
            &["audit", "tail", "--config", file][..],
            "bad.yaml:2: execution.default_timeot: unknown key. Did you mean default_timeout?",
        ),
        (
            &["audit", "tail", "--config", "/nonexistent"],
            "/nonexistent: the configuration file cannot be read",
        ),
        (&["serve", "--http", "127.0.0.1"], "there is no port"),
        (
            &["run", "/nonexistent.py"],
            "/nonexistent.py: the code cannot be read",
        ),
    ] {
        let (code, stdout, stderr) = said(&run(directory.path(), arguments));
        assert_eq!(
            (code, stdout.as_str()),
            (Some(2), ""),
            "{arguments:?}: {stderr}"
        );
        assert!(
            stderr.contains(part) && stderr.lines().count() == 1,
            "{arguments:?}: {stderr}"
        );
    }
    for arguments in [
        &["run"][..],
        &["run", "-c", "1", "file.py"],
        &["nonsense"],
        &[],
    ] {
        assert_eq!(
            run(directory.path(), arguments).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}

#[test]
fn warnings_go_to_standard_error_without_colours() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = command(directory.path(), &["audit", "verify"]);
    let output = command
        .env("MCP_FORGE_EXECUTION_MAX_TIMEOT", "1")
        .output()
        .unwrap();
    let (code, stdout, stderr) = said(&output);
    assert_eq!((code, stdout.as_str()), (Some(0), "The log is empty.\n"));
    assert!(
        stderr.contains("Did you mean MCP_FORGE_EXECUTION_MAX_TIMEOUT?"),
        "{stderr}"
    );
    assert!(!stderr.contains('\u{1b}'));
    let output = self::command(directory.path(), &["audit", "verify"])
        .env("MCP_FORGE_LOG", "a=b=c")
        .output()
        .unwrap();
    let (code, _, stderr) = said(&output);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("MCP_FORGE_LOG"), "{stderr}");
}

#[test]
fn the_log_is_shown_and_a_changed_one_is_code_1() {
    let directory = tempfile::tempdir().unwrap();
    drop(log(directory.path(), 3));
    let (code, stdout, _) = said(&run(
        directory.path(),
        &["audit", "tail", "-n", "2", "--json"],
    ));
    let records: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((code, records.len()), (Some(0), 2));
    assert_eq!(
        (&records[0]["number"], &records[1]["event"]),
        (&json!(2), &json!("chain.ended"))
    );

    let (code, stdout, _) = said(&run(directory.path(), &["audit", "verify"]));
    assert_eq!(
        (code, stdout.lines().last()),
        (Some(0), Some("All 5 records are as they were written."))
    );

    let file = fs::read_dir(directory.path().join("audit"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let changed = fs::read_to_string(&file)
        .unwrap()
        .replace("\"number\":1", "\"number\":7");
    fs::write(&file, changed).unwrap();
    let (code, stdout, _) = said(&run(directory.path(), &["audit", "verify", "--json"]));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &report["intact"], &report["breaks"][0]["line"]),
        (Some(1), &json!(false), &json!(3))
    );
}

#[test]
fn a_follower_shows_what_comes_and_leaves_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    let audit = log(directory.path(), 1);
    let mut child = command(directory.path(), &["audit", "tail", "-n", "1", "-f"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().ends_with(" test number=0"));
    // It has shown the old record, so it follows by now.
    audit.record("later", Map::new()).unwrap();
    assert!(lines.next().unwrap().unwrap().ends_with(" later"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let directory = tempfile::tempdir().unwrap();
    drop(log(directory.path(), 2_000));
    let mut child = command(directory.path(), &["audit", "tail", "-n", "9999"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // More than a pipe holds is still to come when the reader goes away.
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    let (code, _, stderr) = said(&child.wait_with_output().unwrap());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

#[test]
fn doctor_tells_programs_what_it_tells_people() {
    let directory = tempfile::tempdir().unwrap();
    let output = run(directory.path(), &["doctor", "--json"]);
    let (code, stdout, stderr) = said(&output);
    let report: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert_eq!(code, Some(i32::from(report["probe"]["usable"] != true)));
    assert_eq!(
        report["config"]["data_dir"],
        directory.path().to_str().unwrap()
    );
    let (text_code, text, _) = said(&run(directory.path(), &["doctor"]));
    assert_eq!(text_code, code);
    assert!(
        text.contains("Layers") && !text.contains('\u{1b}'),
        "{text}"
    );
    assert!(
        !directory.path().join("audit").exists(),
        "doctor changes nothing"
    );
}

#[test]
fn run_streams_prints_the_result_last_and_exits_as_the_code_ended() {
    let directory = tempfile::tempdir().unwrap();
    for (code, more, exit, stdout, stderr) in [
        ("print('a', end=''); 6 * 7", &[][..], 0, "a\n42\n", ""),
        ("import sys; print('e', file=sys.stderr)", &[], 0, "", "e\n"),
        ("1 / 0", &[], 1, "", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(3)", &[], 1, "", "Crashed"),
        ("while True: pass", &["--timeout", "1"], 124, "", "TimedOut"),
        ("x = bytearray(3 << 30)", &[], 137, "", "OutOfMemory"),
        ("1", &["--env", "a"], 2, "", "there is no environment `a`"),
        ("1", &["--tools", "nope"], 2, "", "nope"),
        ("1", &["--timeout", "99999"], 2, "", "maximum of 1800"),
    ] {
        let output = run(directory.path(), &[&["run", "-c", code], more].concat());
        let (got, out, error) = said(&output);
        assert_eq!((got, out.as_str()), (Some(exit), stdout), "{code}: {error}");
        assert!(error.contains(stderr), "{code}: {error}");
    }
    let (code, stdout, _) = said(&run(
        directory.path(),
        &["run", "-c", "print(1); {'a': [2]}", "--json"],
    ));
    let response: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &response["result"], &response["stdout"]),
        (Some(0), &json!({"a": [2]}), &json!("1\n"))
    );
    let (code, stdout, _) = said(&run(directory.path(), &["audit", "verify"]));
    assert_eq!(code, Some(0), "{stdout}");
}

#[test]
fn ctrl_c_ends_the_sandbox_and_the_log_says_so() {
    let directory = tempfile::tempdir().unwrap();
    for (signal, exit) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let code = "import time; print('up', flush=True); time.sleep(100)";
        let mut child = command(directory.path(), &["run", "-c", code])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(exit));
        let newest = mcp_forge::audit::newest(&directory.path().join("audit"), 2).unwrap();
        assert_eq!(
            (&newest[1]["event"], &newest[1]["outcome"]),
            (&json!("execution"), &json!("cancelled"))
        );
    }
}
