//! The same attacks in another engine's sandboxes: what held, and what the host saw.

use mcp_forge::{
    engine::{Engine, Purpose, SandboxSpec},
    turn::Report,
};

pub(crate) use super::case::Case;
use super::{
    case::{self, MACHINE},
    host::Host,
};
pub(crate) use super::{host::negative_controls, look::own_address};
use crate::sandbox;

/// Every attack of the tables.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    super::tables::all()
}

/// What came of one attack.
pub(crate) struct Attacked {
    /// What a probe says worked, by its names. One that is no probe has none.
    pub(crate) breaches: Vec<String>,
    /// Why what came is not what must come.
    pub(crate) unexpected: Option<String>,
    /// What the host saw, and what else was wrong: never to be accepted.
    pub(crate) failures: Vec<String>,
}

/// Runs one attack in a fresh sandbox of this engine.
pub(crate) async fn attack(case: &Case, engine: &dyn Engine) -> Attacked {
    let (_alone, _shared);
    if case.setting.heavy {
        _alone = MACHINE.write().await;
    } else {
        _shared = MACHINE.read().await;
    }
    let host = Host::prepare();
    let limits = case.limits(1);
    let spec = SandboxSpec {
        id: case.id.to_lowercase().replace(' ', "-"),
        limits: limits.clone(),
        purpose: Purpose::default(),
        environment: None,
    };
    let sandbox = match engine.launch(&spec).await {
        Ok(sandbox) => sandbox,
        Err(error) => {
            return Attacked {
                breaches: Vec::new(),
                unexpected: None,
                failures: vec![format!("no sandbox: {error}")],
            };
        }
    };
    let report = sandbox::turn_in(sandbox, &case.source(&host, true), &limits).await;
    let mut failures: Vec<String> = host
        .touched()
        .into_iter()
        .map(|canary| format!("the host saw {canary}"))
        .collect();
    if report.wall > limits.timeout + std::time::Duration::from_secs(40) {
        failures.push(format!("it took {:?}", report.wall));
    }
    Attacked {
        breaches: breaches(&report),
        unexpected: case.expect.check(&report).err(),
        failures,
    }
}

/// Runs harmless code in a sandbox of its own, and says what was wrong with the answer.
pub(crate) async fn answers(engine: &dyn Engine, case: &Case) -> Option<String> {
    let limits = case.limits(1);
    let spec = SandboxSpec {
        id: "next".to_owned(),
        limits: limits.clone(),
        purpose: Purpose::default(),
        environment: None,
    };
    let sandbox = match engine.launch(&spec).await {
        Ok(sandbox) => sandbox,
        Err(error) => return Some(error.to_string()),
    };
    let report = sandbox::turn_in(sandbox, "1 + 1", &limits).await;
    (report.result != 2).then(|| case::brief(&report))
}

fn breaches(report: &Report) -> Vec<String> {
    let listed = report.result["breaches"].as_array().into_iter().flatten();
    listed
        .map(|name| name.as_str().unwrap_or("?").to_owned())
        .collect()
}
