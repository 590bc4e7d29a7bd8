//! The prompt of `mcp-forge run -i`: at a terminal, and read from a pipe.

use std::{
    fs,
    io::Write,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use serde_json::json;

use crate::{
    background::Place,
    cli::{command, run, said},
};

/// What the prompt says to these lines.
fn typed(place: &Place, arguments: &[&str], lines: &str) -> (Option<i32>, String, String) {
    let mut child = command(place.path(), &[&["run", "-i"], arguments].concat())
        .current_dir(place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines.as_bytes()).unwrap();
    drop(stdin);
    said(&child.wait_with_output().unwrap())
}

#[test]
fn statements_of_a_pipe_run_one_after_the_other() {
    let place = Place::new();
    let lines = "\
x = 6
def f(a):
    return a * 7

f(x)
[1,
 2]
'''a
b'''
1 / 0
import sys; print('told', file=sys.stderr)
print('no end', end='')
None
x";
    let (code, stdout, stderr) = typed(&place, &[], lines);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, "42\n[1, 2]\n'a\\nb'\nno end\n6\n");
    assert!(
        stderr.contains("ZeroDivisionError: division by zero") && stderr.ends_with("told\n"),
        "{stderr}"
    );
    // It had a session of its own, which is gone; and nothing was started to stay.
    let listed = said(&run(place.path(), &["session", "list", "--json"])).1;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["sessions"], json!([]));
    assert_eq!(place.sockets("background"), []);
    assert_eq!(place.sockets("server"), []);
}

#[test]
fn a_named_session_stays_and_images_become_files() {
    let place = Place::new();
    // Whatever environment the tests run in: an image needs no library.
    let lines = "\
class Figure:
    def _repr_png_(self): return b'\\x89PNG image'

figure = Figure()
figure
";
    let (code, _, stderr) = typed(&place, &["--session", "a"], lines);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("Saved mcp-forge-images/image-1.png"),
        "{stderr}"
    );
    let image = fs::read(place.path().join("mcp-forge-images/image-1.png")).unwrap();
    assert_eq!(image, b"\x89PNG image");
    let (code, stdout, stderr) = typed(&place, &["--session", "a"], "type(figure).__name__\n");
    assert_eq!((code, stdout.as_str()), (Some(0), "'Figure'\n"), "{stderr}");
    // A refusal is no end.
    let (code, stdout, stderr) = typed(&place, &["--session", "a", "--tools", "nope"], "1\n2\n");
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert_eq!(stderr.matches("nope").count(), 2, "{stderr}");
}

/// Types at a terminal: waits for each text, then sends what belongs to it. Prints all that the
/// terminal showed, and ends as the program did.
const TYPIST: &str = r"
import json, os, pty, select, sys, time
steps, program = json.loads(sys.argv[1]), sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.execvp(program[0], program)
seen, mark, deadline = b'', 0, time.monotonic() + 60
def more():
    global seen
    if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
        sys.exit(f'waited in vain; seen: {seen!r}')
    try:
        data = os.read(terminal, 4096)
    except OSError:
        data = b''
    seen += data
    return bool(data)
for expected, answer in steps:
    while expected.encode() not in seen[mark:]:
        if not more():
            sys.exit(f'ended before {expected!r}; seen: {seen!r}')
    mark = seen.index(expected.encode(), mark) + len(expected.encode())
    os.write(terminal, answer.encode())
while more():
    pass
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

#[test]
fn a_person_can_edit_interrupt_and_leave() {
    let place = Place::new();
    let steps = json!([
        [">>> ", "x = 40\r"],
        [">>> ", "for i in range(2):\r"],
        // It is indented already.
        ["...     ", "print('line', i)\r"],
        ["...     ", "\r"],
        ["line 1\r\n", ""],
        // Left, and one typed in between: the line is edited.
        [">>> ", "x + 3\u{1b}[D\u{7f}2\u{1b}[C\u{7f}\r"],
        ["42\r\n", ""],
        [">>> ", "nonsen\u{3}"],
        ["KeyboardInterrupt\r\n", ""],
        [
            ">>> ",
            "import time; print('so' + 'on'); time.sleep(1000)\r"
        ],
        ["soon\r\n", "\u{3}"],
        ["was kept", ""],
        // Up, twice: what was typed before the last statement.
        [">>> ", "\u{1b}[A\u{1b}[A\r"],
        ["42\r\n", ""],
        [">>> ", "\u{4}"],
    ]);
    #[expect(clippy::disallowed_methods, reason = "a terminal for the binary")]
    let output = Command::new("python3")
        .args(["-c", TYPIST, &steps.to_string()])
        .arg(crate::sandbox::binary())
        .args(["run", "-i", "--data-dir"])
        .arg(place.path())
        .env_clear()
        .envs([("TERM", "xterm"), ("LANG", "C.UTF-8")])
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", place.path())
        .output()
        .unwrap();
    let (code, stdout, stderr) = said(&output);
    assert_eq!(code, Some(0), "{stderr}{stdout}");
    assert!(
        stdout.contains("in a session that ends with this prompt"),
        "{stdout}"
    );
    let history = place.path().join("history");
    assert!(fs::read_to_string(&history).unwrap().contains("x = 40"));
    assert_eq!(fs::metadata(&history).unwrap().mode() & 0o777, 0o600);
}
