//! What a server's socket is called: its kind, its process, and a random part that is never used again.

use std::fmt;

/// What a server lives for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerKind {
    /// The command line: it leaves when it has been idle for long.
    Background,
    /// The client that started it: it leaves with it.
    Client,
}

/// The name of one server's socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerName {
    /// What it lives for.
    pub kind: ServerKind,
    /// Its process, as it sees itself.
    pub pid: u32,
    pub(super) random: u64,
}

impl ServerKind {
    const fn word(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Client => "server",
        }
    }
}

impl ServerName {
    /// Reads a file's name. `None` for everything else that may lie there.
    pub(super) fn parse(file: &str) -> Option<Self> {
        let mut parts = file.strip_suffix(".sock")?.splitn(3, '-');
        let word = parts.next()?;
        let kind = [ServerKind::Background, ServerKind::Client]
            .into_iter()
            .find(|kind| kind.word() == word)?;
        let name = Self {
            kind,
            pid: parts.next()?.parse().ok()?,
            random: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        (name.to_string() == file).then_some(name)
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}-{}-{:016x}.sock",
            self.kind.word(),
            self.pid,
            self.random
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_no_other_way() {
        let name = ServerName {
            kind: ServerKind::Background,
            pid: 42,
            random: 0xab,
        };
        assert_eq!(name.to_string(), "background-42-00000000000000ab.sock");
        assert_eq!(ServerName::parse(&name.to_string()), Some(name));
        for other in [
            "background-42-ab.sock",
            "background-042-00000000000000ab.sock",
            "server--1-00000000000000ab.sock",
            "server-1-00000000000000AB.sock",
            "server-1-00000000000000ab",
            "other-1-00000000000000ab.sock",
            "start.lock",
        ] {
            assert_eq!(ServerName::parse(other), None, "{other}");
        }
    }
}
