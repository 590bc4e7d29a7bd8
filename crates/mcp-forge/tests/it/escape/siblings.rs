//! Two forks of one zygote, alive at the same time: neither can tell the other from a stranger.
//!
//! The first plants something and waits; the second, started beside it, looks for that; then the
//! first looks for traces of the second. As everywhere, the pair must succeed without its layer.

use std::{sync::Mutex, time::Duration};

use mcp_forge::{
    engine::Purpose,
    limits::Limits,
    runner::wire::{Parameter, Stub, ToolFailure, ToolValue},
    turn::{Outcome, Report, Tools},
};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, oneshot};

use super::{
    case::{Field, MACHINE, Way, brief, waiting},
    host::Host,
};
use crate::{real_python::packages, sandbox};

/// One thing that siblings may not have of each other.
struct Pair {
    attack: &'static str,
    /// Python with `plant`, `reach` and `notice`.
    code: &'static str,
    control: Control,
}

enum Control {
    /// It succeeds without these layers.
    Without(&'static [&'static str]),
    /// There is no layer to leave out; why.
    Nothing(&'static str),
}

const PAIRS: [Pair; 6] = [
    Pair {
        attack: "files of a sibling in /tmp, /workspace and /dev/shm",
        code: include_str!("probes/sibling_files.py"),
        control: Control::Without(&["mount_namespace"]),
    },
    Pair {
        attack: "signals to a sibling and to its child, by every pid",
        code: include_str!("probes/sibling_signals.py"),
        control: Control::Without(&["pid_namespace", "landlock"]),
    },
    Pair {
        attack: "a sibling in /proc, by number, name, command line and environment",
        code: include_str!("probes/sibling_proc.py"),
        control: Control::Without(&["pid_namespace", "proc_subset"]),
    },
    Pair {
        attack: "sockets of a sibling, by abstract names and by files",
        code: include_str!("probes/sibling_sockets.py"),
        control: Control::Without(&["landlock"]),
    },
    Pair {
        attack: "System V and POSIX memory, semaphores and queues of a sibling",
        code: include_str!("probes/sibling_ipc.py"),
        control: Control::Without(&["seccomp"]),
    },
    Pair {
        attack: "room for processes beside a sibling that is full of them",
        code: include_str!("probes/sibling_room.py"),
        control: Control::Nothing("each has a bound of its own, and they share none"),
    },
];

const RANDOM: &str = "| Z | the same random numbers as a sibling: random, numpy, uuid, secrets, os.urandom, tempfile | all differ | - | none: each source is new in a fork; the hash seed, which is not, shows that two are compared |";

/// Their lines of `docs/security-tests.md`.
pub(super) fn rows() -> impl Iterator<Item = String> {
    let row = |pair: &Pair| {
        let (held_by, control) = match pair.control {
            Control::Without(layers) => (layers.join(" + "), "yes".to_owned()),
            Control::Nothing(reason) => ("-".to_owned(), format!("none: {reason}")),
        };
        format!(
            "| Z | {} | nothing works | {held_by} | {control} |",
            pair.attack
        )
    };
    PAIRS.iter().map(row).chain([RANDOM.to_owned()])
}

#[tokio::test(flavor = "multi_thread")]
async fn two_children_of_a_zygote_cannot_tell_each_other_from_strangers() {
    let _shared = MACHINE.read().await;
    let mut failures = Vec::new();
    for pair in &PAIRS {
        let mut note = |failure| failures.push(format!("{}: {failure}", pair.attack));
        for report in meet(pair.code, &[], &[]).await {
            if report.outcome != Outcome::Completed || report.result["held"] != true {
                note(brief(&report));
            }
        }
        if let Control::Without(layers) = pair.control {
            let reports = meet(pair.code, layers, &[]).await;
            let ended = |report: &Report| report.outcome == Outcome::Completed;
            let held = |report: &Report| report.result["held"] == true;
            let breaches = |report: &Report| report.result["breaches"].to_string();
            eprintln!("    control: {:?}", reports.each_ref().map(breaches));
            if !reports.iter().all(ended) || reports.iter().all(held) {
                let said: Vec<String> = reports.iter().map(brief).collect();
                note(format!("proves nothing: {}", said.join("\n  ")));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What was copied with the fork and is not made anew would be equal in two of them: the hash seed
/// is, and shows that equal things are seen.
#[tokio::test(flavor = "multi_thread")]
async fn two_children_of_a_zygote_draw_different_random_numbers() {
    let _shared = MACHINE.read().await;
    let code = "
import os, random, secrets, tempfile, uuid
drawn = {
    'random': random.random(), 'random.Random': random.Random().random(),
    'SystemRandom': random.SystemRandom().random(), 'uuid4': uuid.uuid4().hex, 'uuid1': uuid.uuid1().hex,
    'secrets': secrets.token_hex(), 'urandom': os.urandom(16).hex(), 'getrandom': os.getrandom(16).hex(),
    'tempfile': next(tempfile._get_candidate_names()), 'mkdtemp': tempfile.mkdtemp(),
}
import numpy
drawn |= {'numpy': numpy.random.random(), 'numpy generator': numpy.random.default_rng().random()}
def plant(): return {}
def reach(other): pass
def notice(): pass
tried.update(drawn)
tried['hash seed'] = hash('the same in both')";
    let [first, second] = meet(code, &[], &["numpy"]).await;
    let drawn = |report: &Report| report.result["tried"].as_object().cloned();
    let (Some(first), Some(second)) = (drawn(&first), drawn(&second)) else {
        panic!("{} {}", brief(&first), brief(&second));
    };
    assert!(first.len() > 10, "{first:?}");
    let equal: Vec<&String> = first
        .iter()
        .filter(|(name, value)| second.get(*name) == Some(value))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(equal, ["hash seed"]);
}

/// Runs both halves, which may import this, beside each other in forks of one zygote: what came of the first and of the second.
async fn meet(code: &str, without: &[&str], imports: &[&str]) -> [Report; 2] {
    let host = Host::prepare();
    let limits = |pids| Limits {
        timeout: Duration::from_mins(2),
        memory_bytes: 256 << 20,
        cpu_quota_us: 200_000,
        pids,
        storage_bytes: 1 << 30,
    };
    let mut config = waiting(limits(16));
    if !imports.is_empty() {
        config.native.python = Some(packages::python());
    }
    let mut field = Field::prepare(config, &host, without, Way::Warm);
    field.purpose = Purpose::Turn(imports.iter().map(|name| (*name).to_owned()).collect());
    let [first, second] = [limits(400), limits(401)];
    let pair = [
        field.launch(&first, "first").await.unwrap(),
        field.launch(&second, "second").await.unwrap(),
    ];
    if without.is_empty() {
        let zygotes = [
            field.traces(&first, "first").await.unwrap().keeper(),
            field.traces(&second, "second").await.unwrap().keeper(),
        ];
        assert_eq!(zygotes[0], zygotes[1], "they are no siblings");
    }
    let source = |role: &str, other: Value| {
        let mut facts = host.facts(without.is_empty());
        facts["pids"] = first.pids.into();
        facts["role"] = role.into();
        facts["other"] = other;
        format!(
            "HOST = {facts}\n{}\n{code}\n{}",
            include_str!("probes/prelude.py"),
            include_str!("probes/siblings.py")
        )
    };
    let [first_sandbox, second_sandbox] = pair;
    let (say, said) = oneshot::channel();
    let meeting = Meeting {
        say: Mutex::new(Some(say)),
        over: Notify::new(),
    };
    let code = source("first", json!({}));
    let tools = (vec![stub()], &meeting as &dyn Tools);
    let first_turn = sandbox::turn_with(first_sandbox, &code, &first, tools);
    let second_turn = async {
        let planted = tokio::time::timeout(Duration::from_mins(1), said).await;
        let planted = planted.ok().and_then(Result::ok).unwrap_or(json!({}));
        let code = source("second", planted);
        let report = sandbox::turn_in(second_sandbox, &code, &second).await;
        meeting.over.notify_one();
        report
    };
    let (first, second) = tokio::join!(first_turn, second_turn);
    [first, second]
}

/// The tool by which the first says what it has planted, and waits until the second is done.
fn stub() -> Stub {
    Stub {
        name: "meet".to_owned(),
        doc: String::new(),
        parameters: vec![Parameter {
            name: "planted".to_owned(),
            key: "planted".to_owned(),
            required: true,
            default: None,
            annotation: "dict".to_owned(),
        }],
        returns: "None".to_owned(),
    }
}

struct Meeting {
    say: Mutex<Option<oneshot::Sender<Value>>>,
    over: Notify,
}

#[async_trait::async_trait]
impl Tools for Meeting {
    async fn call(
        &self,
        _: &str,
        mut arguments: Map<String, Value>,
    ) -> Result<ToolValue, ToolFailure> {
        let planted = arguments.remove("planted").unwrap_or_default();
        let say = self.say.lock().unwrap().take().expect("one meeting");
        say.send(planted).unwrap();
        self.over.notified().await;
        Ok(ToolValue::Json { value: json!(null) })
    }
}
