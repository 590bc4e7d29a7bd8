//! Environments through the whole service: built by native jobs, used as images, gone with their names.

use mcp_forge::{
    engine::native::job::Jobs, environments::Teller, names::Principal,
    service::BuildEnvironmentRequest,
};

use super::*;
use crate::{packages::uv, sandbox::binary};

impl Field {
    /// A server that can build.
    fn builder(&self) -> Arc<Service> {
        let mut config = self.config();
        config.audit_dir = self.data.path().join("audit");
        config.native.python = Some("/usr/bin/python3.11".into());
        config.environments.uv = Some(uv());
        config.environments.uv_cache = self.data.path().join("uv");
        config.max_limits.timeout = Duration::from_mins(5);
        let engine = Arc::new(Podman::new(&config));
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        let audit = Audit::open(&config.audit_dir).unwrap();
        let jobs = Jobs::with_jail(&config, binary());
        Service::with_jobs(config, engine, bridge, (audit, jobs))
    }
}

async fn build(service: &Service, name: &str, packages: &[&str]) -> String {
    let request = BuildEnvironmentRequest {
        name: name.to_owned(),
        packages: Some(packages.iter().map(|&text| text.to_owned()).collect()),
        ..BuildEnvironmentRequest::default()
    };
    let (teller, _told) = Teller::new();
    let me = Principal::local();
    let built = service.build_environment(&me, request, &teller).await;
    built.unwrap().lock_hash
}

fn with(image: &str, request: ExecuteRequest) -> ExecuteRequest {
    ExecuteRequest {
        custom_image: Some(image.to_owned()),
        ..request
    }
}

/// Images that hold this environment for this data directory: others may have built the same.
fn images(field: &Field, id: &str) -> usize {
    let of = format!("label=io.mcp-forge.environment={id}");
    let place = format!("label={PLACE}={}", field.place().unwrap());
    let filters = ["images", "--quiet", "--filter", &of, "--filter", &place];
    podman(&filters).lines().count()
}

async fn until_gone(field: &Field, id: &str) {
    let deadline = Instant::now() + PATIENCE;
    let tree = field.data.path().join("environments").join(id);
    while images(field, id) > 0 || tree.exists() {
        assert!(Instant::now() < deadline, "the image or the tree stays");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_built_runs_in_containers_and_goes_with_its_name() {
    let field = Field::new();
    let service = field.builder();
    let id = build(&service, "pods", &["six==1.17.0", "numpy"]).await;
    let hidden = field.data.path().display().to_string();
    let code = format!(
        "import os, six, numpy
[six.__version__, int(numpy.arange(4).sum()), numpy.__file__.split('/numpy/')[0], os.path.exists({hidden:?}), os.path.exists('/build')]"
    );
    let expected = json!([
        "1.17.0",
        6,
        "/opt/environment/lib/python3.11/site-packages",
        false,
        false
    ]);
    let answer = execute(&service, with("mcp-forge/custom:pods", stateless(&code))).await;
    assert_eq!(answer.result, expected, "{:?}", answer.error);
    assert_eq!(answer.environment, "pods");
    assert_eq!(images(&field, &id), 1);
    // Without a name there is nothing of it: the image has its own.
    let bare = "import importlib.util
[importlib.util.find_spec(name).origin.startswith('/opt/environment') for name in ('six', 'numpy')]";
    let answer = execute(&service, stateless(bare)).await;
    assert_eq!(answer.result, json!([false, false]), "{:?}", answer.error);
    // A session keeps it; in it nothing can be installed.
    let first = execute(&service, with("pods", in_session("s", &code))).await;
    assert_eq!(first.result, expected, "{:?}", first.error);
    let install = "
import subprocess, sys
def works(*command):
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False
[works(sys.executable, '-m', 'pip', 'install', 'idna'), works('pip', 'install', 'idna'), works('uv', 'pip', 'install', 'idna'), works(sys.executable, '-m', 'ensurepip')]";
    let answer = execute(&service, in_session("s", install)).await;
    assert_eq!(answer.result, json!([false, false, false, false]));
    let me = Principal::local();
    service.delete_session(&me, "s").await.unwrap();
    field.wait_empty().await;
    service.delete_environment(&me, "pods").await.unwrap();
    until_gone(&field, &id).await;
    let error = refused(&service, with("pods", stateless("1"))).await;
    assert!(
        error
            .to_string()
            .starts_with("there is no environment `pods`")
    );
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_a_session_has_goes_when_the_next_server_starts() {
    let field = Field::new();
    let service = field.builder();
    let id = build(&service, "pods", &["six"]).await;
    let code = "import six; 1";
    execute(&service, with("pods", in_session("s", code))).await;
    let me = Principal::local();
    service.delete_environment(&me, "pods").await.unwrap();
    // The session goes on with what it has.
    assert_eq!(
        execute(&service, in_session("s", code)).await.result,
        json!(1)
    );
    assert_eq!(images(&field, &id), 1);
    service.delete_session(&me, "s").await.unwrap();
    service.shutdown().await;
    let next = field.builder();
    next.start();
    until_gone(&field, &id).await;
    next.shutdown().await;
}
