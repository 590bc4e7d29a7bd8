//! Deaths in the middle of a session's turn, on the warm path: of the keeper, the zygote and the
//! interpreter. Each is followed by a correct reply. The server's own death is in `real.rs`.

use mcp_forge::{audit::Audit, bridge::Bridge, engine::Engine, engine::native::Native};
use tempfile::TempDir;

use super::*;
use crate::{
    sandbox::{binary, children, config},
    warm::{keepers, kill, zygotes},
};

/// A service whose sandboxes are forked, and how its processes are told from those of other tests.
struct Warm {
    service: Arc<Service>,
    /// Holds a name of the program that only this service's keepers are started by.
    place: TempDir,
    _data: TempDir,
}

impl Warm {
    async fn new() -> Self {
        let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = place.path().join("mcp-forge");
        std::os::unix::fs::symlink(binary(), &program).unwrap();
        let mut config = config();
        config.native.warm = true;
        data.path().clone_into(&mut config.data_dir);
        let engine = Arc::new(Native::with_jail(&config, program));
        engine.prepare().await.unwrap();
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        let audit = Audit::open(&data.path().join("audit")).unwrap();
        Self {
            service: Service::new(config, engine, bridge, audit),
            place,
            _data: data,
        }
    }

    /// A session with a variable and a file, in the middle of a turn that would last.
    async fn in_a_turn(&self, code: &str) -> JoinHandle<Result<ExecuteResponse, ServiceError>> {
        let service = &self.service;
        let made = "x = 1\nopen('f.txt', 'w').write('kept')";
        assert_eq!(run(service, "a", made).await.outcome, "completed");
        // Read once: then the file is on the host.
        let me = Principal::local();
        service.session_file(&me, "a", "f.txt").await.unwrap();
        begin(service, request("a", code)).await
    }

    /// The turn's answer names the loss, the next call is told and does not run, the one after it has
    /// a fresh interpreter with the session's files.
    async fn see_it_lost_and_told(
        self,
        turn: JoinHandle<Result<ExecuteResponse, ServiceError>>,
        expected: &str,
    ) -> String {
        let service = &self.service;
        let ended = turn.await.unwrap().unwrap();
        assert_eq!(ended.outcome, expected, "{:?}", ended.error);
        let reason = ended.session.unwrap().lost_reason.unwrap();
        let told = run(service, "a", "open('f.txt', 'w').write('changed')").await;
        assert_eq!(told.outcome, "session_lost", "{:?}", told.error);
        let view = told.session.unwrap();
        assert_eq!(view.generation, 2);
        assert_eq!(view.lost_reason.as_ref(), Some(&reason));
        let fresh = run(service, "a", "open('f.txt').read(), 'x' in globals()").await;
        assert_eq!(fresh.result, json!(["kept", false]), "{:?}", fresh.error);
        let other = run(service, "b", "20 + 22").await;
        assert_eq!(other.result, json!(42), "{:?}", other.error);
        let stateless = ExecuteRequest {
            code: "20 + 22".to_owned(),
            ..ExecuteRequest::default()
        };
        let stateless = service.execute(stateless, &mut Quiet).await.unwrap();
        assert_eq!(stateless.result, json!(42));
        service.shutdown().await;
        reason
    }
}

const ENDLESS: &str = "print('begun', flush=True)\nwhile True: x += 1";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_keeper_is_a_loss_that_is_told_once() {
    let warm = Warm::new().await;
    let turn = warm.in_a_turn(ENDLESS).await;
    let family = keepers(warm.place.path());
    // Of processes of one name the keepers are those that none of the others started.
    let inits: Vec<u32> = family.iter().flat_map(|pid| children(*pid)).collect();
    let outer: Vec<u32> = family
        .into_iter()
        .filter(|pid| !inits.contains(pid))
        .collect();
    assert_eq!(outer.len(), 2, "of the bare tier, and of sessions");
    outer.into_iter().for_each(kill);
    let reason = warm.see_it_lost_and_told(turn, "sandbox_error").await;
    assert!(reason.contains("lost"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_interpreter_is_a_loss_that_is_told_once() {
    let warm = Warm::new().await;
    // By this name the host can find it.
    let name = format!("turn-{}", std::process::id());
    let code =
        format!("import ctypes\nassert ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0) == 0\n");
    let turn = warm.in_a_turn(&(code + ENDLESS)).await;
    let below = zygotes(warm.place.path());
    let below = below.into_iter().flat_map(children).flat_map(children);
    let named: Vec<u32> = below
        .filter(|pid| {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        })
        .collect();
    let [interpreter] = named[..] else {
        panic!("{named:?}")
    };
    kill(interpreter);
    let reason = warm.see_it_lost_and_told(turn, "crashed").await;
    assert_eq!(reason, "the interpreter was ended by signal 9");
}

/// What the zygote has forked goes on without it, and can still be interrupted.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_zygote_costs_a_session_nothing() {
    let warm = Warm::new().await;
    let service = &warm.service;
    run(service, "a", "x = 1").await;
    let endless = ExecuteRequest {
        timeout: Some(20.0),
        ..request("a", ENDLESS)
    };
    let turn = begin(service, endless).await;
    let old = zygotes(warm.place.path());
    assert_eq!(old.len(), 2, "of the bare tier, and of sessions");
    old.iter().copied().for_each(kill);
    assert!(!turn.is_finished());
    let ended = turn.await.unwrap().unwrap();
    assert_eq!(ended.outcome, "timed_out", "{:?}", ended.error);
    assert_eq!(ended.session.unwrap().lost_reason, None);
    let next = run(service, "a", "x > 1").await;
    assert_eq!(next.result, json!(true), "{:?}", next.error);
    assert_eq!(next.session.unwrap().generation, 1);
    let other = run(service, "b", "20 + 22").await;
    assert_eq!(other.result, json!(42), "{:?}", other.error);
    let new = zygotes(warm.place.path());
    assert!(
        new.iter().any(|zygote| !old.contains(zygote)),
        "{old:?} {new:?}"
    );
    warm.service.shutdown().await;
}
