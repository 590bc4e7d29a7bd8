//! The same list as a profile for container runtimes: the JSON of the OCI, which Docker has too.

use serde::Serialize;

use super::{
    EAFNOSUPPORT, ENOSYS, EPERM,
    calls::{ALLOWED, Call, Compare, FAMILY, LEGACY, REFUSED, SOCKETS, conditional},
};

/// The architecture in the words of libseccomp.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// What code in a sandbox of the native engine may call, as a profile for a container's runtime,
/// on this machine's architecture. A call of another architecture's ABI ends the process.
///
/// Both filters of the native engine together: a runtime installs it right before it starts the
/// program, with nothing left to seal. It needs no_new_privs for that: without it, runtimes
/// install it earlier, and then lack calls.
pub fn oci_profile() -> String {
    // Plain data with texts for keys: it can always be written.
    serde_json::to_string_pretty(&profile()).unwrap_or_default()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: Action,
    default_errno_ret: u32,
    architectures: [&'static str; 1],
    syscalls: Vec<Rule>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    names: Vec<&'static str>,
    action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno_ret: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    args: Vec<Argument>,
}

#[derive(Debug, Serialize)]
enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    value: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_two: Option<u64>,
    op: &'static str,
}

fn profile() -> Profile {
    let names = |calls: &[Call]| calls.iter().map(|(name, _)| *name).collect();
    let allow = |names, args| Rule {
        names,
        action: Action::Allow,
        errno_ret: None,
        args,
    };
    let refuse = |names, errno, args| Rule {
        names,
        action: Action::Errno,
        errno_ret: Some(errno),
        args,
    };
    let mut syscalls = vec![
        allow(names(&[ALLOWED, LEGACY].concat()), Vec::new()),
        refuse(names(&REFUSED), EPERM, Vec::new()),
        allow(names(&SOCKETS), vec![family("SCMP_CMP_EQ")]),
        refuse(names(&SOCKETS), EAFNOSUPPORT, vec![family("SCMP_CMP_NE")]),
    ];
    for some in conditional() {
        let rules = some.any.iter();
        syscalls
            .extend(rules.map(|all| allow(vec![some.call.0], all.iter().map(argument).collect())));
    }
    Profile {
        default_action: Action::Errno,
        default_errno_ret: ENOSYS,
        architectures: [ARCHITECTURE],
        syscalls,
    }
}

/// Equal or not, all 64 bits: the two leave no value between them, and overlap in none.
fn family(op: &'static str) -> Argument {
    Argument {
        index: 0,
        value: FAMILY.into(),
        value_two: None,
        op,
    }
}

/// libseccomp compares 64 bits; a mask makes it read what the kernel reads.
fn argument(compare: &Compare) -> Argument {
    Argument {
        index: compare.argument,
        value: compare.mask,
        value_two: Some(compare.value),
        op: "SCMP_CMP_MASKED_EQ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_profile() {
        insta::assert_snapshot!("oci_profile", oci_profile());
    }

    #[test]
    fn every_rule_of_the_list_is_in_the_profile_and_nothing_else() {
        let text = oci_profile();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut found: Vec<String> = Vec::new();
        for rule in read["syscalls"].as_array().unwrap() {
            for name in rule["names"].as_array().unwrap() {
                let conditions = rule["args"].as_array().map_or(0, Vec::len);
                let action = rule["action"].as_str().unwrap();
                found.push(format!("{} {action} {conditions}", name.as_str().unwrap()));
            }
        }
        let expect = |call: &Call, what: &str, conditions| {
            format!("{} SCMP_ACT_{what} {conditions}", call.0)
        };
        let mut expected: Vec<String> = ALLOWED
            .iter()
            .chain(LEGACY)
            .map(|call| expect(call, "ALLOW", 0))
            .chain(REFUSED.iter().map(|call| expect(call, "ERRNO", 0)))
            .chain(SOCKETS.iter().map(|call| expect(call, "ALLOW", 1)))
            .chain(SOCKETS.iter().map(|call| expect(call, "ERRNO", 1)))
            .collect();
        for some in conditional() {
            let rules = some.any.iter();
            expected.extend(rules.map(|all| expect(&some.call, "ALLOW", all.len())));
        }
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    /// The name goes to containers, the number to our own filter: they must mean the same call.
    #[test]
    fn each_call_is_named_as_its_number() {
        let source = include_str!("calls.rs");
        let pairs: Vec<(&str, &str)> = source
            .split("(\"")
            .skip(1)
            .filter_map(|rest| {
                let (name, rest) = rest.split_once("\", ")?;
                let number = rest.split_once(')')?.0;
                Some((name, number))
            })
            .collect();
        let listed = ALLOWED.len() + LEGACY.len() + REFUSED.len() + SOCKETS.len();
        assert!(pairs.len() >= listed + conditional().len());
        for (name, number) in pairs {
            let constant = format!("libc::SYS_{name}");
            assert!(
                number == constant || number == name.to_uppercase(),
                "{name} is {number}"
            );
        }
    }
}
