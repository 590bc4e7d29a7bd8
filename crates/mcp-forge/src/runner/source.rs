//! The runner's source, carried inside this binary: the sandbox gets it as read-only files.

/// Starts the runner on descriptor 3, from the directory where the engine puts [`FILES`].
pub const BOOTSTRAP: &str = "\
import sys
sys.path.insert(0, '/opt/mcp-forge')
from mcp_forge_runner.__main__ import main
main(3)";

/// Starts the zygote, which waits on descriptor 3 for what it is to fork.
pub const ZYGOTE: &str = "\
import sys
sys.path.insert(0, '/opt/mcp-forge')
from mcp_forge_runner.zygote import main
main()";

/// The same for packages that are not the operator's: only its forks enter their environment.
pub const ZYGOTE_WITHOUT_PACKAGES: &str = "\
import sys
sys.path.insert(0, '/opt/mcp-forge')
from mcp_forge_runner.zygote import main
main(prefix='/opt/environment')";

/// Starts the relay in a container: takes the runner's files from standard input, as a length and
/// a JSON object, puts them where they are found, and goes on with them.
pub const RELAY: &str = "\
import json, os, sys
def take(count):
    taken = b''
    while len(taken) < count:
        taken += os.read(0, count - len(taken)) or os._exit(0)
    return taken
for name, text in json.loads(take(int.from_bytes(take(4), 'big'))).items():
    path = os.path.join('/opt/mcp-forge', name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
sys.path.insert(0, '/opt/mcp-forge')
from mcp_forge_runner.relay import main
main()";

/// In place of a module that a zygote is to import: all that a session needs, its shell included.
pub const SESSION: &str = "mcp_forge_runner.session";

/// Each file's path below the runner's directory, and its content.
pub const FILES: &[(&str, &str)] = &[
    (
        "mcp_forge_runner/__init__.py",
        include_str!("../../../../runner/mcp_forge_runner/__init__.py"),
    ),
    (
        "mcp_forge_runner/__main__.py",
        include_str!("../../../../runner/mcp_forge_runner/__main__.py"),
    ),
    (
        "mcp_forge_runner/arguments.py",
        include_str!("../../../../runner/mcp_forge_runner/arguments.py"),
    ),
    (
        "mcp_forge_runner/attribution.py",
        include_str!("../../../../runner/mcp_forge_runner/attribution.py"),
    ),
    (
        "mcp_forge_runner/awaiting.py",
        include_str!("../../../../runner/mcp_forge_runner/awaiting.py"),
    ),
    (
        "mcp_forge_runner/bindings.py",
        include_str!("../../../../runner/mcp_forge_runner/bindings.py"),
    ),
    (
        "mcp_forge_runner/branching.py",
        include_str!("../../../../runner/mcp_forge_runner/branching.py"),
    ),
    (
        "mcp_forge_runner/channel.py",
        include_str!("../../../../runner/mcp_forge_runner/channel.py"),
    ),
    (
        "mcp_forge_runner/displays.py",
        include_str!("../../../../runner/mcp_forge_runner/displays.py"),
    ),
    (
        "mcp_forge_runner/environment.py",
        include_str!("../../../../runner/mcp_forge_runner/environment.py"),
    ),
    (
        "mcp_forge_runner/event_loop.py",
        include_str!("../../../../runner/mcp_forge_runner/event_loop.py"),
    ),
    (
        "mcp_forge_runner/execution.py",
        include_str!("../../../../runner/mcp_forge_runner/execution.py"),
    ),
    (
        "mcp_forge_runner/foreign.py",
        include_str!("../../../../runner/mcp_forge_runner/foreign.py"),
    ),
    (
        "mcp_forge_runner/hooks.py",
        include_str!("../../../../runner/mcp_forge_runner/hooks.py"),
    ),
    (
        "mcp_forge_runner/inspection.py",
        include_str!("../../../../runner/mcp_forge_runner/inspection.py"),
    ),
    (
        "mcp_forge_runner/kept.py",
        include_str!("../../../../runner/mcp_forge_runner/kept.py"),
    ),
    (
        "mcp_forge_runner/late.py",
        include_str!("../../../../runner/mcp_forge_runner/late.py"),
    ),
    (
        "mcp_forge_runner/media.py",
        include_str!("../../../../runner/mcp_forge_runner/media.py"),
    ),
    (
        "mcp_forge_runner/offered.py",
        include_str!("../../../../runner/mcp_forge_runner/offered.py"),
    ),
    (
        "mcp_forge_runner/originals.py",
        include_str!("../../../../runner/mcp_forge_runner/originals.py"),
    ),
    (
        "mcp_forge_runner/plain_cells.py",
        include_str!("../../../../runner/mcp_forge_runner/plain_cells.py"),
    ),
    (
        "mcp_forge_runner/portraits.py",
        include_str!("../../../../runner/mcp_forge_runner/portraits.py"),
    ),
    (
        "mcp_forge_runner/relay.py",
        include_str!("../../../../runner/mcp_forge_runner/relay.py"),
    ),
    (
        "mcp_forge_runner/reprs.py",
        include_str!("../../../../runner/mcp_forge_runner/reprs.py"),
    ),
    (
        "mcp_forge_runner/session.py",
        include_str!("../../../../runner/mcp_forge_runner/session.py"),
    ),
    (
        "mcp_forge_runner/session_channel.py",
        include_str!("../../../../runner/mcp_forge_runner/session_channel.py"),
    ),
    (
        "mcp_forge_runner/session_turn.py",
        include_str!("../../../../runner/mcp_forge_runner/session_turn.py"),
    ),
    (
        "mcp_forge_runner/shell_ipython.py",
        include_str!("../../../../runner/mcp_forge_runner/shell_ipython.py"),
    ),
    (
        "mcp_forge_runner/shell_plain.py",
        include_str!("../../../../runner/mcp_forge_runner/shell_plain.py"),
    ),
    (
        "mcp_forge_runner/toolbox.py",
        include_str!("../../../../runner/mcp_forge_runner/toolbox.py"),
    ),
    (
        "mcp_forge_runner/tools.py",
        include_str!("../../../../runner/mcp_forge_runner/tools.py"),
    ),
    (
        "mcp_forge_runner/tracebacks.py",
        include_str!("../../../../runner/mcp_forge_runner/tracebacks.py"),
    ),
    (
        "mcp_forge_runner/values.py",
        include_str!("../../../../runner/mcp_forge_runner/values.py"),
    ),
    (
        "mcp_forge_runner/workspace_files.py",
        include_str!("../../../../runner/mcp_forge_runner/workspace_files.py"),
    ),
    (
        "mcp_forge_runner/zygote.py",
        include_str!("../../../../runner/mcp_forge_runner/zygote.py"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_runner_is_carried() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runner/mcp_forge_runner");
        let mut names: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .map(|name| format!("mcp_forge_runner/{name}"))
            .collect();
        names.sort();
        assert_eq!(
            FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            names
        );
    }
}
