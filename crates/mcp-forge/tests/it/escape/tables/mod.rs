//! The attacks, by topic. Rows are those of the threat model.

use super::case::{Case, Code, Control, Expect, Setting, USUAL};

mod kernel;
mod memory_and_files;
mod network;
mod processes;
mod python;
mod views;

pub(super) use kernel::KERNEL;
pub(super) use memory_and_files::MEMORY_AND_FILES;
pub(super) use network::NETWORK;
pub(super) use processes::PROCESSES;
pub(super) use python::PYTHON;
pub(super) use views::VIEWS;

/// Every case, in the order of the documentation.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    [PROCESSES, MEMORY_AND_FILES, VIEWS, KERNEL, NETWORK, PYTHON]
        .into_iter()
        .flatten()
}

/// A probe that must find that nothing works.
const fn probe(
    id: &'static str,
    attack: &'static str,
    code: &'static str,
    control: Control,
) -> Case {
    Case {
        id,
        attack,
        code: Code::Probe(code),
        expect: Expect::Held,
        control,
        setting: USUAL,
    }
}

/// Behaviour of the runner and the turn: there is no layer to leave out.
const fn behaviour(id: &'static str, attack: &'static str, code: Code, expect: Expect) -> Case {
    Case {
        id,
        attack,
        code,
        expect,
        control: Control::Nothing("behaviour, not a layer"),
        setting: USUAL,
    }
}
