//! Known holes of the programs behind a container API, by the versions that it tells of itself.
//!
//! Holes through which code in a container, or an image, gets at the host. Those of builds with
//! foreign build files are left out: ours are the only ones that are built.

use bollard::models::SystemVersion;
use serde::Serialize;

/// A program behind a container API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Component {
    /// As one calls it: `podman`, `runc`.
    pub name: String,
    /// Its version, as it says.
    pub version: String,
    /// What is known to be open in this version, by its number.
    pub holes: Vec<Hole>,
}

/// A hole of older versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Hole {
    /// Its public name.
    pub id: &'static str,
    #[serde(skip)]
    program: &'static str,
    /// What can be done through it.
    pub what: &'static str,
    /// The first version without it, of each line of releases that was mended.
    pub fixed_in: &'static [&'static str],
}

const RUNC_2025: &[&str] = &["1.2.8", "1.3.3", "1.4.0-rc.3"];

/// By program, newest first.
const HOLES: &[Hole] = &[
    Hole {
        id: "CVE-2026-123876",
        program: "podman",
        what: "its own seccomp profile can be evaded with high bits in arguments (ours is used instead)",
        fixed_in: &["6.2.0"],
    },
    Hole {
        id: "CVE-2026-111361",
        program: "podman",
        what: "an image can pass for another whose digest or signature was asked for",
        fixed_in: &["6.2.0"],
    },
    Hole {
        id: "CVE-2026-94603",
        program: "podman",
        what: "an annotation of an image switches all isolation off",
        fixed_in: &["6.1.3"],
    },
    Hole {
        id: "CVE-2026-41579",
        program: "runc",
        what: "an image whose /dev is a link removes and creates files on the host",
        fixed_in: &["1.3.6", "1.4.4", "1.5.0"],
    },
    Hole {
        id: "CVE-2025-31133",
        program: "runc",
        what: "a link in place of /dev/null unmasks files of /proc",
        fixed_in: RUNC_2025,
    },
    Hole {
        id: "CVE-2025-52565",
        program: "runc",
        what: "a link in place of /dev/console is mounted over files of /proc",
        fixed_in: RUNC_2025,
    },
    Hole {
        id: "CVE-2025-52881",
        program: "runc",
        what: "writes to /proc are redirected to other files of it",
        fixed_in: RUNC_2025,
    },
    Hole {
        id: "CVE-2024-21626",
        program: "runc",
        what: "a working directory below /proc/self/fd is one of the host",
        fixed_in: &["1.1.12"],
    },
    Hole {
        id: "CVE-2026-88264",
        program: "crun",
        what: "a link in place of /dev/console is followed to the host",
        fixed_in: &["1.30"],
    },
    Hole {
        id: "CVE-2026-88265",
        program: "crun",
        what: "a link in place of /dev/null is followed to the host",
        fixed_in: &["1.30"],
    },
];

/// What the service is made of, with what is known of it. UNTRUSTED texts: shorten before showing.
pub fn components(version: &SystemVersion) -> Vec<Component> {
    let components = version.components.iter().flatten();
    components
        .map(|component| {
            let name = name(&component.name);
            let version = number(&component.version).to_owned();
            let holes = holes(&name, &version);
            Component {
                name,
                version,
                holes,
            }
        })
        .collect()
}

/// Podman says `Podman Engine`, `Conmon` and `OCI Runtime (runc)`; Docker `Engine` and `runc`.
fn name(component: &str) -> String {
    let lower = component.to_lowercase();
    let known = ["podman", "conmon", "crun", "runc", "containerd"];
    match known.iter().find(|name| lower.contains(**name)) {
        Some(name) => (*name).to_owned(),
        None if lower == "engine" => "docker".to_owned(),
        None => lower,
    }
}

/// The number in a text such as `runc version 1.1.5+ds1`, or the text if there is none.
fn number(text: &str) -> &str {
    text.split(|letter: char| letter.is_whitespace() || letter == ',')
        .map(|word| word.strip_prefix('v').unwrap_or(word))
        .find(|word| Version::parse(word).is_some())
        .unwrap_or(text)
}

fn holes(program: &str, version: &str) -> Vec<Hole> {
    let Some(version) = Version::parse(version) else {
        return Vec::new();
    };
    HOLES
        .iter()
        .filter(|hole| hole.program == program && !version.is_at_least_one_of(hole.fixed_in))
        .copied()
        .collect()
}

/// Ordered as releases are: a candidate comes before its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    line: (u32, u32),
    patch: u32,
    /// `u32::MAX` for a release.
    candidate: u32,
}

impl Version {
    /// Reads `1.2.3`, `1.30`, `1.4.0-rc.2`, `1.1.5+ds1` and `1.1.5~ds1-1`; whatever follows the
    /// numbers is a distribution's.
    fn parse(text: &str) -> Option<Self> {
        let end = text
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut numbers = numbers.split('.').map(str::parse::<u32>);
        let line = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let patch = numbers.next().unwrap_or(Ok(0)).ok()?;
        let candidate = rest
            .strip_prefix(['-', '~'])
            .and_then(|rest| rest.strip_prefix("rc"))
            .map(|rest| rest.trim_start_matches('.'))
            .and_then(|rest| {
                let end = rest.find(|letter: char| !letter.is_ascii_digit());
                rest.get(..end.unwrap_or(rest.len()))?.parse().ok()
            })
            .unwrap_or(u32::MAX);
        Some(Self {
            line,
            patch,
            candidate,
        })
    }

    /// Whether it is at or after the version of its own line, or after all of them.
    fn is_at_least_one_of(self, fixed: &[&str]) -> bool {
        let fixed: Vec<Self> = fixed.iter().filter_map(|text| Self::parse(text)).collect();
        match fixed.iter().find(|other| other.line == self.line) {
            Some(own) => self >= *own,
            None => fixed.iter().all(|other| self > *other),
        }
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::SystemVersionComponents;

    use super::*;

    fn ids(program: &str, version: &str) -> Vec<&'static str> {
        holes(program, version).iter().map(|hole| hole.id).collect()
    }

    #[test]
    fn each_line_of_releases_has_its_own_first_good_version() {
        let open = |version| ids("runc", version).contains(&"CVE-2025-31133");
        for version in [
            "1.1.5+ds1",
            "1.1.99",
            "1.2.7",
            "1.3.2",
            "1.4.0-rc.2",
            "1.4.0-rc2",
        ] {
            assert!(open(version), "{version}");
        }
        for version in [
            "1.2.8",
            "1.2.10",
            "1.3.3",
            "1.4.0-rc.3",
            "1.4.0",
            "1.5.0",
            "2.0.0",
        ] {
            assert!(!open(version), "{version}");
        }
        assert_eq!(ids("crun", "1.29.1").len(), 2);
        assert_eq!(ids("crun", "1.30").len(), 0);
        assert_eq!(
            ids("podman", "6.1.3"),
            ["CVE-2026-123876", "CVE-2026-111361"]
        );
        assert_eq!(ids("podman", "nonsense"), Vec::<&str>::new());
    }

    #[test]
    fn every_version_in_the_table_can_be_read() {
        for hole in HOLES {
            assert!(hole.id.starts_with("CVE-"));
            for version in hole.fixed_in {
                assert!(Version::parse(version).is_some(), "{version}");
                assert!(
                    !ids(hole.program, version).contains(&hole.id),
                    "{}",
                    hole.id
                );
            }
        }
    }

    /// As podman 4.3.1 of Debian 12 and Docker say it.
    #[test]
    fn the_services_own_words_are_understood() {
        let component = |name: &str, version: &str| SystemVersionComponents {
            name: name.to_owned(),
            version: version.to_owned(),
            details: None,
        };
        let version = SystemVersion {
            components: Some(vec![
                component("Podman Engine", "4.3.1"),
                component("Conmon", "conmon version 2.1.6, commit: unknown"),
                component(
                    "OCI Runtime (runc)",
                    "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev",
                ),
                component("Engine", "29.1.0"),
                component("something", "else"),
            ]),
            ..SystemVersion::default()
        };
        let read: Vec<_> = components(&version)
            .into_iter()
            .map(|found| (found.name, found.version, found.holes.len()))
            .collect();
        let expected = [
            ("podman", "4.3.1", 3),
            ("conmon", "2.1.6", 0),
            ("runc", "1.1.5+ds1", 5),
            ("docker", "29.1.0", 0),
            ("something", "else", 0),
        ];
        assert_eq!(
            read,
            expected.map(|(name, version, holes)| (name.to_owned(), version.to_owned(), holes))
        );
    }
}
