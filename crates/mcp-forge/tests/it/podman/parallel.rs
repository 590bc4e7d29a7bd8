//! Many clients at once: each gets the answer to its own code, from a container of its own.

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
            for turn in 0..TURNS {
                let marker = format!("marker-{client}-{turn}");
                // One that was handed out before has the file.
                let code = format!(
                    "import os\nfresh = not os.path.exists('/tmp/used')\nopen('/tmp/used', 'w').close()\n\
                     print('{marker}')\n(fresh, '{marker}')"
                );
                let answer = execute(&service, stateless(&code)).await;
                assert_eq!(answer.outcome, "completed", "{:?}", answer.error);
                assert_eq!(answer.result, json!([true, marker]));
                assert_eq!(answer.stdout, format!("{marker}\n"));
            }
        })
    });
    for ran in futures_util::future::join_all(clients.collect::<Vec<_>>()).await {
        ran.unwrap();
    }
    service.shutdown().await;
    field.wait_empty().await;
}
