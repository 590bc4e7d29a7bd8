//! The real uv in real jobs, with the public index behind the gateway.

use std::fs;

use mcp_forge::engine::native::job::{JobEnd, JobProgram};

use super::bench::{Bench, gateway};

const INDEX: &[(&str, u16)] = &[("pypi.org", 443), ("files.pythonhosted.org", 443)];

#[tokio::test]
async fn packages_come_through_the_gateway_and_belong_to_the_server() {
    let bench = Bench::new();
    let build = bench.build("build");
    let python = bench.jobs.python(None).await.unwrap();
    // Job 1: resolves, from a file that the server wrote.
    let mut spec = bench.uv(
        &build,
        &[
            "pip",
            "compile",
            "/opt/job/wanted.txt",
            "--python",
            &python.program,
            "--format",
            "pylock.toml",
            "--only-binary",
            ":all:",
            "--output-file",
            "/build/pylock.toml",
        ],
    );
    spec.files
        .push(("/opt/job/wanted.txt".to_owned(), "requests\n".to_owned()));
    let gateway_1 = gateway(INDEX, &[]);
    let traffic = gateway_1.traffic();
    let done = bench.run(spec, Some(gateway_1)).await;
    assert_eq!(done.ending.cause, JobEnd::Exited(0), "{done:?}");
    assert!(traffic.bytes() > 1000 && traffic.refused().is_empty());
    let lock = fs::read_to_string(build.join("pylock.toml")).unwrap();
    assert!(lock.contains("name = \"urllib3\""), "{lock}");
    // Job 2: goes on in the same directory, and installs.
    let venv = ["venv", "/build/venv", "--python", &python.program];
    let done = bench.run(bench.uv(&build, &venv), None).await;
    assert_eq!(done.ending.cause, JobEnd::Exited(0), "{done:?}");
    let install = [
        "pip",
        "sync",
        "/build/pylock.toml",
        "--python",
        "/build/venv",
        "--only-binary",
        ":all:",
        "--preview-features",
        "pylock",
    ];
    let done = bench
        .run(bench.uv(&build, &install), Some(gateway(INDEX, &[])))
        .await;
    assert_eq!(done.ending.cause, JobEnd::Exited(0), "{done:?}");
    assert!(done.ending.usage.cpu_ms.is_some_and(|cpu| cpu > 0));
    // What came of it can be read, moved and removed.
    let (major, minor, _) = python.version;
    let packages = format!("lib/python{major}.{minor}/site-packages");
    let source = build.join("venv").join(&packages).join("requests/api.py");
    assert!(fs::read_to_string(source).unwrap().contains("def get("));
    let published = bench.directory.path().join("published");
    fs::rename(build.join("venv"), &published).unwrap();
    fs::remove_file(published.join(&packages).join("requests/api.py")).unwrap();
    fs::remove_dir_all(&published).unwrap();
    fs::remove_dir_all(&build).unwrap();
}

#[tokio::test]
async fn an_index_that_is_not_listed_is_refused_and_named() {
    let bench = Bench::new();
    let build = bench.build("build");
    let python = bench.jobs.python(None).await.unwrap();
    let venv = ["venv", "/build/venv", "--python", &python.program];
    bench.run(bench.uv(&build, &venv), None).await;
    // The index is listed, the host of its files is not.
    let gateway = gateway(&INDEX[..1], &[]);
    let traffic = gateway.traffic();
    let install = [
        "pip",
        "install",
        "six",
        "--python",
        "/build/venv",
        "--only-binary",
        ":all:",
    ];
    let done = bench.run(bench.uv(&build, &install), Some(gateway)).await;
    assert_eq!(done.ending.cause, JobEnd::Exited(2), "{done:?}");
    assert_eq!(traffic.refused(), ["files.pythonhosted.org:443"]);
}

#[tokio::test]
async fn wheels_of_a_directory_need_no_network() {
    let bench = Bench::new();
    let build = bench.build("build");
    let python = bench.jobs.python(None).await.unwrap();
    let wheels = bench.build("wheels");
    // The smallest wheel, made by a job: nobody else has to know how.
    let make = bench.python(
        r#"
import zipfile
with zipfile.ZipFile("/build/tiny_forge-1.0-py3-none-any.whl", "w") as wheel:
    info = "tiny_forge-1.0.dist-info/"
    wheel.writestr("tiny_forge.py", "answer = 42\n")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: tiny-forge\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "".join(f"{name},,\n" for name in ["tiny_forge.py", info + "METADATA", info + "WHEEL", info + "RECORD"]))
"#,
    );
    let made = make.build.join("tiny_forge-1.0-py3-none-any.whl");
    let done = bench.run(make, None).await;
    assert_eq!(done.ending.cause, JobEnd::Exited(0), "{done:?}");
    fs::rename(&made, wheels.join(made.file_name().unwrap())).unwrap();
    let venv = ["venv", "/build/venv", "--python", &python.program];
    bench.run(bench.uv(&build, &venv), None).await;
    let install = [
        "pip",
        "install",
        "tiny-forge",
        "--python",
        "/build/venv",
        "--offline",
        "--no-index",
        "--find-links",
        "/opt/wheels",
    ];
    let mut spec = bench.uv(&build, &install);
    spec.trees.push((wheels, "/opt/wheels".to_owned()));
    let done = bench.run(spec, None).await;
    assert_eq!(done.ending.cause, JobEnd::Exited(0), "{done:?}");
}

#[tokio::test]
async fn what_cannot_be_a_job_is_refused_with_a_sentence() {
    let bench = Bench::new();
    let mut spec = bench.python("");
    spec.program = JobProgram::Tool("/nowhere/uv".into());
    let error = bench.refused(spec).await.to_string();
    assert!(
        error.contains("the program /nowhere/uv cannot be used"),
        "{error}"
    );
    let mut spec = bench.python("");
    let link = bench.directory.path().join("link");
    std::os::unix::fs::symlink("/usr", &link).unwrap();
    spec.build = link;
    let error = bench.refused(spec).await.to_string();
    assert!(
        error.contains("the build directory") && error.contains("cannot be used"),
        "{error}"
    );
    let mut spec = bench.python("");
    spec.python = Some("/bin/true".into());
    let error = bench.refused(spec).await.to_string();
    assert!(error.contains("/bin/true"), "{error}");
}
