//! `volumes`: which directories of the operator a request may have copied into its session.
//!
//! Names only, never host paths: a request says `shared/readonly/data`, and what that is on the
//! host is the operator's `volumes.base_path`.

use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::tree::{Tree, is_path};
use crate::{
    names::{Principal, SessionId},
    text::quoted,
};

/// What the specification writes before every name.
const PREFIX: &str = "/mcp-forge/";

/// Stands for the session's own name.
const OWN: &str = "{session_id}";

/// Volumes of one request.
const MOST: usize = 16;

/// A directory or file to be copied in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Below `volumes.base_path`.
    pub(super) source: String,
    /// Below `/workspace`; empty for `/workspace` itself.
    pub(super) target: String,
}

/// A volume that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRefusal {
    /// One sentence for whoever asked.
    pub message: String,
    /// Whether what was asked for is forbidden, not only wrong: a matter for the audit.
    pub is_violation: bool,
}

impl Volume {
    /// Reads the `volumes` of a request: names to places below `/workspace`, each a text or, as the
    /// container API writes it, `{"bind": place, "mode": "ro"}`.
    ///
    /// # Errors
    ///
    /// [`VolumeRefusal`]: nothing is copied.
    pub fn parse_all(
        volumes: &Map<String, Value>,
        session: &SessionId,
    ) -> Result<Vec<Self>, VolumeRefusal> {
        if volumes.len() > MOST {
            return Err(wrong(format!(
                "`volumes` names {} volumes, more than the maximum of {MOST}",
                volumes.len()
            )));
        }
        volumes
            .iter()
            .map(|(name, place)| {
                Ok(Self {
                    source: source(name, session)?,
                    target: target(name, place)?,
                })
            })
            .collect()
    }

    /// As a request would write it.
    pub fn name(&self) -> &str {
        &self.source
    }

    /// Where it lies below `volumes.base_path`. What is a session's own is its owner's: sessions of
    /// two principals may have one name, and neither may read the other's.
    pub(super) fn place(&self, owner: &Principal) -> String {
        let is_shared = self.source.starts_with("shared/");
        if is_shared || *owner == Principal::local() {
            return self.source.clone();
        }
        format!("principals/{}/{}", directory_of(owner), self.source)
    }

    /// Opens the tree that all volumes lie in.
    pub(super) fn base(directory: &Path) -> std::io::Result<Tree> {
        Tree::open(directory)
    }
}

/// A principal as one directory's name. That of an issuer's token has a slash, which no other has, and
/// none has a comma.
fn directory_of(owner: &Principal) -> String {
    let plain = owner.as_str().replace('/', ",");
    if is_path(&plain) {
        plain
    } else {
        format!("{:x}", Sha256::digest(owner.as_str()))
    }
}

fn source(name: &str, session: &SessionId) -> Result<String, VolumeRefusal> {
    let plain = name.strip_prefix(PREFIX).unwrap_or(name);
    // The specification's patterns end in `/*`: all that is in it.
    let plain = plain.strip_suffix("/*").unwrap_or(plain);
    let plain = plain.trim_end_matches('/');
    if !is_path(plain) {
        return Err(forbidden(name, "host paths cannot be mounted"));
    }
    let parts: Vec<&str> = plain.split('/').collect();
    match parts.as_slice() {
        ["shared", "readonly", ..] => Ok(plain.to_owned()),
        [area @ ("sessions" | "uploads"), whose, rest @ ..] => {
            if *whose != OWN && *whose != session.as_str() {
                return Err(forbidden(name, "it belongs to another session"));
            }
            let mut path = vec![*area, session.as_str()];
            path.extend(rest);
            Ok(path.join("/"))
        }
        _ => Err(forbidden(name, "it is none of the volumes that there are")),
    }
}

fn target(name: &str, place: &Value) -> Result<String, VolumeRefusal> {
    let (bind, mode) = match place {
        Value::String(bind) => (Some(bind.as_str()), None),
        Value::Object(entry) => {
            if let Some(other) = entry.keys().find(|key| *key != "bind" && *key != "mode") {
                return Err(wrong(format!(
                    "`volumes` has {} for {}; only `bind` and `mode` are known",
                    quoted(other),
                    quoted(name)
                )));
            }
            let bind = entry.get("bind").and_then(Value::as_str);
            (bind, entry.get("mode").cloned())
        }
        _ => (None, None),
    };
    let Some(bind) = bind else {
        return Err(wrong(format!(
            "`volumes` says no place for {}; pass one below /workspace, for example {{{}: \"/workspace/data\"}}",
            quoted(name),
            quoted(name)
        )));
    };
    match mode.as_ref().map(|mode| mode.as_str().unwrap_or("?")) {
        None | Some("ro") => {}
        Some(_) => {
            return Err(wrong(format!(
                "`volumes` asks for a mode of {} other than \"ro\"; volumes are copied in, and what code changes in /workspace is kept with the session instead",
                quoted(name)
            )));
        }
    }
    let below = match bind.trim_end_matches('/') {
        "/workspace" => Some(""),
        bind => bind
            .strip_prefix("/workspace/")
            .filter(|below| is_path(below)),
    };
    below.map(str::to_owned).ok_or_else(|| VolumeRefusal {
        message: format!(
            "`volumes` puts {} at {}; pass a place below /workspace without `..`",
            quoted(name),
            quoted(bind)
        ),
        is_violation: true,
    })
}

fn forbidden(name: &str, why: &str) -> VolumeRefusal {
    VolumeRefusal {
        message: format!(
            "`volumes` names {}, which is forbidden: {why}. Use sessions/{OWN}, uploads/{OWN} or shared/readonly, or something in them",
            quoted(name)
        ),
        is_violation: true,
    }
}

fn wrong(message: String) -> VolumeRefusal {
    VolumeRefusal {
        message,
        is_violation: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(volumes: &Value) -> Result<Vec<Volume>, VolumeRefusal> {
        let session = SessionId::parse("abc").unwrap();
        Volume::parse_all(volumes.as_object().unwrap(), &session)
    }

    #[test]
    fn the_patterns_of_the_specification_are_volumes() {
        for (name, source) in [
            ("shared/readonly", "shared/readonly"),
            ("/mcp-forge/shared/readonly/*", "shared/readonly"),
            ("/mcp-forge/sessions/{session_id}/*", "sessions/abc"),
            ("uploads/abc/in.csv", "uploads/abc/in.csv"),
            ("sessions/{session_id}/x y", "sessions/abc/x y"),
        ] {
            let parsed = parse(&json!({name: "/workspace/data"})).unwrap();
            let volume = Volume {
                source: source.to_owned(),
                target: "data".to_owned(),
            };
            assert_eq!(parsed, [volume], "{name}");
        }
        let whole =
            parse(&json!({"shared/readonly": {"bind": "/workspace", "mode": "ro"}})).unwrap();
        assert_eq!(whole[0].target, "");
    }

    #[test]
    fn a_sessions_own_is_its_owners() {
        let volume = |source: &str| Volume {
            source: source.to_owned(),
            target: String::new(),
        };
        let own = volume("uploads/abc/in.csv");
        let place = |owner: &str| own.place(&Principal::named(owner));
        assert_eq!(own.place(&Principal::local()), "uploads/abc/in.csv");
        assert_eq!(place("ada"), "principals/ada/uploads/abc/in.csv");
        assert_eq!(
            place("ada/uploads"),
            "principals/ada,uploads/uploads/abc/in.csv"
        );
        for odd in ["..", ".", ""] {
            let place = place(odd);
            let digest = place.split('/').nth(1).unwrap();
            assert_eq!(digest.len(), 64, "{odd:?}: {place}");
        }
        let shared = volume("shared/readonly/a");
        assert_eq!(shared.place(&Principal::named("ada")), "shared/readonly/a");
    }

    #[test]
    fn everything_else_is_forbidden() {
        for name in [
            "/",
            "/etc",
            "/var/run/docker.sock",
            "/var/run/podman/podman.sock",
            "/sys",
            "/proc",
            "sessions/other",
            "uploads/abcd/x",
            "sessions/abc/../other",
            "shared/readonly/../../etc",
            "shared/readonly-evil",
            "shared/private",
            "shared",
            "sessions",
            "shared//readonly",
            "%2e%2e/etc",
            "shared/readonly/..\0",
            "Shared/readonly",
            "",
            ".",
            "\\etc",
        ] {
            let refused = parse(&json!({name: "/workspace/data"})).unwrap_err();
            assert!(refused.is_violation, "{name}: {refused:?}");
        }
        for place in [
            "/",
            "/tmp",
            "/workspace/../etc",
            "data",
            "/workspace-evil",
            "/workspace//x",
        ] {
            let refused = parse(&json!({"shared/readonly": place})).unwrap_err();
            assert!(refused.is_violation, "{place}: {refused:?}");
        }
    }

    #[test]
    fn wrong_shapes_are_only_wrong() {
        for place in [
            json!(1),
            json!({"mode": "ro"}),
            json!({"bind": "/workspace/a", "mode": "rw"}),
            json!({"bind": "/workspace/a", "x": 1}),
        ] {
            let refused = parse(&json!({"shared/readonly": place})).unwrap_err();
            assert!(!refused.is_violation, "{refused:?}");
        }
    }
}
