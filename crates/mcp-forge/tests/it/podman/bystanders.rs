//! What others have made is never listed as ours, stopped or removed, whatever it is called.

use super::*;

/// Containers of other people: created, or running a sleep.
struct Bystanders(Vec<String>);

impl Bystanders {
    /// One for each set of options of `podman create`; each runs.
    fn make(each: &[Vec<String>]) -> Self {
        let ids = each.iter().map(|options| {
            let mut arguments = vec![
                "run",
                "--detach",
                "--network",
                "none",
                "--ulimit",
                "nofile=64:64",
                "--ulimit",
                "nproc=64:64",
            ];
            arguments.extend(options.iter().map(String::as_str));
            arguments.extend(["--entrypoint", "sleep", "mcp-forge/python:3.11", "1000"]);
            let output = podman_command(&arguments).output().unwrap();
            assert!(output.status.success(), "{options:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        });
        Self(ids.collect())
    }

    /// Every one that does not run undisturbed.
    fn disturbed(&self) -> Vec<String> {
        let disturbed = self.0.iter().filter(|id| {
            let seen = inspect(id);
            seen["State"]["Running"] != true || seen["RestartCount"] != 0
        });
        disturbed.cloned().collect()
    }
}

impl Drop for Bystanders {
    fn drop(&mut self) {
        for id in &self.0 {
            remove(id);
        }
    }
}

fn options(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

fn labelled(name: &str, labels: &[(&str, &str)]) -> Vec<String> {
    let mut options = options(&["--name", name]);
    for (key, value) in labels {
        options.extend(["--label".to_owned(), format!("{key}={value}")]);
    }
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_others_are_left_alone_and_those_of_a_dead_server_are_not() {
    let field = Field::new();
    // Two servers of one data directory: one lives all along, the other comes and goes.
    let living = field.server(|_| {});
    assert_eq!(execute(&living, stateless("1")).await.result, 1);
    let place = field.place().unwrap();
    let [living_name] = &field.servers()[..] else {
        panic!("{:?}", field.servers())
    };
    let elsewhere = "0123456789abcdef0123456789abcdef";
    let dead = "00000000000000000000000000000000";
    let unique = format!("{}-{}", std::process::id(), &place[..8]);
    let named = |number: usize| format!("mcp-forge-{unique}-{number}");
    let bystanders = Bystanders::make(&[
        labelled(&named(1), &[]),
        labelled(&named(2), &[(PLACE, elsewhere), (SERVER, dead)]),
        labelled(&named(3), &[(PLACE, elsewhere), (SERVER, living_name)]),
        labelled(&named(4), &[(PLACE, &place), (SERVER, living_name)]),
        labelled(&named(5), &[(PLACE, &place)]),
        labelled(&named(6), &[(SERVER, dead)]),
        labelled(
            &named(7),
            &[(PLACE, &place), (SERVER, "../../../etc/passwd")],
        ),
        labelled(&named(8), &[(PLACE, &place), (SERVER, "")]),
        labelled(&named(9), &[(PLACE, &format!("{place}0")), (SERVER, dead)]),
        labelled(&named(10), &[(PLACE, "../.."), (SERVER, "/")]),
        labelled(
            &named(11),
            &[("io.mcp-forge", "true"), ("mcp-forge.place", &place)],
        ),
        labelled(&named(12), &[(PLACE, &place), (SERVER, &dead[..31])]),
        labelled(
            &named(13),
            &[(PLACE, &place), (SERVER, &format!("{living_name}.lock"))],
        ),
    ]);
    // What a dead server of this data directory has left: one that was never started, one that runs.
    let orphan = Bystanders::make(&[
        labelled(&named(20), &[(PLACE, &place), (SERVER, dead)]),
        labelled(&named(21), &[(PLACE, &place), (SERVER, dead)]),
    ]);
    podman(&["kill", &orphan.0[1]]);
    assert_eq!(bystanders.disturbed(), [""; 0]);

    let second = field.server(|config| config.containers.ready = 1);
    assert_eq!(execute(&second, stateless("2")).await.result, 2);
    let gone = |id: &String| inspect(id).is_null();
    assert!(orphan.0.iter().all(gone), "{:?}", field.containers());
    assert_eq!(bystanders.disturbed(), [""; 0], "by start-up");
    assert_eq!(execute(&second, in_session("a", "3")).await.result, 3);
    assert_eq!(
        execute(&second, stateless("import os; os._exit(1)"))
            .await
            .outcome,
        "crashed"
    );
    assert_eq!(bystanders.disturbed(), [""; 0], "by turns");
    second.shutdown().await;
    drop(second);
    assert_eq!(execute(&living, stateless("4")).await.result, 4);
    living.shutdown().await;
    assert_eq!(bystanders.disturbed(), [""; 0], "by shutdown");
}
