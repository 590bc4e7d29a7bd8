//! Which containers are ours: labels that name the data directory and the server, and the proof
//! that a server lives.
//!
//! A container is touched only if it carries the label of this data directory and of a server that is
//! this one, or that is dead.

use std::{collections::HashMap, fs, io, path::Path};

use crate::liveness::{Alive, is_name, random_name};

/// Whose containers these are: a data directory's.
const PLACE: &str = "io.mcp-forge.place";

/// Which server made it.
const SERVER: &str = "io.mcp-forge.server";

/// The labels of one server's containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Labels {
    place: String,
    server: String,
}

impl Labels {
    #[cfg(test)]
    pub(super) fn of(place: &str, server: &str) -> Self {
        Self {
            place: place.to_owned(),
            server: server.to_owned(),
        }
    }

    pub(super) fn to_map(&self) -> HashMap<String, String> {
        HashMap::from([
            (PLACE.to_owned(), self.place.clone()),
            (SERVER.to_owned(), self.server.clone()),
        ])
    }

    /// The label and its value that name this data directory, for what is not one server's.
    pub(super) fn of_place(&self) -> (String, String) {
        (PLACE.to_owned(), self.place.clone())
    }

    /// What to ask the service for: containers of this data directory.
    pub(super) fn filter(&self) -> String {
        format!("{PLACE}={}", self.place)
    }
}

/// This server, as the owner of containers.
#[derive(Debug)]
pub(super) struct Owner {
    labels: Labels,
    alive: Alive,
}

/// Whose a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// This server's.
    Ours,
    /// A server's of this data directory that is gone.
    Dead,
    /// Another's: it is not touched.
    Other,
}

impl Owner {
    /// Makes this process known in the data directory.
    pub(super) fn register(data_dir: &Path) -> io::Result<Self> {
        let directory = data_dir.join("containers");
        let alive = Alive::register(directory.clone())?;
        let labels = Labels {
            place: place(&directory)?,
            server: alive.name().to_owned(),
        };
        Ok(Self { labels, alive })
    }

    pub(super) const fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Whose a container with these labels is. UNTRUSTED: anybody may have written them.
    pub(super) fn whose(&self, labels: &HashMap<String, String>) -> Whose {
        let label = |name: &str| labels.get(name).map(String::as_str);
        match (label(PLACE), label(SERVER)) {
            (Some(place), _) if place != self.labels.place => Whose::Other,
            (Some(_), Some(server)) if server == self.labels.server => Whose::Ours,
            (Some(_), Some(server)) if is_name(server) && !self.alive.is_alive(server) => {
                Whose::Dead
            }
            _ => Whose::Other,
        }
    }

    /// Forgets servers that are gone. Call it when none of their containers is left.
    pub(super) fn forget_dead(&self) {
        self.alive.forget_dead();
    }
}

/// The data directory's own name, made once: paths are not unique where several machines use one
/// service.
fn place(directory: &Path) -> io::Result<String> {
    let path = directory.join("place");
    let name = random_name()?;
    let temporary = directory.join(format!("{name}.new"));
    fs::write(&temporary, &name)?;
    // Whoever is first wins; the file is never seen half written.
    let linked = fs::hard_link(&temporary, &path);
    fs::remove_file(&temporary)?;
    match linked {
        Ok(()) => return Ok(name),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::read_to_string(&path)?;
    if is_name(&found) {
        Ok(found)
    } else {
        let message = format!("{} is not what it was: remove it", path.display());
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(place: &str, server: &str) -> HashMap<String, String> {
        Labels::of(place, server).to_map()
    }

    #[test]
    fn only_what_carries_this_place_and_a_dead_servers_name_is_an_orphan() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let owner = Owner::register(directory.path()).unwrap();
        let alive = Owner::register(directory.path()).unwrap();
        let stranger = Owner::register(elsewhere.path()).unwrap();
        let place = owner.labels.place.clone();
        assert_eq!(place, alive.labels.place);
        assert_ne!(place, stranger.labels.place);
        let dead = random_name().unwrap();
        for (labels, whose) in [
            (owner.labels.to_map(), Whose::Ours),
            (alive.labels.to_map(), Whose::Other),
            (stranger.labels.to_map(), Whose::Other),
            (labels(&place, &dead), Whose::Dead),
            (labels(&stranger.labels.place, &dead), Whose::Other),
            (labels(&place, "../../etc/passwd"), Whose::Other),
            (labels(&place, ""), Whose::Other),
            (
                HashMap::from([(SERVER.to_owned(), dead.clone())]),
                Whose::Other,
            ),
            (
                HashMap::from([(PLACE.to_owned(), place.clone())]),
                Whose::Other,
            ),
            (HashMap::new(), Whose::Other),
        ] {
            assert_eq!(owner.whose(&labels), whose, "{labels:?}");
        }
        let was_alive = alive.labels.to_map();
        drop(alive);
        assert_eq!(owner.whose(&was_alive), Whose::Dead);
        owner.forget_dead();
        let names: Vec<_> = fs::read_dir(directory.path().join("containers"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(
            names.len(),
            2,
            "the place and the lock of the living: {names:?}"
        );
    }
}
