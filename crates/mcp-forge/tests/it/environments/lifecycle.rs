//! What nobody uses is archived and comes back, is forgotten later, and is never taken from a user.

use std::time::Duration;

use mcp_forge::{
    environments::{Selection, Teller},
    names::Principal,
    packages::EnvironmentName,
};
use serde_json::json;

use super::place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_environment_is_archived_and_comes_back_by_its_lock() {
    let place = Place::new(|config| {
        config.environments.archive_after = Duration::ZERO;
        config.environments.delete_after = Duration::from_hours(24);
    });
    let built = place.build("e", &["six"]).await.unwrap();
    let me = Principal::local();
    let name = EnvironmentName::parse("e").unwrap();
    let view = place.environments.info(&me, &name).await.unwrap();
    assert_eq!(view.state, "ready");
    assert!(
        view.notice
            .is_some_and(|notice| notice.contains("is forgotten on"))
    );
    place.tidied().await;
    let view = place.environments.info(&me, &name).await.unwrap();
    assert_eq!((view.state, view.packages.len()), ("archived", 1));
    assert_eq!(place.events("environment.archived").len(), 1);
    // Using it installs the same lock again.
    assert_eq!(place.run("e", "import six; 1").await, json!(1));
    assert_eq!(place.trees(), [built.lock_hash]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_use_is_not_removed() {
    let place = Place::new(|config| config.environments.archive_after = Duration::ZERO);
    place.build("e", &["six"]).await.unwrap();
    let selection = Selection::Custom(EnvironmentName::parse("e").unwrap());
    let (teller, _told) = Teller::new();
    let me = Principal::local();
    // By another server of the same directory.
    let neighbour = place.neighbour();
    let used = neighbour.open(&me, &selection, &teller).await.unwrap();
    place.environments.tidy().await.unwrap();
    assert!(used.site_packages().join("six.py").exists());
    drop((used, neighbour));
    place.tidied().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_unused_it_is_forgotten() {
    let place = Place::new(|config| {
        config.environments.archive_after = Duration::ZERO;
        config.environments.delete_after = Duration::ZERO;
    });
    place.build("e", &["six"]).await.unwrap();
    place.tidied().await;
    let listed = place.environments.list(&Principal::local()).await.unwrap();
    assert!(listed.custom.is_empty());
    assert_eq!(place.events("environment.forgotten").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_keeps_the_name_and_swaps_the_lock() {
    let place = Place::new(|config| {
        config.environments.exclude_newer =
            mcp_forge::config::ExcludeNewer::parse("2021-06-01").ok();
    });
    let old = place.build("e", &["six"]).await.unwrap();
    assert_eq!(old.installed_packages, ["six==1.16.0"]);
    // A server that lives holds what it used a moment ago.
    let place = Place::in_directory(place.into_directory(), |_| {});
    let me = Principal::local();
    let name = EnvironmentName::parse("e").unwrap();
    let (teller, _told) = Teller::new();
    let new = place
        .environments
        .rebuild(&me, &name, &teller)
        .await
        .unwrap();
    assert_ne!(new.lock_hash, old.lock_hash);
    assert_ne!(new.installed_packages, old.installed_packages);
    assert_eq!(place.trees(), [new.lock_hash], "the old tree is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_built_at_its_first_use_and_is_everybodys() {
    let place = Place::new(|config| {
        let template = mcp_forge::packages::Template {
            description: "small".to_owned(),
            packages: vec![mcp_forge::packages::Requirement::parse("six").unwrap()],
        };
        let name = EnvironmentName::parse("tiny").unwrap();
        config.environments.templates.insert(name, template);
    });
    let listed = place.environments.list(&Principal::local()).await.unwrap();
    let tiny = |listed: &mcp_forge::environments::Listed| {
        listed
            .templates
            .iter()
            .find(|template| template.name == "tiny")
            .unwrap()
            .built
    };
    assert!(!tiny(&listed));
    let selection = Selection::Template(EnvironmentName::parse("tiny").unwrap());
    for who in ["ada", "bob"] {
        let (teller, _told) = Teller::new();
        let me = Principal::named(who);
        place
            .environments
            .open(&me, &selection, &teller)
            .await
            .unwrap();
    }
    let listed = place
        .environments
        .list(&Principal::named("bob"))
        .await
        .unwrap();
    assert!(tiny(&listed) && listed.custom.is_empty());
    assert_eq!(
        place.events("environment.build").len(),
        2,
        "begun and ended, once"
    );
}

/// A name is its principal's: another's is as one that is not there.
#[tokio::test(flavor = "multi_thread")]
async fn one_principals_environments_are_nothing_to_another() {
    let place = Place::new(|_| {});
    place.build("e", &["six"]).await.unwrap();
    let name = EnvironmentName::parse("e").unwrap();
    let eve = Principal::named("eve");
    let foreign = place
        .environments
        .info(&eve, &name)
        .await
        .unwrap_err()
        .to_string();
    let unknown = place
        .environments
        .info(&Principal::local(), &EnvironmentName::parse("f").unwrap())
        .await;
    assert_eq!(
        foreign.replace("`e`", "`f`"),
        unknown.unwrap_err().to_string()
    );
    place.environments.delete(&eve, &name).await.unwrap_err();
    assert_eq!(place.run("e", "1").await, json!(1));
}
