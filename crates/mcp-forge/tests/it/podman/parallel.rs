//! Many clients at once: each gets the answer to its own code, from a container of its own.

use std::collections::HashSet;

use super::*;

/// Clients, and turns of each.
const CLIENTS: usize = 8;
const TURNS: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_get_their_own_answers_from_fresh_containers() {
    let field = Field::new();
    let service = field.server(|config| {
        config.containers.ready = 4;
        config.max_concurrent = CLIENTS;
    });
    service.start();
    let clients = (0..CLIENTS).map(|client| {
        let service = Arc::clone(&service);
        tokio::spawn(async move {
            let mut containers = Vec::new();
            for turn in 0..TURNS {
                let marker = format!("marker-{client}-{turn}");
                // A container that was used before would have the file, and its own boot's marker.
                let code = format!(
                    "import os\nfresh = not os.path.exists('/tmp/used')\nopen('/tmp/used', 'w').close()\n\
                     print('{marker}')\n(fresh, '{marker}', os.stat('/tmp').st_dev, os.stat('/proc/self/ns/pid').st_ino)"
                );
                let answer = execute(&service, stateless(&code)).await;
                assert_eq!(answer.outcome, "completed", "{:?}", answer.error);
                assert_eq!(answer.result[0], true, "used before");
                assert_eq!(answer.result[1], marker);
                assert_eq!(answer.stdout, format!("{marker}\n"));
                containers.push(answer.execution_id);
            }
            containers
        })
    });
    let ran = futures_util::future::join_all(clients.collect::<Vec<_>>()).await;
    let ids: HashSet<String> = ran.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(ids.len(), CLIENTS * TURNS);
    service.shutdown().await;
    field.wait_empty().await;
}
