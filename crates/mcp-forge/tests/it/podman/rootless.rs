//! A service of an ordinary user on a host with control groups of version 1, which ignores limits:
//! the launch is refused, or by the operator's word goes on and says so. Run as such a user.

use mcp_forge::engine::LayerState;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_the_host_ignores_are_a_refusal_that_names_them() {
    let field = Field::new();
    let service = field.server(|config| config.allow_degraded.clear());
    let told = refused(&service, stateless("1")).await.to_string();
    assert!(told.contains("cgroup is required"), "{told}");
    assert!(told.contains("security.allow_degraded: [cgroup]"), "{told}");
    field.wait_empty().await;
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_the_host_ignores_are_best_effort_where_that_is_allowed() {
    let field = Field::new();
    let service = field.server(|config| config.allow_degraded = vec!["cgroup".to_owned()]);
    let answer = execute(&service, stateless("20 + 22")).await;
    assert_eq!(answer.result, 42, "{:?}", answer.error);
    let states = |name: &str| {
        let limits = answer.isolation.limits.iter();
        limits
            .filter(|limit| limit.name == name)
            .map(|limit| limit.state)
            .collect::<Vec<_>>()
    };
    for name in ["memory", "cpu", "pids"] {
        assert_eq!(states(name), [LayerState::BestEffort], "{name}");
    }
    assert_eq!(states("storage"), [LayerState::Enforced]);
    let layers = &answer.isolation.layers;
    let cgroup = layers.iter().find(|layer| layer.name == "cgroup").unwrap();
    assert_eq!(cgroup.state, LayerState::BestEffort);
    // What stands in: the interpreter's own limit.
    let hoard = "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))";
    let answer = execute(&service, stateless(hoard)).await;
    assert_eq!(answer.outcome, "out_of_memory", "{:?}", answer.error);
    service.shutdown().await;
    field.wait_empty().await;
}
