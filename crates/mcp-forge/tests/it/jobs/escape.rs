//! Escape tests of build jobs: a program that tries to get out, and the same one without a layer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixListener},
        },
    },
    path::PathBuf,
};

use serde_json::json;

use super::bench::{Bench, attempts, gateway};
use crate::sandbox;

/// What is tried, what holds it, and the layers without which it must work. With none of these, there
/// is a reason why no build can show it.
const ROWS: &[(&str, &[&str], &str)] = &[
    ("the internet", &[], "no such address where tests run"),
    (
        "the host's loopback",
        &["network_namespace", "landlock"],
        "",
    ),
    (
        "the host's own address",
        &["network_namespace", "landlock"],
        "",
    ),
    (
        "the cloud's metadata",
        &[],
        "no such address where tests run",
    ),
    (
        "the host's loopback by IPv6",
        &["network_namespace", "landlock"],
        "",
    ),
    ("a listener of its own", &["landlock"], ""),
    (
        "datagrams",
        &["network_namespace", "seccomp", "landlock"],
        "",
    ),
    (
        "raw sockets",
        &[],
        "no capability is left after exec whichever layer is",
    ),
    (
        "packet sockets",
        &[],
        "no capability is left after exec whichever layer is",
    ),
    ("netlink", &["seccomp"], ""),
    (
        "multipath TCP",
        &[],
        "not every kernel has it; the snapshot of the tables shows it",
    ),
    ("a Unix socket of the host", &["mount_namespace"], ""),
    (
        "an abstract socket of the host",
        &["network_namespace", "landlock"],
        "",
    ),
    ("writes outside", &["read_only_root", "landlock"], ""),
    ("changes the program", &["read_only_root", "landlock"], ""),
    ("the data directory beside", &["mount_namespace"], ""),
    ("another job's directory", &["mount_namespace"], ""),
    (
        "a variable of the server",
        &[],
        "no layer: the program's variables are a list of the engine",
    ),
    ("a descriptor of the host", &["descriptors"], ""),
    (
        "executes what it wrote",
        &[],
        "the mount's own option; the probe runs the same script in /tmp",
    ),
    ("set-user-id", &[], "the mount's own option"),
    ("a pipe in its directory", &["seccomp", "landlock"], ""),
    (
        "a device in its directory",
        &[],
        "no namespace of a user gives the right to",
    ),
    ("a socket in its directory", &["landlock"], ""),
    ("a file in memory", &["seccomp"], ""),
    (
        "a link to what it may only read",
        &[],
        "another file system",
    ),
    ("namespaces", &["seccomp"], ""),
    (
        "brings interfaces up",
        &[],
        "no capability is left after exec whichever layer is",
    ),
];

/// What the gateway is asked for, and must refuse.
const TARGETS: [&str; 3] = ["an unlisted host", "an unlisted port", "localhost"];

/// The lines of `docs/security-tests.md`.
pub(crate) fn rows() -> impl Iterator<Item = String> {
    let rows = ROWS.iter().map(|(attack, layers, reason)| {
        let (held_by, control) = if layers.is_empty() {
            ("-".to_owned(), format!("none: {reason}"))
        } else {
            (layers.join(" + "), "yes".to_owned())
        };
        format!("| J | a build job: {attack} | nothing works | {held_by} | {control} |")
    });
    let targets = TARGETS.iter().map(|target| {
        format!("| J | a build job, through the gateway: {target} | nothing works | the gateway's list | with it listed |")
    });
    rows.chain(targets)
}

/// What must not be found, on the host's side.
struct Surroundings {
    bench: Bench,
    tcp: TcpListener,
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    unix: UnixListener,
    unix_path: PathBuf,
    abstract_name: String,
    abstract_socket: UnixListener,
    other: PathBuf,
}

impl Surroundings {
    fn prepare(bench: Bench) -> Self {
        let place = bench.directory.path();
        fs::write(place.join("secret"), "secret").unwrap();
        let unix_path = place.join("socket");
        let unix = UnixListener::bind(&unix_path).unwrap();
        fs::set_permissions(&unix_path, fs::Permissions::from_mode(0o777)).unwrap();
        let abstract_name = place.file_name().unwrap().to_str().unwrap().to_owned();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let tcp = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let other = bench.build("other");
        fs::write(other.join("secret"), "secret").unwrap();
        Self {
            tcp6: TcpListener::bind(("::1", port)).ok(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            abstract_socket: UnixListener::bind_addr(&address).unwrap(),
            bench,
            tcp,
            unix,
            unix_path,
            abstract_name,
            other,
        }
    }

    fn port(&self) -> u16 {
        self.tcp.local_addr().unwrap().port()
    }

    /// What the gateway is asked for. With `listed` it answers for all of it.
    async fn attack(&self, listed: bool) -> BTreeMap<String, bool> {
        let targets = [
            "unlisted.example:443".to_owned(),
            format!("127.0.0.1:{}", self.port()),
            format!("localhost:{}", self.port()),
        ];
        let surroundings = json!({
            "port": self.port(),
            "address": crate::escape::elsewhere::own_address(),
            "datagrams": self.udp.local_addr().unwrap().port(),
            "unix": self.unix_path,
            "abstract": self.abstract_name,
            "secret": self.bench.directory.path().join("secret"),
            "other": self.other.join("secret"),
            "targets": TARGETS.iter().zip(&targets).collect::<BTreeMap<_, _>>(),
        });
        let mut spec = self.bench.python(include_str!("probe.py"));
        spec.arguments.push(surroundings.to_string());
        let gateway = if listed {
            gateway(
                &[("127.0.0.1", self.port()), ("localhost", self.port())],
                &[],
            )
        } else {
            gateway(&[("127.0.0.1", self.port().wrapping_add(1).max(1))], &[])
        };
        let traffic = gateway.traffic();
        let done = self.bench.run(spec, Some(gateway)).await;
        let worked = attempts(&done);
        if !listed {
            let refused: BTreeSet<String> = traffic.refused().into_iter().collect();
            assert_eq!(refused, targets.into_iter().collect());
        }
        worked
    }

    /// What reached the host's own sockets.
    fn seen(&self) -> Vec<&str> {
        self.tcp.set_nonblocking(true).unwrap();
        self.udp.set_nonblocking(true).unwrap();
        self.unix.set_nonblocking(true).unwrap();
        self.abstract_socket.set_nonblocking(true).unwrap();
        let tcp6 = self.tcp6.as_ref().is_some_and(|listener| {
            listener.set_nonblocking(true).unwrap();
            listener.accept().is_ok()
        });
        [
            ("tcp", self.tcp.accept().is_ok()),
            ("tcp by IPv6", tcp6),
            ("datagram", self.udp.recv(&mut [0; 16]).is_ok()),
            ("unix", self.unix.accept().is_ok()),
            ("abstract", self.abstract_socket.accept().is_ok()),
        ]
        .into_iter()
        .filter_map(|(name, seen)| seen.then_some(name))
        .collect()
    }
}

/// The probe's own controls, and the attempts that worked.
fn split(worked: &BTreeMap<String, bool>) -> (bool, Vec<&str>) {
    let (controls, attempts): (Vec<_>, Vec<_>) = worked
        .iter()
        .partition(|(name, _)| name.starts_with("CONTROL"));
    let attempts = attempts
        .into_iter()
        .filter_map(|(name, worked)| worked.then_some(name.as_str()));
    (
        controls.len() == 2 && controls.iter().all(|(_, worked)| **worked),
        attempts.collect(),
    )
}

#[tokio::test]
async fn nothing_leads_out_of_a_job() {
    let surroundings = Surroundings::prepare(Bench::new());
    // Another job of the same user lives meanwhile.
    let mut neighbour = surroundings.bench.python("import time; time.sleep(600)");
    neighbour.build.clone_from(&surroundings.other);
    let neighbour = surroundings.bench.jobs.start(neighbour).await.unwrap();
    let worked = surroundings.attack(false).await;
    let (controls, breaches) = split(&worked);
    assert!(controls, "{worked:?}");
    assert_eq!(breaches, Vec::<&str>::new());
    assert_eq!(surroundings.seen(), Vec::<&str>::new());
    let tried: BTreeSet<&str> = worked
        .keys()
        .map(String::as_str)
        .filter(|name| !name.starts_with("CONTROL"))
        .collect();
    let listed = ROWS.iter().map(|(attack, ..)| (*attack).to_owned());
    let gateway = TARGETS.map(|target| format!("through the gateway: {target}"));
    let listed: Vec<String> = listed.chain(gateway).collect();
    assert_eq!(tried, listed.iter().map(String::as_str).collect());
    neighbour.control.kill().await;
}

#[tokio::test]
async fn each_way_out_works_without_what_holds_it() {
    let sets: BTreeSet<&[&str]> = ROWS
        .iter()
        .map(|(_, layers, _)| *layers)
        .filter(|layers| !layers.is_empty())
        .collect();
    let mut missing = Vec::new();
    for layers in sets {
        let surroundings = Surroundings::prepare(Bench::without(layers));
        let worked = surroundings.attack(true).await;
        for (attack, ..) in ROWS.iter().filter(|(_, held_by, _)| *held_by == layers) {
            let impossible =
                *attack == "the host's loopback by IPv6" && surroundings.tcp6.is_none();
            if !worked[*attack] && !impossible {
                missing.push(format!("{attack}, without {}", layers.join(" + ")));
            }
        }
        for target in &TARGETS[1..] {
            if !worked[&format!("through the gateway: {target}")] {
                missing.push(format!("{target}, listed"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// The profile `desktop` goes on where the kernel has no Landlock: all but its own rows must hold then.
#[tokio::test]
async fn without_landlock_alone_the_rest_still_holds() {
    let surroundings = Surroundings::prepare(Bench::without(&["landlock"]));
    let worked = surroundings.attack(false).await;
    let (controls, breaches) = split(&worked);
    assert!(controls, "{worked:?}");
    let own: Vec<&str> = ROWS
        .iter()
        .filter(|(_, layers, _)| *layers == ["landlock"])
        .map(|(attack, ..)| *attack)
        .collect();
    assert_eq!(breaches, own);
    assert_eq!(surroundings.seen(), Vec::<&str>::new());
}

/// What a job makes belongs to no user that code could ever be.
#[tokio::test]
async fn what_a_job_leaves_is_nobody_elses() {
    use std::os::unix::fs::MetadataExt;

    let bench = Bench::new();
    let spec = bench.python("import os\nos.mkdir('/build/below', 0o700)\nopen('/build/below/file', 'w').close()\nos.chmod('/build/below/file', 0o4777)");
    let build = spec.build.clone();
    bench.run(spec, None).await;
    let below = build.join("below");
    let expected = jail::job_ids().unwrap_or_else(|| {
        let meta = fs::metadata(bench.directory.path()).unwrap();
        (meta.uid(), meta.gid())
    });
    for path in [&build, &below, &below.join("file")] {
        let meta = fs::metadata(path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), expected, "{}", path.display());
    }
    let moved = bench.directory.path().join("moved");
    fs::rename(&below, &moved).unwrap();
    fs::remove_dir_all(&moved).unwrap();
    // An ordinary sandbox of a server that is root is another user.
    let config = sandbox::config();
    let report = sandbox::run_with(&config, "open('/proc/self/uid_map').read().split()[1]").await;
    if jail::job_ids().is_some() {
        assert_ne!(report.result, expected.0.to_string());
    }
}
