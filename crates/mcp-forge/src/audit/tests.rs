//! The log against its enemies: the disk, the clock, the crash, and the one who edits it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    thread,
};

use serde_json::{Map, Value, json};

use super::*;

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn written(count: usize) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open(directory.path()).unwrap();
    for number in 0..count {
        audit
            .record(
                "test",
                fields(json!({ "number": number, "text": "é\u{1b}[31m\n{\"event\":\"forged\"}" })),
            )
            .unwrap();
    }
    drop(audit);
    let file = files(directory.path()).remove(0);
    (directory, file)
}

#[test]
fn a_chain_verifies_and_each_record_is_one_line() {
    let (directory, file) = written(5);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 7, "start, five, end");
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (number, record) in records.iter().enumerate() {
        assert_eq!(record["sequence"], number);
        assert!(record["timestamp"].as_str().unwrap().ends_with('Z'));
        assert!(record["monotonic_ms"].is_u64());
    }
    assert_eq!(records[0]["previous"], record::NO_HASH);
    assert_eq!(records[3]["previous"], records[2]["hash"]);
    assert!(!text.contains('\u{1b}'), "control characters are escaped");
    let verification = verify(directory.path()).unwrap();
    assert!(verification.intact, "{verification:?}");
    assert_eq!((verification.records, verification.chains.len()), (7, 1));
    assert!(verification.chains[0].ended);
    assert_eq!(verification.chains[0].last_hash, records[6]["hash"]);
}

#[test]
fn files_are_for_their_owner_only() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("deep/audit");
    let _audit = Audit::open(&directory).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&files(&directory)[0]), 0o600);
}

/// Whatever byte of a file is changed, the check names that line (or the next, for a hash that no
/// longer is the one the next record continues).
#[test]
fn every_changed_byte_is_found_at_its_line() {
    let (directory, file) = written(3);
    let original = fs::read(&file).unwrap();
    for index in 0..original.len() {
        let mut changed = original.clone();
        changed[index] ^= 1;
        fs::write(&file, &changed).unwrap();
        let verification = verify(directory.path()).unwrap();
        let line = original[..index].split(|byte| *byte == b'\n').count() as u64;
        if index + 1 == original.len() {
            // The very last newline: the line looks torn, and is said to be.
            assert!(verification.chains[0].torn.is_some());
            continue;
        }
        assert!(
            !verification.intact,
            "byte {index} ({:?}) was changed unseen",
            original[index] as char
        );
        assert_eq!(verification.breaks[0].line, line, "byte {index}");
        assert_eq!(
            verification.breaks[0].file,
            file.file_name().unwrap().to_str().unwrap()
        );
    }
}

#[test]
fn removed_added_swapped_and_repeated_records_are_found() {
    let (directory, file) = written(4);
    let original = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = original.lines().collect();
    let edits: [(&str, Vec<&str>, u64); 5] = [
        ("removed", [&lines[..2], &lines[3..]].concat(), 3),
        (
            "swapped",
            [&lines[..2], &[lines[3], lines[2]], &lines[4..]].concat(),
            3,
        ),
        ("repeated", [&lines[..3], &lines[2..]].concat(), 4),
        ("first removed", lines[1..].to_vec(), 1),
        ("added at the end", [&lines[..], &lines[5..]].concat(), 7),
    ];
    for (name, edited, line) in edits {
        fs::write(&file, edited.join("\n") + "\n").unwrap();
        let verification = verify(directory.path()).unwrap();
        assert_eq!(
            verification.breaks.first().map(|found| found.line),
            Some(line),
            "{name}"
        );
    }
}

#[test]
fn a_line_cut_off_by_a_crash_is_not_called_tampering() {
    let (directory, file) = written(3);
    let original = fs::read(&file).unwrap();
    let last_line = original[..original.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .unwrap()
        + 1;
    for end in last_line + 1..original.len() {
        fs::write(&file, &original[..end]).unwrap();
        let verification = verify(directory.path()).unwrap();
        assert!(verification.intact, "cut at {end}");
        assert_eq!(
            verification.chains[0].torn.as_deref(),
            file.file_name().unwrap().to_str(),
            "cut at {end}"
        );
        assert!(!verification.chains[0].ended);
    }
}

#[test]
fn a_full_file_is_continued_and_the_chain_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open_with(directory.path(), 1_000).unwrap();
    for number in 0..40 {
        audit
            .record("test", fields(json!({ "number": number })))
            .unwrap();
    }
    assert_eq!(
        audit
            .newest(3)
            .unwrap()
            .iter()
            .map(|record| record["number"].clone())
            .collect::<Vec<_>>(),
        [39, 38, 37]
    );
    assert_eq!(audit.newest(1_000).unwrap().len(), 41);
    drop(audit);
    let parts = files(directory.path());
    assert!(parts.len() > 5, "{} files", parts.len());
    let verification = verify(directory.path()).unwrap();
    assert!(verification.intact, "{verification:?}");
    assert_eq!(
        (verification.records, verification.chains[0].files),
        (42, parts.len())
    );

    fs::remove_file(&parts[0]).unwrap();
    let verification = verify(directory.path()).unwrap();
    assert!(
        verification.intact,
        "the operator may remove the oldest files: {verification:?}"
    );
    assert!(verification.chains[0].first_sequence > 0);

    fs::remove_file(&parts[3]).unwrap();
    let verification = verify(directory.path()).unwrap();
    assert_eq!(
        verification.breaks[0].file,
        parts[4].file_name().unwrap().to_str().unwrap()
    );
}

#[test]
fn sixteen_threads_write_one_chain() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open_with(directory.path(), 20_000).unwrap();
    thread::scope(|scope| {
        for thread in 0..16 {
            let audit = audit.clone();
            scope.spawn(move || {
                for number in 0..50 {
                    audit
                        .record(
                            "test",
                            fields(json!({ "thread": thread, "number": number })),
                        )
                        .unwrap();
                }
            });
        }
    });
    drop(audit);
    let verification = verify(directory.path()).unwrap();
    assert!(verification.intact, "{verification:?}");
    assert_eq!(verification.records, 802);
}

#[test]
fn two_servers_share_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (
        Audit::open(directory.path()).unwrap(),
        Audit::open(directory.path()).unwrap(),
    );
    for number in 0..10 {
        first
            .record("first", fields(json!({ "number": number })))
            .unwrap();
        second
            .record("second", fields(json!({ "number": number })))
            .unwrap();
    }
    let newest = second.newest(1_000).unwrap();
    assert_eq!(newest.len(), 22);
    let times: Vec<&str> = newest
        .iter()
        .map(|record| record["timestamp"].as_str().unwrap())
        .collect();
    assert!(times.is_sorted_by(|left, right| left >= right));
    drop((first, second));
    let verification = verify(directory.path()).unwrap();
    assert_eq!(
        (
            verification.intact,
            verification.chains.len(),
            verification.records
        ),
        (true, 2, 24)
    );
}

#[test]
fn links_and_open_directories_are_refused() {
    let parent = tempfile::tempdir().unwrap();
    let (real, link) = (parent.path().join("real"), parent.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    assert!(
        Audit::open(&link)
            .unwrap_err()
            .to_string()
            .contains("symbolic link")
    );
    fs::set_permissions(&real, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(
        Audit::open(&real)
            .unwrap_err()
            .to_string()
            .contains("chmod 700")
    );
    fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
    drop(Audit::open(&real).unwrap());
    // A file that was put there as a link is not read through it.
    let secret = parent.path().join("secret");
    fs::write(&secret, "{\"event\":\"secret\"}\n").unwrap();
    symlink(&secret, real.join("audit-x.0001.jsonl")).unwrap();
    assert!(matches!(verify(&real), Err(AuditError::Read { .. })));
    assert!(matches!(newest(&real, 10), Err(AuditError::Read { .. })));
}

#[test]
fn a_log_that_cannot_be_continued_refuses_every_record() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open(directory.path()).unwrap();
    fs::remove_dir_all(directory.path()).unwrap();
    for _ in 0..3 {
        let refused = audit.record("test", Map::new());
        assert!(
            matches!(refused, Err(AuditError::Write { .. })),
            "{refused:?}"
        );
    }
}

/// A disk that is full in the middle of a line, by the kernel's limit on file sizes: that limit is
/// the process's, so the test runs itself in a process of its own.
#[test]
fn a_full_disk_refuses_records_leaves_no_piece_and_is_counted_when_it_has_room() {
    const DIRECTORY: &str = "AUDIT_TEST_FULL_DISK";
    const NAME: &str =
        "audit::tests::a_full_disk_refuses_records_leaves_no_piece_and_is_counted_when_it_has_room";
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return fill_the_disk(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "the test's own process, under a limit"
    )]
    let output = std::process::Command::new("/bin/sh")
        // Without the trap the kernel would kill the process where it should refuse the write.
        .args([
            "-c",
            "trap '' XFSZ; ulimit -S -f 8; exec \"$0\" --exact \"$1\"",
        ])
        .arg(std::env::current_exe().unwrap())
        .arg(NAME)
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let verification = verify(directory.path()).unwrap();
    assert!(
        verification.intact && verification.records > 5,
        "{verification:?}"
    );
}

fn fill_the_disk(directory: &Path) {
    let audit = Audit::open(directory).unwrap();
    let record = || audit.record("test", fields(json!({ "text": "x".repeat(300) })));
    let written = (0..1_000).take_while(|_| record().is_ok()).count();
    assert!((2..100).contains(&written), "{written} records fitted");
    assert!(matches!(record(), Err(AuditError::Write { .. })));
    let file = files(directory).remove(0);
    assert!(
        fs::read(&file).unwrap().ends_with(b"\n"),
        "a piece of a line was left"
    );

    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let unlimited = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, unlimited).unwrap();
    record().unwrap();
    // A short gap record may have fitted where the long one did not: the counts add up.
    let missed = audit
        .newest(1_000)
        .unwrap()
        .iter()
        .filter_map(|record| record["missed_records"].as_u64())
        .sum::<u64>();
    assert_eq!(missed, 2);
}

#[test]
fn a_file_that_was_cut_or_deleted_is_noticed_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open(directory.path()).unwrap();
    audit.record("before", Map::new()).unwrap();
    let first = files(directory.path()).remove(0);
    fs::OpenOptions::new()
        .write(true)
        .open(&first)
        .unwrap()
        .set_len(10)
        .unwrap();
    audit.record("after", Map::new()).unwrap();
    let newest = audit.newest(2).unwrap();
    assert_eq!(
        (newest[0]["event"].as_str(), newest[1]["event"].as_str()),
        (Some("after"), Some("chain.damaged"))
    );
    assert_eq!(newest[1]["found_bytes"], 10);
    assert_eq!(
        verify(directory.path()).unwrap().breaks[0].file,
        first.file_name().unwrap().to_str().unwrap()
    );

    let second = files(directory.path()).remove(1);
    fs::remove_file(second).unwrap();
    audit.record("after deletion", Map::new()).unwrap();
    assert_eq!(audit.newest(2).unwrap()[1]["found_bytes"], Value::Null);
}

#[test]
fn what_was_begun_is_always_ended_once() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open(directory.path()).unwrap();
    let begin = |id: &str| {
        audit
            .begin(
                "execution",
                fields(json!({ "execution_id": id, "code_bytes": 3 })),
            )
            .unwrap()
    };
    begin("one")
        .finish(fields(json!({ "outcome": "completed" })))
        .unwrap();
    drop(begin("two"));
    let newest = audit.newest(4).unwrap();
    let shown: Vec<_> = newest
        .iter()
        .rev()
        .map(|record| {
            (
                record["phase"].as_str().unwrap(),
                record["execution_id"].as_str().unwrap(),
                record["outcome"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("started", "one", None),
            ("finished", "one", Some("completed")),
            ("started", "two", None),
            ("finished", "two", Some("cancelled"))
        ]
    );
    assert_eq!(newest[0]["started_by"], newest[1]["sequence"]);
}

#[test]
fn untrusted_text_is_bounded_with_its_hash() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open(directory.path()).unwrap();
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    let many: Vec<String> = (0..5_000)
        .map(|number| format!("{number}{}", "x".repeat(1_000)))
        .collect();
    audit
        .record(
            "long",
            fields(json!({ "text": "é".repeat(5 << 20), "deep": deep })),
        )
        .unwrap();
    audit
        .record("many", fields(json!({ "names": many })))
        .unwrap();
    let newest = audit.newest(2).unwrap();
    let text = newest[1]["text"].as_str().unwrap();
    assert!(
        text.len() < 2_200 && text.contains("(10485760 bytes, sha256 "),
        "{}",
        &text[2_000..]
    );
    assert!(newest[0]["oversized"]["sha256"].is_string());
    assert!(
        files(directory.path())
            .iter()
            .all(|file| fs::metadata(file).unwrap().len() < 20_000)
    );
    assert!(verify(directory.path()).unwrap().intact);
}

#[test]
fn reserved_names_cannot_be_forged() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open(directory.path()).unwrap();
    for name in record::RESERVED {
        let forged = audit.record("test", Map::from_iter([((*name).to_owned(), json!(0))]));
        assert!(
            matches!(forged, Err(AuditError::ReservedField(_))),
            "{name}"
        );
    }
    assert_eq!(audit.newest(10).unwrap().len(), 1);
}

#[test]
fn a_follower_sees_new_records_and_new_servers_and_no_old_ones() {
    let directory = tempfile::tempdir().unwrap();
    let audit = Audit::open_with(directory.path(), 500).unwrap();
    audit.record("old", Map::new()).unwrap();
    let mut follower = follow(directory.path()).unwrap();
    assert!(follower.read().unwrap().is_empty());
    for _ in 0..5 {
        audit.record("new", Map::new()).unwrap();
    }
    let other = Audit::open(directory.path()).unwrap();
    let events: Vec<String> = follower
        .read()
        .unwrap()
        .iter()
        .map(|record| record["event"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(events.iter().filter(|event| *event == "new").count(), 5);
    assert_eq!(
        events
            .iter()
            .filter(|event| *event == "chain.started")
            .count(),
        1
    );
    assert!(follower.read().unwrap().is_empty());
    drop(other);
    assert_eq!(follower.read().unwrap().len(), 1);
}

#[test]
fn nothing_there_is_an_empty_log() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    assert!(verify(&missing).unwrap().intact);
    assert!(newest(&missing, 5).unwrap().is_empty());
    fs::write(directory.path().join("notes.txt"), "x").unwrap();
    assert_eq!(verify(directory.path()).unwrap().ignored, ["notes.txt"]);
}
