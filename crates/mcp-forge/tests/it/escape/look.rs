//! What the host can see of processes, control groups and itself.

use std::{
    collections::HashMap,
    fs, io,
    net::{IpAddr, UdpSocket},
    path::PathBuf,
};

/// Of a process.
pub(super) struct Stat {
    pub(super) state: char,
    pub(super) parent: u32,
    /// In ticks since the host's start.
    pub(super) started: u64,
}

pub(super) fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        started: fields.nth(17)?.parse().ok()?,
    })
}

/// Gone already is as good.
pub(super) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
}

/// Every process that is not a zombie.
pub(super) fn living() -> Vec<u32> {
    processes().map(|(pid, _)| pid).collect()
}

fn processes() -> impl Iterator<Item = (u32, Stat)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .filter(|(_, stat)| stat.state != 'Z')
}

/// Who started whom, at one moment.
pub(super) struct Descent(HashMap<u32, Vec<u32>>);

impl Descent {
    pub(super) fn read() -> Self {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, stat) in processes() {
            children.entry(stat.parent).or_default().push(pid);
        }
        Self(children)
    }

    pub(super) fn children(&self, parent: u32) -> impl Iterator<Item = u32> {
        self.0.get(&parent).into_iter().flatten().copied()
    }
}

pub(super) fn command_line(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/cmdline"))
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .unwrap_or_default()
}

/// Every directory of ours in any hierarchy.
pub(crate) fn cgroups() -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("mcp-forge-")
                {
                    found.push(entry.path().display().to_string());
                }
                directories.push(entry.path());
            }
        }
    }
    found
}

/// The address by which the world reaches this host, if it has one. Sends nothing.
pub(crate) fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().map(|address| address.ip()).ok()
}

/// Words by which this host could be recognised.
pub(super) fn host_names() -> Vec<String> {
    let read =
        |path: &str| -> io::Result<String> { Ok(fs::read_to_string(path)?.trim().to_owned()) };
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let files = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"]
        .into_iter()
        .filter_map(|path| read(path).ok());
    std::iter::once(name)
        .chain(files)
        .filter(|word| word.len() > 1 && word != "sandbox")
        .collect()
}
