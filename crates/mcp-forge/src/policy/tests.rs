//! The allow-list: what it lets through, and everything that the specification forbids.

use serde_json::{Value, json};

use super::*;

const ID: &str = "sha256:0123";

fn policy() -> ContainerPolicy {
    let images = [
        "mcp-forge/python:3.11",
        "mcp-forge/python:3.12",
        "mcp-forge/jupyter:latest",
        "mcp-forge/custom:*",
    ];
    ContainerPolicy::new(images.map(str::to_owned).to_vec())
}

fn image() -> Image {
    Image {
        name: "mcp-forge/python:3.11".to_owned(),
        id: ID.to_owned(),
    }
}

fn body() -> Value {
    json!({
        "Image": ID, "Cmd": ["python3"], "Entrypoint": [], "Env": ["A=b"], "Labels": {"a": "b"},
        "User": "1000:1000", "WorkingDir": "/workspace", "OpenStdin": true, "StdinOnce": true,
        "AttachStdin": true, "AttachStdout": true, "AttachStderr": true, "NetworkDisabled": true,
        "StopSignal": "SIGKILL", "StopTimeout": 0,
        "HostConfig": {
            "NetworkMode": "none", "ReadonlyRootfs": true, "AutoRemove": true, "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", "seccomp=/etc/profile.json"],
            "LogConfig": {"Type": "none"}, "IpcMode": "private", "CgroupnsMode": "private",
            "Memory": 1, "MemorySwap": 1, "CpuPeriod": 100_000, "CpuQuota": 50_000, "PidsLimit": 100,
            "ShmSize": 1, "Ulimits": [{"Name": "nofile", "Soft": 1, "Hard": 1}],
            "Tmpfs": {"/tmp": "rw,nosuid,nodev,size=1,mode=1777"},
        },
    })
}

fn set(body: &mut Value, path: &str, value: Value) {
    let (parent, name) = path.rsplit_once('.').map_or(("", path), |parts| parts);
    let object = if parent.is_empty() {
        body
    } else {
        &mut body[parent]
    };
    object
        .as_object_mut()
        .unwrap()
        .insert(name.to_owned(), value);
}

/// The rule that refuses the body with this one change.
fn refused(path: &str, value: Value) -> &'static str {
    let mut body = body();
    set(&mut body, path, value);
    match policy().create(&image(), &body) {
        Ok(()) => "allowed",
        Err(violation) => {
            assert!(violation.message.contains(path), "{violation}");
            violation.rule
        }
    }
}

#[test]
fn a_container_of_ours_is_allowed() {
    assert_eq!(policy().create(&image(), &body()), Ok(()));
}

#[test]
fn what_is_not_listed_is_refused_whatever_its_value() {
    for (path, value) in [
        ("HostConfig.Privileged", json!(true)),
        ("HostConfig.Privileged", json!(false)),
        ("HostConfig.CapAdd", json!(["SYS_ADMIN"])),
        ("HostConfig.CapAdd", json!([])),
        ("HostConfig.Devices", json!([{"PathOnHost": "/dev/mem"}])),
        ("HostConfig.PidMode", json!("host")),
        ("HostConfig.UsernsMode", json!("host")),
        ("HostConfig.UTSMode", json!("host")),
        ("HostConfig.Binds", json!(["/:/host"])),
        (
            "HostConfig.Mounts",
            json!([{"Type": "bind", "Source": "/etc"}]),
        ),
        ("HostConfig.VolumesFrom", json!(["other"])),
        ("HostConfig.CgroupParent", json!("/")),
        ("HostConfig.GroupAdd", json!(["0"])),
        ("HostConfig.Sysctls", json!({"kernel.shm_rmid_forced": "0"})),
        ("HostConfig.MaskedPaths", json!([])),
        ("HostConfig.ReadonlyPaths", json!([])),
        ("HostConfig.OomScoreAdj", json!(-1000)),
        ("HostConfig.Annotations", json!({"a": "b"})),
        ("HostConfig.DeviceCgroupRules", json!(["a *:* rwm"])),
        ("HostConfig.ExtraHosts", json!(["a:1.2.3.4"])),
        ("HostConfig.PortBindings", json!({"80/tcp": []})),
        ("HostConfig.Runtime", json!("runc")),
        ("HostConfig.Unheard", json!(1)),
        ("Volumes", json!({"/a": {}})),
        ("ExposedPorts", json!({"80/tcp": {}})),
        ("Tty", json!(true)),
        ("Healthcheck", json!({"Test": ["CMD", "true"]})),
        ("NetworkingConfig", json!({})),
    ] {
        assert_eq!(refused(path, value), "parameter.forbidden", "{path}");
    }
}

#[test]
fn required_parameters_have_their_exact_values() {
    for (path, value) in [
        ("User", json!("0:0")),
        ("User", json!("1000")),
        ("User", json!("")),
        ("HostConfig.NetworkMode", json!("host")),
        ("HostConfig.NetworkMode", json!("bridge")),
        ("HostConfig.NetworkMode", json!("container:other")),
        ("HostConfig.ReadonlyRootfs", json!(false)),
        ("HostConfig.CapDrop", json!(["NET_RAW"])),
        ("HostConfig.SecurityOpt", json!([])),
        (
            "HostConfig.SecurityOpt",
            json!(["no-new-privileges", "seccomp=unconfined"]),
        ),
        (
            "HostConfig.SecurityOpt",
            json!(["no-new-privileges", "label=disable"]),
        ),
        ("HostConfig.SecurityOpt", json!(["no-new-privileges:false"])),
        (
            "HostConfig.SecurityOpt",
            json!(["seccomp=/p", "no-new-privileges"]),
        ),
        ("HostConfig.LogConfig", json!({"Type": "json-file"})),
        ("HostConfig.IpcMode", json!("host")),
        ("HostConfig.CgroupnsMode", json!("host")),
        ("HostConfig.Memory", json!(0)),
        ("HostConfig.Memory", json!(-1)),
        ("HostConfig.PidsLimit", json!(-1)),
        ("HostConfig.CpuQuota", json!(0)),
        (
            "HostConfig.Ulimits",
            json!([{"Name": "memlock", "Soft": 1, "Hard": 1}]),
        ),
        ("HostConfig.Ulimits", json!([])),
        (
            "HostConfig.Tmpfs",
            json!({"/etc": "rw,nosuid,nodev,size=1"}),
        ),
        ("HostConfig.Tmpfs", json!({"/tmp": "rw,suid,nodev,size=1"})),
        ("HostConfig.Tmpfs", json!({"/tmp": "rw,nosuid,nodev"})),
        (
            "HostConfig.Tmpfs",
            json!({"/tmp": "rw,nosuid,nodev,size=1,dev"}),
        ),
        ("HostConfig.AutoRemove", json!(false)),
    ] {
        assert_eq!(
            refused(path, value.clone()),
            "parameter.value",
            "{path} {value}"
        );
    }
}

#[test]
fn a_required_parameter_that_is_missing_is_named() {
    for (path, rule) in CREATE {
        let mut body = body();
        set(&mut body, path, Value::Null);
        let allowed = policy().create(&image(), &body);
        if Rule::is_required(path) {
            let violation = allowed.unwrap_err();
            assert_eq!(violation.rule, "parameter.required", "{path} {rule:?}");
            assert!(violation.message.contains(path), "{violation}");
        } else {
            assert_eq!(allowed, Ok(()), "{path}");
        }
    }
}

#[test]
fn only_allowed_images_are_used_and_a_star_is_for_one_part_of_a_name() {
    for name in [
        "mcp-forge/python:3.11",
        "mcp-forge/jupyter:latest",
        "mcp-forge/custom:data-1",
    ] {
        assert_eq!(policy().image(name), Ok(()), "{name}");
    }
    for name in [
        "",
        "python:3.11",
        "mcp-forge/python",
        "mcp-forge/python:3.13",
        "mcp-forge/python:3.11 ",
        "evil/mcp-forge/python:3.11",
        "mcp-forge/custom:",
        "mcp-forge/custom:a/b",
        "mcp-forge/custom",
        "mcp-forge/customs:a",
        "mcp-forge/custom:a\nb",
        "mcp-forge/custom:*\u{2044}",
    ] {
        assert_eq!(
            policy().image(name).unwrap_err().rule,
            "image.not_allowed",
            "{name}"
        );
    }
}

#[test]
fn an_image_is_named_by_its_hash() {
    let mut body = body();
    set(&mut body, "Image", json!("mcp-forge/python:3.11"));
    let violation = policy().create(&image(), &body).unwrap_err();
    assert_eq!(violation.rule, "image.not_pinned");
}

#[test]
fn containers_of_others_are_not_touched() {
    for operation in [
        Operation::Start,
        Operation::Attach,
        Operation::Inspect,
        Operation::Remove,
    ] {
        assert_eq!(policy().operation(operation, true), Ok(()));
        let violation = policy().operation(operation, false).unwrap_err();
        assert_eq!(violation.rule, "container.not_own");
    }
    assert_eq!(policy().operation(Operation::Create, false), Ok(()));
}

/// What a service answers that did what it was asked.
fn inspected() -> Value {
    let mut host = body()["HostConfig"].clone();
    host["CapDrop"] = json!(["CHOWN"]);
    host["Privileged"] = json!(false);
    host["Binds"] = json!([]);
    host["PidMode"] = json!("private");
    json!({
        "Image": ID, "Mounts": [],
        "Config": {
            "Cmd": ["python3"], "User": "1000:1000", "WorkingDir": "/workspace",
            "Env": ["A=b", "container=podman"], "Labels": {"a": "b", "of the image": "c"},
        },
        "HostConfig": host,
    })
}

#[test]
fn what_the_service_made_is_held_against_what_was_asked() {
    assert_eq!(policy().created(&body(), &inspected()), Ok(()));
    for (path, value) in [
        ("Image", json!("sha256:other")),
        ("HostConfig.Privileged", json!(true)),
        ("HostConfig.NetworkMode", json!("bridge")),
        ("HostConfig.Binds", json!(["/:/host"])),
        ("HostConfig.CapAdd", json!(["SYS_ADMIN"])),
        ("HostConfig.Memory", json!(2)),
        ("HostConfig.PidsLimit", json!(-1)),
        ("HostConfig.PidMode", json!("host")),
        ("HostConfig.SecurityOpt", json!(["no-new-privileges"])),
        ("HostConfig.CgroupParent", json!("/")),
        ("Config.Cmd", json!(["sh"])),
        ("Config.User", json!("")),
        ("Config.Entrypoint", json!(["/evil"])),
        ("Config.Labels", json!({})),
        ("Mounts", json!([{"Source": "/etc"}])),
    ] {
        let mut made = inspected();
        set(&mut made, path, value);
        let violation = policy().created(&body(), &made).unwrap_err();
        assert_eq!(violation.rule, "container.not_as_asked", "{path}");
        assert!(violation.message.contains(path), "{violation}");
    }
}

/// As an ordinary user's service does where control groups are not delegated. The limits are read back
/// inside, and the launch is refused there.
#[test]
fn a_limit_that_the_host_ignores_is_left_to_be_measured() {
    for path in [
        "HostConfig.Memory",
        "HostConfig.MemorySwap",
        "HostConfig.PidsLimit",
    ] {
        let mut made = inspected();
        set(&mut made, path, json!(0));
        assert_eq!(policy().created(&body(), &made), Ok(()), "{path}");
    }
}
