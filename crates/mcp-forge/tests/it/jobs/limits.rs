//! Jobs that take what they are not given, and servers that die.

use std::{
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mcp_forge::engine::native::job::{JobEnd, JobSpec};

use super::bench::{Bench, attempts};

/// Makes the limits of a job smaller.
fn with(mut spec: JobSpec, change: impl FnOnce(&mut JobSpec)) -> JobSpec {
    change(&mut spec);
    spec
}

#[tokio::test]
async fn a_job_that_does_not_end_is_ended() {
    let bench = Bench::new();
    let code = "import signal, time\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n    except OSError: pass\nwhile True: time.sleep(1)";
    let spec = with(bench.python(code), |spec| {
        spec.limits.wall = Duration::from_secs(2);
    });
    let start = Instant::now();
    let done = bench.run(spec, None).await;
    assert_eq!(done.ending.cause, JobEnd::TimedOut);
    assert!(start.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn bombs_of_forks_and_of_memory_end() {
    let bench = Bench::new();
    let forks = "import os, time, json\nmade = 0\nfor _ in range(500):\n    try:\n        if os.fork() == 0: time.sleep(60); os._exit(0)\n        made += 1\n    except OSError: break\nprint(json.dumps({'many': made > 40, 'some': made > 5}))";
    let spec = |pids| {
        with(bench.python(forks), |spec| {
            spec.limits.pids = pids;
        })
    };
    let done = bench.run(spec(30), None).await;
    assert_eq!(done.ending.cause, JobEnd::Exited(0), "{done:?}");
    assert!(!attempts(&done)["many"] && attempts(&done)["some"]);
    // With more room the same code makes more: it was the limit.
    let done = bench.run(spec(120), None).await;
    assert!(attempts(&done)["many"], "{done:?}");

    let memory = "import mmap, json\nhas = mmap.mmap(-1, 192 << 20)\nfor page in range(0, len(has), 4096): has[page] = 1\nimport time; time.sleep(PAUSE)\nprint(json.dumps({'all': True}))";
    let spec = |mebibytes: u64, pause: &str| {
        with(bench.python(&memory.replace("PAUSE", pause)), |spec| {
            spec.limits.memory_bytes = mebibytes << 20;
        })
    };
    // Without a cgroup the keeper has to look while it has them, and may get its turn late.
    let done = bench.run(spec(96, "60"), None).await;
    assert_eq!(done.ending.cause, JobEnd::OutOfMemory, "{done:?}");
    let done = bench.run(spec(384, "1"), None).await;
    assert!(attempts(&done)["all"], "{done:?}");
}

#[tokio::test]
async fn the_disk_is_bounded_by_file_and_in_all() {
    let bench = Bench::new();
    let one = "import json\ntry:\n    with open('/build/one', 'wb') as file:\n        for _ in range(16): file.write(b'x' * (1 << 20)); file.flush()\n    whole = True\nexcept OSError: whole = False\nprint(json.dumps({'whole': whole}))";
    let spec = |mebibytes: u64| {
        with(bench.python(one), |spec| {
            spec.limits.file_bytes = mebibytes << 20;
        })
    };
    let done = bench.run(spec(8), None).await;
    assert!(!attempts(&done)["whole"], "{done:?}");
    let done = bench.run(spec(32), None).await;
    assert!(attempts(&done)["whole"], "{done:?}");

    let many = "import time\nfor number in range(64):\n    with open(f'/build/{number}', 'wb') as file: file.write(b'x' * (1 << 20))\nprint('wrote')\ntime.sleep(600)";
    let spec = with(bench.python(many), |spec| {
        spec.limits.build_bytes = 32 << 20;
    });
    let done = bench.run(spec, None).await;
    assert_eq!(done.ending.cause, JobEnd::TooLarge, "{done:?}");
}

#[tokio::test]
async fn a_flood_of_output_neither_fills_the_server_nor_stops_the_job() {
    let bench = Bench::new();
    let code = "import sys\nfor number in range(20000): print('x' * 1000)\nprint('y' * 10_000_000)\nprint('end', file=sys.stderr)";
    let done = bench.run(bench.python(code), None).await;
    assert_eq!(done.ending.cause, JobEnd::Exited(0));
    assert!(done.stdout.len() <= 1 << 20 && done.stderr == "end");
}

#[tokio::test]
async fn a_dropped_job_is_gone() {
    let bench = Bench::new();
    let spec = bench.python("import time\nopen('/build/alive', 'w').close()\ntime.sleep(600)");
    let (id, build) = (spec.id.clone(), spec.build.clone());
    let job = bench.jobs.start(spec).await.unwrap();
    until("it runs", || build.join("alive").exists());
    assert!(!keepers(&id).is_empty());
    drop(job);
    until("it is gone", || keepers(&id).is_empty());
}

/// The test is its own server: started a second time, with a place to work in, it starts a job.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a test starts itself")]
async fn a_server_that_is_killed_leaves_nothing() {
    const PLACE: &str = "FORGE_TEST_JOB_SERVER";
    let code = "import os, time\nfor _ in range(3):\n    if os.fork() == 0: os.setsid(); break\nopen(f'/build/alive-{os.getpid()}', 'w').close()\ntime.sleep(600)";
    if let Some(build) = std::env::var_os(PLACE) {
        let bench = Bench::new();
        let spec = with(bench.python(code), |spec| {
            spec.build = build.into();
            spec.id = format!("killed-{}", std::process::id());
        });
        let _job = bench.jobs.start(spec).await.unwrap();
        std::future::pending::<()>().await;
    }
    let bench = Bench::new();
    let build = bench.build("build");
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args([
            "jobs::limits::a_server_that_is_killed_leaves_nothing",
            "--exact",
        ])
        .env(PLACE, &build)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let id = format!("killed-{}", server.id());
    until("the job and its children run", || {
        fs::read_dir(&build).unwrap().count() == 4
    });
    let keepers_of_it = keepers(&id);
    let inside = Inside::of(&keepers_of_it);
    assert!(!inside.processes().is_empty(), "{keepers_of_it:?}");
    server.kill().unwrap();
    server.wait().unwrap();
    until("nothing is left", || {
        keepers(&id).is_empty() && inside.processes().is_empty()
    });
    fs::remove_dir_all(&build).unwrap();
}

/// Processes with this name for an argument: the keeper, and init until it hides.
fn keepers(id: &str) -> Vec<u32> {
    processes()
        .filter(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut arguments = command.split(|byte| *byte == 0);
            arguments.any(|argument| argument == id.as_bytes())
        })
        .collect()
}

/// A job's pid namespaces, by their names. Held open: the name of one that is gone would be given to the
/// next sandbox of anybody.
struct Inside(Vec<(PathBuf, fs::File)>);

impl Inside {
    fn of(keepers: &[u32]) -> Self {
        let namespace = |pid: u32| {
            let file = fs::File::open(format!("/proc/{pid}/ns/pid")).ok()?;
            let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
            Some((name, file))
        };
        let own = fs::read_link("/proc/self/ns/pid").unwrap();
        let below = keepers
            .iter()
            .flat_map(|pid| crate::sandbox::children(*pid))
            .flat_map(|pid| [vec![pid], crate::sandbox::children(pid)].concat());
        let found = below.filter_map(namespace);
        Self(found.filter(|(name, _)| *name != own).collect())
    }

    fn processes(&self) -> Vec<u32> {
        processes()
            .filter(|pid| {
                fs::read_link(Path::new("/proc").join(pid.to_string()).join("ns/pid"))
                    .is_ok_and(|namespace| self.0.iter().any(|(name, _)| *name == namespace))
            })
            .collect()
    }
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
