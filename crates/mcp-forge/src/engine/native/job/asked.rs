//! From a build job as the server thinks of it to a jail as the kernel builds it. Pure.

use std::{collections::BTreeMap, path::Path};

use jail::spec::{GATEWAY_PORT, JailLimits, JailSpec, JobAccess, Layer, Tree};

use super::{super::render, JobLimits, JobProgram, JobSpec, Known};

/// Where programs given to jobs appear, and what else is the job's own.
const OWN: &str = "/opt/job";

/// What the jail is asked for one job.
pub(super) fn jail_spec(
    spec: &JobSpec,
    build: &Path,
    known: &Known,
    required: Vec<Layer>,
) -> JailSpec {
    let render::Shown {
        mut trees,
        links,
        mut files,
        variables,
    } = known.host.for_job();
    let mut variables: BTreeMap<String, String> = variables.into_iter().collect();
    variables.extend(spec.variables.iter().cloned());
    let program = match &spec.program {
        JobProgram::Python => known.python.program.clone(),
        JobProgram::Tool(path) => {
            let name = path.file_name().unwrap_or("program".as_ref());
            let inside = format!("{OWN}/{}", name.to_string_lossy());
            trees.push(copied(path, inside.clone()));
            inside
        }
    };
    if let Some(bundle) = &known.certificates {
        let inside = format!("{OWN}/certificates.crt");
        trees.push(copied(bundle, inside.clone()));
        variables.insert("SSL_CERT_FILE".to_owned(), inside);
    }
    let proxy = format!("http://127.0.0.1:{GATEWAY_PORT}");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        variables.insert(name.to_owned(), proxy.clone());
        variables.insert(name.to_lowercase(), proxy.clone());
    }
    let shown = spec.trees.iter();
    trees.extend(shown.map(|(source, target)| render::opaque(source, target)));
    let small = spec.files.iter();
    files.extend(small.map(|(path, content)| render::file(path, content)));
    JailSpec {
        id: spec.id.clone(),
        trees,
        links,
        files,
        limits: jail_limits(&spec.limits),
        program,
        arguments: spec.arguments.clone(),
        environment: variables.into_iter().collect(),
        required,
        zygote: false,
        own_networks: false,
        job: Some(JobAccess {
            writable: build.display().to_string(),
            file_bytes: spec.limits.file_bytes,
        }),
    }
}

/// A single file: the jail gives a copy.
fn copied(source: &Path, target: String) -> Tree {
    Tree {
        source: source.display().to_string(),
        target,
        opaque: false,
    }
}

/// Room in memory for what is written beside the build directory is small: there is that directory.
fn jail_limits(limits: &JobLimits) -> JailLimits {
    let small = (limits.memory_bytes / 8).min(64 << 20);
    JailLimits {
        memory_bytes: limits.memory_bytes,
        cpu_quota_us: limits.cpu_quota_us,
        pids: limits.pids,
        tmp_bytes: small,
        workspace_bytes: small,
        shm_bytes: small,
        // All cores for the whole time, and a little: the deadline is what ends a job.
        cpu_seconds: limits.wall.as_secs().saturating_mul(64).saturating_add(10),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{super::interpreter, JobPython},
        *,
    };

    fn spec(build: &Path) -> JobSpec {
        JobSpec {
            id: "job-1".to_owned(),
            program: JobProgram::Tool("/usr/local/bin/uv".into()),
            arguments: vec!["--version".to_owned()],
            variables: vec![
                ("UV_CACHE_DIR".to_owned(), "/build/cache".to_owned()),
                ("http_proxy".to_owned(), "http://elsewhere".to_owned()),
            ],
            files: vec![("/opt/job/wanted.txt".to_owned(), "six==1.17.0\n".to_owned())],
            trees: vec![("/srv/wheels".into(), "/opt/wheels".to_owned())],
            build: build.to_owned(),
            python: None,
            limits: JobLimits {
                memory_bytes: 1 << 30,
                cpu_quota_us: 100_000,
                pids: 64,
                wall: Duration::from_mins(5),
                file_bytes: 1 << 30,
                build_bytes: 4 << 30,
            },
        }
    }

    fn known() -> Known {
        let found = interpreter::Interpreter {
            executable: "/home/ada/python/bin/python3.12".into(),
            base_prefix: "/home/ada/python".into(),
            environment: None,
            version: (3, 12, 4),
            shared_library: true,
        };
        let host = render::Host::read(render::Base::new(found), None);
        Known {
            python: JobPython {
                program: host.python().display().to_string(),
                executable: "/home/ada/python/bin/python3.12".into(),
                version: (3, 12, 4),
            },
            host,
            certificates: Some("/etc/ssl/certs/ca-certificates.crt".into()),
        }
    }

    #[test]
    fn a_job_is_asked_of_the_jail_like_this() {
        let build = Path::new("/srv/data/build/x");
        let mut jail = jail_spec(&spec(build), build, &known(), vec![Layer::Seccomp]);
        // How this host lays out its root is another test's.
        jail.trees.retain(|tree| tree.target.starts_with("/opt"));
        jail.links.clear();
        jail.files.retain(|file| !file.path.starts_with("/etc"));
        insta::assert_json_snapshot!(jail);
    }

    #[test]
    fn no_variable_of_a_job_leads_around_its_gateway() {
        let build = Path::new("/b");
        let jail = jail_spec(&spec(build), build, &known(), Vec::new());
        let proxies: Vec<_> = jail
            .environment
            .iter()
            .filter(|(name, _)| name.to_lowercase().contains("proxy"))
            .collect();
        assert_eq!(proxies.len(), 6);
        assert!(
            proxies
                .iter()
                .all(|(_, value)| value == "http://127.0.0.1:3128")
        );
    }
}
