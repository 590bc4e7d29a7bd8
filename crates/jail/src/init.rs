//! Init: pid 1 of a sandbox. Enters the jail, starts the program, reaps, and ends with it.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::process::{DumpableBehavior, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::{
    channel::Channel,
    descriptors::{self, Streams},
    enter,
    error::JailError,
    namespaces::Outside,
    rootfs::Sources,
    spec::{JailSpec, Layer, LayerReport},
    sys::{self, Side},
};

/// What init tells the keeper. Written by our code before the program runs, and by pid 1 after.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Message {
    /// All layers are in place.
    Sealed { layers: Vec<LayerReport> },
    /// A required step failed.
    Refused {
        layer: Layer,
        step: String,
        errno: i32,
    },
    /// Something else failed.
    Failed { message: String },
    /// The program is gone; everything else goes with init.
    Ended {
        exited: Option<i32>,
        signaled: Option<i32>,
    },
}

/// What the keeper knew before the fork.
pub(crate) struct Surroundings {
    /// The trees, opened where a privileged keeper could.
    pub(crate) sources: Sources,
    /// The namespaces to have left.
    pub(crate) outside: Outside,
}

/// Init's whole life. Does not return.
pub(crate) fn run(
    spec: &JailSpec,
    streams: Streams,
    surroundings: Surroundings,
    channel: &Channel,
) -> ! {
    // The keeper dies, we die: it is our only link to the server.
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // One byte: ids are mapped, cgroups are joined. Nothing when the keeper is already gone.
    let released = channel.receive();
    if tied.is_err() || released.is_none() {
        sys::exit_now(1);
    }
    match start(spec, streams, surroundings, channel) {
        Ok(worker) => {
            reap_until_end(worker, channel);
            // The forks of a zygote that died have a turn to finish.
            while spec.zygote
                && !matches!(
                    rustix::process::wait(WaitOptions::empty()),
                    Err(rustix::io::Errno::CHILD)
                )
            {}
        }
        Err(error) => tell(channel, &describe(&error)),
    }
    sys::exit_now(0)
}

fn start(
    spec: &JailSpec,
    streams: Streams,
    surroundings: Surroundings,
    channel: &Channel,
) -> Result<i32, JailError> {
    let command = Command::of(spec)?;
    let (layers, listener) = enter(spec, surroundings.sources, &surroundings.outside)?;
    // After the last change of ids, which clears it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
    // The program must not read init's memory or descriptors through /proc/1.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    tell_sealed(channel, layers, listener)?;
    match sys::fork() {
        Ok(Side::Parent(worker)) => {
            drop(streams);
            Ok(worker)
        }
        Ok(Side::Child) => become_program(&command, &streams, channel),
        Err(source) => Err(JailError::Execute {
            program: spec.program.clone(),
            source,
        }),
    }
}

/// The program, its arguments and environment, made before the fork: after it, nothing allocates.
struct Command {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Command {
    fn of(spec: &JailSpec) -> Result<Self, JailError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| {
                JailError::Launch(format!("a NUL byte in `{}`", text.escape_default()))
            })
        };
        let arguments = std::iter::once(&spec.program).chain(&spec.arguments);
        Ok(Self {
            program: text(&spec.program)?,
            arguments: arguments
                .map(|argument| text(argument))
                .collect::<Result<_, _>>()?,
            environment: spec
                .environment
                .iter()
                .map(|(name, value)| text(&format!("{name}={value}")))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn become_program(command: &Command, streams: &Streams, channel: &Channel) -> ! {
    // Dies with init even where a test build left the pid namespace out.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).ok();
    rustix::process::setsid().ok();
    sys::reset_signals();
    let error = match descriptors::arrange(streams) {
        Ok(()) => sys::execute(&command.program, &command.arguments, &command.environment),
        Err(error) => error,
    };
    let message = format!(
        "cannot execute {}: {error}",
        command.program.to_string_lossy()
    );
    tell(channel, &Message::Failed { message });
    sys::exit_now(127)
}

/// Reaps orphans until the worker is gone. When init then exits, the kernel kills whatever is
/// left in the namespace.
fn reap_until_end(worker: i32, channel: &Channel) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == worker => {
                tell(
                    channel,
                    &Message::Ended {
                        exited: status.exit_status(),
                        signaled: status.terminating_signal(),
                    },
                );
                return;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Says that all is in place. A job's listener goes with it: init keeps no copy.
fn tell_sealed(
    channel: &Channel,
    layers: Vec<LayerReport>,
    listener: Option<OwnedFd>,
) -> Result<(), JailError> {
    let message = Message::Sealed { layers };
    let Some(listener) = listener else {
        tell(channel, &message);
        return Ok(());
    };
    let failed = |error: io::Error| JailError::Launch(format!("cannot pass the listener: {error}"));
    let bytes = serde_json::to_vec(&message).map_err(|error| failed(error.into()))?;
    channel
        .send_with(&bytes, &[listener.as_fd()])
        .map_err(failed)
}

fn tell(channel: &Channel, message: &Message) {
    if let Ok(bytes) = serde_json::to_vec(message) {
        channel.send(&bytes);
    }
}

fn describe(error: &JailError) -> Message {
    match error {
        JailError::Step {
            layer,
            step,
            source,
        } => Message::Refused {
            layer: *layer,
            step: format!("{step}: {source}"),
            errno: source.raw_os_error().unwrap_or_default(),
        },
        JailError::Launch(_) | JailError::Execute { .. } => Message::Failed {
            message: error.to_string(),
        },
    }
}

/// Parses one message of init.
///
/// # Errors
///
/// It is not one.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<Message> {
    Ok(serde_json::from_slice(bytes)?)
}
