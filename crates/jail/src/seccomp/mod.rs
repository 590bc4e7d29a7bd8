//! The seccomp filter: an allow list of system calls, everything else as if the kernel had none.
//!
//! The default is ENOSYS, not EPERM: libc and language runtimes probe for new calls and fall back
//! on ENOSYS, but take EPERM for a failure. It also covers calls that do not exist yet.
//! Arguments that the kernel takes as 32 bits are compared as 32 bits: with 64, a caller sets a
//! high bit and the rule no longer matches what the kernel will do (CVE-2026-123876).

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use crate::{error::JailError, spec::Layer};

mod calls;
mod oci;

use calls::{
    ALLOWED, Compare, Conditional, FAMILY, JOB_FAMILIES, JOB_PROTOCOLS, LEGACY, NAMESPACES,
    NOT_IN_JOBS, PRCTLS, REFUSED, SOCKETS, STREAM, TYPE_MASK, conditional,
};
pub use oci::oci_profile;

/// Whose calls are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// Those of code, in every sandbox and zygote.
    Code,
    /// Those of a build job: it may make TCP sockets, and a few things fewer.
    Job,
}

/// Installs the wide filter: the list, and what a process needs to seal itself. The seal's last
/// step takes that away again with [`narrow`], before a byte of the program is read: the wide one
/// is costly to install and is inherited, the narrow one is small. Needs no_new_privs.
pub(crate) fn install(table: Table) -> Result<String, JailError> {
    let failed = |step: &str, error: String| JailError::Step {
        layer: Layer::Seccomp,
        step: step.to_owned(),
        source: std::io::Error::other(error),
    };
    let program = program(&SEALING, table).map_err(|error| failed("compile the filter", error))?;
    seccompiler::apply_filter(&program)
        .map_err(|error| failed("install the filter", error.to_string()))?;
    let (left_out, sockets) = match table {
        Table::Code => (0, "AF_UNIX sockets only"),
        Table::Job => (NOT_IN_JOBS.len(), "AF_UNIX and TCP sockets only"),
    };
    let listed = ALLOWED.len() + LEGACY.len() + conditional().len() - left_out;
    Ok(format!("{listed} system calls, {sockets}, default ENOSYS"))
}

/// What a process needs to seal itself, and nothing after.
const SEALING: [i64; 8] = [
    libc::SYS_clone,
    libc::SYS_prctl,
    libc::SYS_mount,
    libc::SYS_unshare,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];

/// The filter that goes on top of the wide one: together they are the list.
pub(crate) fn narrow() -> Result<BpfProgram, String> {
    let none = |error: seccompiler::BackendError| error.to_string();
    let dword = |argument, operator, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        SEALING.into_iter().map(|call| (call, Vec::new())).collect();
    // Each flag by itself: one is enough.
    let namespaces = (0..32)
        .map(|bit| 1 << bit)
        .filter(|flag| NAMESPACES & flag != 0)
        .map(|flag| SeccompRule::new(vec![dword(0, SeccompCmpOp::MaskedEq(flag), flag)?]))
        .collect::<Result<_, _>>()
        .map_err(none)?;
    rules.insert(libc::SYS_clone, namespaces);
    let unlisted = PRCTLS
        .into_iter()
        .map(|option| dword(0, SeccompCmpOp::Ne, u64::from(option)))
        .collect::<Result<_, _>>()
        .and_then(SeccompRule::new)
        .map_err(none)?;
    rules.insert(libc::SYS_prctl, vec![unlisted]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(ENOSYS),
        ARCHITECTURE,
    )
    .map_err(none)?;
    filter.try_into().map_err(none)
}

/// An instruction as two words, in the kernel's layout.
pub(crate) fn words(instruction: &sock_filter) -> [u32; 2] {
    let [code_low, code_high] = instruction.code.to_ne_bytes();
    let first = [code_low, code_high, instruction.jt, instruction.jf];
    [u32::from_ne_bytes(first), instruction.k]
}

/// The compiled filter, with some calls allowed whatever their arguments.
fn program(whole: &[i64], table: Table) -> Result<BpfProgram, String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED
        .iter()
        .chain(LEGACY)
        .map(|(_, number)| (*number, Vec::new()))
        .collect();
    for some in conditional() {
        let some_rules = rules_of(&some).map_err(|error| error.to_string())?;
        rules.insert(some.call.1, some_rules);
    }
    rules.extend(whole.iter().map(|call| (*call, Vec::new())));
    if table == Table::Job {
        rules.retain(|number, _| !NOT_IN_JOBS.iter().any(|(_, out)| out == number));
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(ENOSYS),
        SeccompAction::Allow,
        ARCHITECTURE,
    )
    .map_err(|error| error.to_string())?;
    let list: BpfProgram = filter
        .try_into()
        .map_err(|error: seccompiler::BackendError| error.to_string())?;
    Ok(prologue(table).into_iter().chain(list).collect())
}

const ENOSYS: u32 = libc::ENOSYS.unsigned_abs();
const EPERM: u32 = libc::EPERM.unsigned_abs();
const EAFNOSUPPORT: u32 = libc::EAFNOSUPPORT.unsigned_abs();

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

/// `AUDIT_ARCH_*` of this machine.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCHITECTURE: u32 = 0xC000_00B7;

/// Runs before the list: kills foreign calling conventions, whose numbers mean other calls, and
/// gives the answer that programs expect for a missing socket family and for [`REFUSED`].
fn prologue(table: Table) -> Vec<sock_filter> {
    const X32_BIT: u32 = 0x4000_0000;
    let head = [
        load(ARCH),
        jump_if_equal(AUDIT_ARCHITECTURE, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
        // x32 and anything else above the native range.
        jump_if_at_least(X32_BIT, 0, 1),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let refused = REFUSED.into_iter().flat_map(|(_, number)| {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        [
            jump_if_equal(number, 0, 1),
            answer(libc::SECCOMP_RET_ERRNO | EPERM),
        ]
    });
    let sockets = match table {
        Table::Code => sockets_of_code().to_vec(),
        Table::Job => sockets_of_jobs().to_vec(),
    };
    head.into_iter().chain(refused).chain(sockets).collect()
}

// Offsets into `struct seccomp_data`; the low halves of arguments on little-endian machines.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENT_0: u32 = 16;
const ARGUMENT_1: u32 = 24;
const ARGUMENT_2: u32 = 32;

/// With the call's number loaded: goes on to the list if it is none of these.
fn sockets_of_code() -> [sock_filter; 6] {
    let [socket, socketpair] = socket_calls();
    [
        jump_if_equal(socket, 1, 0),
        jump_if_equal(socketpair, 0, 4),
        load(ARGUMENT_0),
        jump_if_equal(FAMILY, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | EAFNOSUPPORT),
    ]
}

/// The same, with streams of two more families.
fn sockets_of_jobs() -> [sock_filter; 14] {
    let [socket, socketpair] = socket_calls();
    let [inet, inet6] = JOB_FAMILIES;
    let [any, tcp] = JOB_PROTOCOLS;
    [
        jump_if_equal(socket, 1, 0),
        jump_if_equal(socketpair, 0, 12),
        load(ARGUMENT_0),
        jump_if_equal(FAMILY, 8, 0),
        jump_if_equal(inet, 1, 0),
        jump_if_equal(inet6, 0, 7),
        load(ARGUMENT_1),
        and(TYPE_MASK),
        jump_if_equal(STREAM, 0, 4),
        load(ARGUMENT_2),
        jump_if_equal(any, 1, 0),
        jump_if_equal(tcp, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | EAFNOSUPPORT),
    ]
}

fn socket_calls() -> [u32; 2] {
    SOCKETS.map(|(_, number)| u32::try_from(number).unwrap_or(u32::MAX))
}

fn and(mask: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, (0, 0), mask)
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), offset)
}

fn jump_if_equal(value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        (then, otherwise),
        value,
    )
}

fn jump_if_at_least(value: u32, then: u8, otherwise: u8) -> sock_filter {
    instruction(
        libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
        (then, otherwise),
        value,
    )
}

fn answer(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, (0, 0), action)
}

fn instruction(code: u32, (jt, jf): (u8, u8), k: u32) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).unwrap_or(u16::MAX),
        jt,
        jf,
        k,
    }
}

/// The rules in the compiler's words.
fn rules_of(conditional: &Conditional) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let condition = |compare: &Compare| {
        let operator = match compare.mask {
            Compare::LOW_HALF => SeccompCmpOp::Eq,
            mask => SeccompCmpOp::MaskedEq(mask),
        };
        SeccompCondition::new(
            compare.argument,
            SeccompCmpArgLen::Dword,
            operator,
            compare.value,
        )
    };
    conditional
        .any
        .iter()
        .map(|all| SeccompRule::new(all.iter().map(condition).collect::<Result<_, _>>()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_listed_twice() {
        let mut calls: Vec<i64> = ALLOWED
            .iter()
            .chain(LEGACY)
            .map(|(_, number)| *number)
            .collect();
        let listed = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), listed);
    }

    #[test]
    fn the_filter_fits_the_kernel() {
        // BPF_MAXINSNS.
        for table in [Table::Code, Table::Job] {
            assert!(program(&SEALING, table).unwrap().len() <= 4096);
        }
        assert!(narrow().unwrap().len() <= crate::seal::MOST_INSTRUCTIONS);
    }

    /// What the kernel would do, as far as our filters go: a classic BPF machine.
    fn run(program: &[sock_filter], number: i64, arguments: [u64; 3]) -> u32 {
        let mut data = [0; 64];
        data[..4].copy_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
        data[4..8].copy_from_slice(&AUDIT_ARCHITECTURE.to_le_bytes());
        for (index, argument) in arguments.into_iter().enumerate() {
            data[16 + 8 * index..][..8].copy_from_slice(&argument.to_le_bytes());
        }
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let mut jump = |holds| at += usize::from(if holds { jt } else { jf });
            match u32::from(code) {
                0x20 => {
                    let bytes = &data[usize::try_from(k).unwrap()..][..4];
                    value = u32::from_le_bytes(bytes.try_into().unwrap());
                }
                0x54 => value &= k,
                0x05 => at += usize::try_from(k).unwrap(),
                0x15 => jump(value == k),
                0x25 => jump(value > k),
                0x35 => jump(value >= k),
                0x06 => return k,
                other => panic!("an instruction {other:#x} that this machine does not know"),
            }
        }
    }

    /// The answers of both tables, one line a call.
    #[test]
    fn the_two_tables_differ_in_this() {
        let unspecified = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = |name, family: i32, kind: i32, protocol: i32| {
            let arguments = [family, kind, protocol].map(|value| value.unsigned_abs().into());
            (name, libc::SYS_socket, arguments)
        };
        let mut calls = vec![
            socket("unix stream", libc::AF_UNIX, libc::SOCK_STREAM, 0),
            socket("inet stream", libc::AF_INET, libc::SOCK_STREAM, 0),
            socket("inet stream with flags", libc::AF_INET, unspecified, 0),
            socket("inet stream tcp", libc::AF_INET, unspecified, 6),
            socket("inet stream mptcp", libc::AF_INET, libc::SOCK_STREAM, 262),
            socket("inet stream sctp", libc::AF_INET, libc::SOCK_STREAM, 132),
            socket("inet6 stream", libc::AF_INET6, libc::SOCK_STREAM, 0),
            socket("inet datagram", libc::AF_INET, libc::SOCK_DGRAM, 0),
            socket("inet6 datagram", libc::AF_INET6, libc::SOCK_DGRAM, 17),
            socket("inet raw", libc::AF_INET, libc::SOCK_RAW, 1),
            socket("inet sequenced", libc::AF_INET, libc::SOCK_SEQPACKET, 0),
            socket("packet", libc::AF_PACKET, libc::SOCK_RAW, 0),
            socket("netlink", libc::AF_NETLINK, libc::SOCK_RAW, 0),
            socket("alg", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
            socket("vsock", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
            // A high half that the kernel does not read changes nothing.
            (
                "inet datagram, high half",
                libc::SYS_socket,
                [1 << 32 | 2, 1 << 33 | 2, 0],
            ),
            ("unix pair", libc::SYS_socketpair, [1, 1, 0]),
            ("settimeofday", libc::SYS_settimeofday, [0; 3]),
            ("clone3", libc::SYS_clone3, [0; 3]),
            ("io_uring_setup", libc::SYS_io_uring_setup, [0; 3]),
        ];
        calls.extend(
            ALLOWED
                .iter()
                .chain(LEGACY)
                .map(|(name, number)| (*name, *number, [0; 3])),
        );
        let [code, job] = [Table::Code, Table::Job].map(|table| program(&SEALING, table).unwrap());
        let answer = |action: u32| match action {
            libc::SECCOMP_RET_ALLOW => "allowed".to_owned(),
            other => format!(
                "{}",
                std::io::Error::from_raw_os_error((other & 0xFFFF).cast_signed())
            ),
        };
        let lines: Vec<String> = calls
            .into_iter()
            .enumerate()
            .map(|(index, (name, number, arguments))| {
                let answers = [&code, &job].map(|program| run(program, number, arguments));
                let is_interesting = index < 20 || answers[0] != answers[1];
                let [code, job] = answers.map(answer);
                (is_interesting, format!("{name}: code {code}; job {job}"))
            })
            .filter_map(|(is_interesting, line)| is_interesting.then_some(line))
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn what_kernel_bugs_and_escapes_were_made_of_is_not_listed() {
        let forbidden = [
            libc::SYS_add_key,
            libc::SYS_bpf,
            libc::SYS_chroot,
            libc::SYS_clone3,
            libc::SYS_fsmount,
            libc::SYS_io_uring_setup,
            libc::SYS_keyctl,
            libc::SYS_mount,
            libc::SYS_move_mount,
            libc::SYS_name_to_handle_at,
            libc::SYS_open_by_handle_at,
            libc::SYS_open_tree,
            libc::SYS_perf_event_open,
            libc::SYS_pidfd_getfd,
            libc::SYS_pivot_root,
            libc::SYS_process_vm_readv,
            libc::SYS_ptrace,
            libc::SYS_request_key,
            libc::SYS_seccomp,
            libc::SYS_setns,
            libc::SYS_splice,
            libc::SYS_tee,
            libc::SYS_umount2,
            libc::SYS_unshare,
            libc::SYS_userfaultfd,
            libc::SYS_vmsplice,
        ];
        let refused = REFUSED.into_iter().map(|(_, number)| number);
        for call in forbidden.into_iter().chain(refused) {
            let is_listed = ALLOWED
                .iter()
                .chain(LEGACY)
                .any(|(_, number)| *number == call);
            assert!(!is_listed, "system call {call}");
        }
    }
}
