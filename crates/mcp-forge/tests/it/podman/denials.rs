//! What the allow-list refuses, and what it finds wrong with a container that a service has made.

use std::sync::atomic::Ordering;

use super::{liar::Liar, *};

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_allowed_is_refused_and_audited() {
    let field = Field::new();
    let service = field.server(|config| {
        config.containers.images.allowed = vec!["mcp-forge/custom:*".to_owned()];
    });
    for (request, denials) in [(stateless("1"), 1), (in_session("a", "1"), 2)] {
        let told = refused(&service, request).await.to_string();
        assert!(told.contains("image.not_allowed"), "{told}");
        assert!(
            told.contains("images.allowed has mcp-forge/custom:*"),
            "{told}"
        );
        assert_eq!(
            violations(&service),
            vec![json!("image.not_allowed"); denials]
        );
    }
    field.wait_empty().await;
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_is_told_with_how_to_get_it() {
    let field = Field::new();
    let service = field.server(|config| {
        let images = &mut config.containers.images;
        images.auto_pull = false;
        for name in [
            &mut images.python_3_11,
            &mut images.python_3_12,
            &mut images.jupyter,
        ] {
            *name = "mcp-forge/custom:absent".to_owned();
        }
    });
    let told = refused(&service, stateless("1")).await.to_string();
    assert!(told.contains("mcp-forge/custom:absent"), "{told}");
    assert!(told.contains("mcp-forge image build"), "{told}");
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_not_as_it_was_asked_for_is_removed_unstarted() {
    for (path, truth, lie) in [
        (
            "HostConfig.Privileged",
            r#""Privileged":false"#,
            r#""Privileged":true "#,
        ),
        (
            "HostConfig.NetworkMode",
            r#""NetworkMode":"none""#,
            r#""NetworkMode":"host""#,
        ),
        (
            "HostConfig.IpcMode",
            r#""IpcMode":"shareable""#,
            r#""IpcMode":"host"     "#,
        ),
        (
            "HostConfig.PidMode",
            r#""PidMode":"private""#,
            r#""PidMode":"host"   "#,
        ),
        (
            "HostConfig.ReadonlyRootfs",
            r#""ReadonlyRootfs":true"#,
            r#""ReadonlyRootfs":null"#,
        ),
        (
            "HostConfig.SecurityOpt",
            r#""no-new-privileges""#,
            r#""no-old-privileges""#,
        ),
        (
            "Config.User",
            r#""User":"1000:1000""#,
            r#""User":"0:0"      "#,
        ),
    ] {
        let liar = Liar::start(truth.as_bytes(), lie.as_bytes());
        let field = Field::on(liar.socket());
        let service = field.server(|_| {});
        let told = refused(&service, stateless("1")).await.to_string();
        assert!(told.contains("container.not_as_asked"), "{path}: {told}");
        assert!(told.contains(&format!("`{path}`")), "{path}: {told}");
        assert!(liar.told.load(Ordering::Relaxed) > 0);
        assert_eq!(
            liar.started.load(Ordering::Relaxed),
            0,
            "{path}: it was started"
        );
        assert_eq!(violations(&service), ["container.not_as_asked"], "{path}");
        assert_eq!(field.containers(), [], "{path}");
        service.shutdown().await;
    }
    // The same go-between that changes nothing is no hindrance.
    let honest = Liar::start(b"\"Privileged\":false", b"\"Privileged\":false");
    let field = Field::on(honest.socket());
    let service = field.server(|_| {});
    assert_eq!(execute(&service, stateless("20 + 22")).await.result, 42);
    assert_eq!(honest.started.load(Ordering::Relaxed), 1);
    service.shutdown().await;
    field.wait_empty().await;
}
