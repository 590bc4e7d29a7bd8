//! Namespaces: made by the keeper with one clone, finished by init from inside.

use std::{fs, io, path::PathBuf};

use rustix::process::{Gid, Uid};

use crate::{
    error::JailError,
    omitted, skipped,
    spec::{INNER_ID, Layer},
    sys::{self, Side},
};

/// First host user id for sandboxes of a server that runs as root: far above what distributions,
/// systemd and container tools hand out, so that no file on the host belongs to it.
const FIRST_OUTER_ID: u32 = 0x7D00_0000;

/// How many sandboxes get an id of their own before ids are used again.
const OUTER_IDS: u32 = 0x1_0000;

/// Whose a sandbox is outside, where a server that runs as root chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Code's: one of many ids, by this number, so that no two sandboxes are the same user.
    Code(u32),
    /// A build job's: always the same id, which no code ever has. What one job leaves in a directory,
    /// the next can go on with; what code could own, it cannot.
    Builder,
}

/// The user and group id, outside, of build jobs of a server that runs as root: it must give them
/// the directory that they are to write. `None` for an ordinary user, whose jobs are that user.
pub fn job_ids() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    Some((
        outer_id("uid", User::Builder).unwrap_or(own.0),
        outer_id("gid", User::Builder).unwrap_or(own.1),
    ))
}

/// The namespaces of every sandbox, with the layer each is.
const NAMESPACES: [(Layer, libc::c_int); 6] = [
    (Layer::UserNamespace, libc::CLONE_NEWUSER),
    (Layer::MountNamespace, libc::CLONE_NEWNS),
    (Layer::PidNamespace, libc::CLONE_NEWPID),
    (Layer::NetworkNamespace, libc::CLONE_NEWNET),
    (Layer::IpcNamespace, libc::CLONE_NEWIPC),
    (Layer::UtsNamespace, libc::CLONE_NEWUTS),
];

/// The namespaces of the keeper, for init to see that it has left each one.
#[derive(Debug)]
pub(crate) struct Outside(Vec<(Layer, Option<PathBuf>)>);

impl Outside {
    /// Read by the keeper, before the fork.
    pub(crate) fn read() -> Self {
        Self(
            NAMESPACES
                .iter()
                .map(|(layer, _)| (*layer, current(*layer)))
                .collect(),
        )
    }

    /// Read by init: the kernel's own word that this namespace is another one.
    pub(crate) fn left(&self, layer: Layer) -> Result<String, JailError> {
        let before = self
            .0
            .iter()
            .find(|(known, _)| *known == layer)
            .and_then(|(_, namespace)| namespace.as_ref());
        match (before, current(layer)) {
            (Some(before), Some(now)) if *before != now => Ok("own namespace".to_owned()),
            _ => Err(JailError::at(layer, "compare namespaces")(
                io::Error::other("it is the server's own"),
            )),
        }
    }
}

/// The kernel's name of the current namespace of this kind.
fn current(layer: Layer) -> Option<PathBuf> {
    let kind = match layer {
        Layer::UserNamespace => "user",
        Layer::MountNamespace => "mnt",
        Layer::PidNamespace => "pid",
        Layer::NetworkNamespace => "net",
        Layer::IpcNamespace => "ipc",
        Layer::UtsNamespace => "uts",
        _ => return None,
    };
    fs::read_link(format!("/proc/self/ns/{kind}")).ok()
}

/// Forks init into new namespaces. The cgroup namespace comes later, from inside its cgroup.
///
/// # Errors
///
/// The kernel refused; there is no child.
pub(crate) fn fork_init() -> Result<Side, JailError> {
    let flags = NAMESPACES
        .iter()
        .filter(|(layer, _)| !skipped(*layer))
        .fold(0, |flags, (_, flag)| flags | flag);
    // The flags succeed or fail as one; without privilege it is the user namespace that is refused.
    sys::fork_into(flags).map_err(JailError::at(
        Layer::UserNamespace,
        "clone into new namespaces",
    ))
}

/// Written by the keeper, which stays outside: maps the sandbox's user to an id of no consequence.
///
/// As root: to an id that owns nothing on the host, one per sandbox. As an ordinary user: to that
/// user, the only id an unprivileged process may map.
///
/// # Errors
///
/// The kernel's answer; init must be killed.
pub(crate) fn map_ids(init: i32, user: User) -> Result<(), JailError> {
    if omitted(Layer::UserNamespace) {
        return Ok(());
    }
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let outer_uid = if uid == 0 {
        outer_id("uid", user).unwrap_or(uid)
    } else {
        uid
    };
    let outer_gid = if uid == 0 {
        outer_id("gid", user).unwrap_or(gid)
    } else {
        gid
    };
    write_map(init, "setgroups", "deny")?;
    write_map(init, "uid_map", &format!("{INNER_ID} {outer_uid} 1"))?;
    write_map(init, "gid_map", &format!("{INNER_ID} {outer_gid} 1"))
}

/// An id for this user that exists in our own user namespace, which may be a container's small one.
fn outer_id(kind: &str, user: User) -> Option<u32> {
    let map = fs::read_to_string(format!("/proc/self/{kind}_map")).ok()?;
    pick_outer_id(&map, user)
}

fn pick_outer_id(map: &str, user: User) -> Option<u32> {
    let wanted = match user {
        User::Code(slot) => FIRST_OUTER_ID + slot % OUTER_IDS,
        User::Builder => FIRST_OUTER_ID + OUTER_IDS,
    };
    let ranges: Vec<(u64, u64)> = map
        .lines()
        .filter_map(|line| {
            let mut numbers = line
                .split_whitespace()
                .filter_map(|number| number.parse().ok());
            let first = numbers.next()?;
            Some((first, numbers.nth(1)?))
        })
        .collect();
    if ranges
        .iter()
        .any(|(first, count)| (*first..first + count).contains(&u64::from(wanted)))
    {
        return Some(wanted);
    }
    // A small range: take from its upper half, where images put no users.
    let (first, count) = ranges.iter().max_by_key(|(_, count)| *count).copied()?;
    let half = count / 2;
    let place = match user {
        User::Code(slot) => half + u64::from(slot) % half.max(1),
        // The one below those of code.
        User::Builder => half.saturating_sub(1),
    };
    (half > 0)
        .then(|| u32::try_from(first + place).ok())
        .flatten()
}

fn write_map(init: i32, file: &str, content: &str) -> Result<(), JailError> {
    fs::write(format!("/proc/{init}/{file}"), content).map_err(JailError::at(
        Layer::UserNamespace,
        format!("write {file} `{content}`"),
    ))
}

/// Takes the sandbox's ids. Files made from now on are its own.
pub(crate) fn become_sandbox_user() -> Result<String, JailError> {
    let (uid, gid) = (Uid::from_raw(INNER_ID), Gid::from_raw(INNER_ID));
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(refused("setresgid"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(refused("setresuid"))?;
    let held = rustix::thread::capabilities(None).map_err(refused("capget"))?;
    if !held
        .effective
        .contains(rustix::thread::CapabilitySet::SYS_ADMIN)
    {
        // Ubuntu's AppArmor rule: the namespace is given, but empty of capabilities.
        return Err(refused("no capabilities in the new user namespace")(
            rustix::io::Errno::PERM,
        ));
    }
    Ok(format!("user {INNER_ID} inside, unprivileged outside"))
}

fn refused(step: &str) -> impl FnOnce(rustix::io::Errno) -> JailError {
    JailError::at(Layer::UserNamespace, step)
}

/// Makes the current cgroup the root of what can be seen.
pub(crate) fn leave_cgroup_view() -> Result<String, JailError> {
    sys::unshare_cgroup().map_err(JailError::at(Layer::CgroupNamespace, "unshare"))?;
    Ok("the sandbox sees its cgroup as /".to_owned())
}

/// Sees for itself that there is no network.
pub(crate) fn check_network() -> Result<String, JailError> {
    let interfaces = fs::read_to_string("/proc/self/net/dev").map_err(JailError::at(
        Layer::NetworkNamespace,
        "read the interfaces",
    ))?;
    let others: Vec<&str> = interfaces
        .lines()
        .skip(2)
        .filter_map(|line| line.split(':').next().map(str::trim))
        .filter(|name| *name != "lo" && !is_fallback_tunnel(name))
        .collect();
    if others.is_empty() {
        return Ok("no interface but a loopback that is down".to_owned());
    }
    Err(JailError::Step {
        layer: Layer::NetworkNamespace,
        step: format!("found interfaces {}", others.join(", ")),
        source: io::ErrorKind::Other.into(),
    })
}

/// Devices that some tunnel modules put, down and unbound, into every new network namespace.
fn is_fallback_tunnel(name: &str) -> bool {
    const FALLBACK: [&str; 9] = [
        "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0",
    ];
    FALLBACK.contains(&name)
}

/// A host name that tells nothing.
pub(crate) fn set_names() -> Result<String, JailError> {
    rustix::system::sethostname(b"sandbox")
        .map_err(JailError::at(Layer::UtsNamespace, "sethostname"))?;
    rustix::system::setdomainname(b"")
        .map_err(JailError::at(Layer::UtsNamespace, "setdomainname"))?;
    Ok("host name `sandbox`".to_owned())
}

/// Bounds inotify in this user namespace: instances are also counted for the server's own user,
/// who would be left without. Kernels that do not count them per namespace go on as they are.
pub(crate) fn limit_watches() {
    for (name, most) in [
        ("max_inotify_instances", "16"),
        ("max_inotify_watches", "4096"),
    ] {
        crate::rootfs::write_own_sysctl(&format!("user/{name}"), most).ok();
    }
}

/// Limits pids inside the namespace, where the kernel counts them per namespace (6.14 and later).
/// A second bound, under the cgroup's and under `RLIMIT_NPROC`, which the kernel counts per user
/// namespace and which allows no more than `pids`.
#[expect(
    clippy::unnecessary_wraps,
    reason = "a step of the list; older kernels lack the limit, which has a stand-in"
)]
pub(crate) fn limit_pids(pids: u64) -> Result<String, JailError> {
    // Once the highest number was given out, the kernel takes only numbers from 300 on. All must
    // fit there, and so must the numbers that the dead leave behind as group or session.
    let most = pids.saturating_mul(2).saturating_add(300);
    let limited = crate::rootfs::write_own_sysctl("kernel/pid_max", &most.to_string()).is_ok();
    Ok(if limited {
        format!("pid_max {most}")
    } else {
        String::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_ids_are_taken_from_what_is_mapped() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(
            pick_outer_id(whole, User::Code(5)),
            Some(FIRST_OUTER_ID + 5)
        );
        assert_eq!(
            pick_outer_id(whole, User::Code(OUTER_IDS)),
            Some(FIRST_OUTER_ID)
        );
        let container = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(pick_outer_id(container, User::Code(0)), Some(1 + 32768));
        assert_eq!(pick_outer_id(container, User::Code(32768)), Some(1 + 32768));
        // Builders are never who code is.
        assert_eq!(
            pick_outer_id(whole, User::Builder),
            Some(FIRST_OUTER_ID + OUTER_IDS)
        );
        assert_eq!(pick_outer_id(container, User::Builder), Some(32768));
        assert_eq!(pick_outer_id("0 1000 1\n", User::Builder), None);
        // Root of a namespace with one id: there is no other to take.
        assert_eq!(pick_outer_id("0 1000 1\n", User::Code(3)), None);
    }
}
