//! A command's talk with a server: turns with their output and interrupts, and the way to the server
//! that runs a session.

use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep_until};

use crate::{
    config::Config,
    mcp::client::{Client, ClientError, Said},
    turn::Observer,
};

use super::{
    CliError, Exit, Signals,
    reach::{Inside, Reach, ReachError},
    service,
};

/// How long the answer to an interrupted turn is waited for. Code that does not stop is killed by
/// the server before that.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(10);

/// A server that was reached.
#[derive(Debug)]
pub(super) struct Console {
    client: Client,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Another process.
    Outside(Reach),
    /// This one.
    Inside(Inside),
}

/// What came of a turn.
#[derive(Debug)]
pub(super) enum Turned {
    /// The whole response.
    Ended(Value),
    /// A signal ended the wait for it; the turn is interrupted.
    Left(Exit),
}

impl Console {
    /// A server that stays when this command ends: one that is there, or a new one in the background.
    pub(super) async fn outside(reach: Reach) -> Result<Self, CliError> {
        let client = reach.find_or_start().await?;
        let place = Place::Outside(reach);
        Ok(Self { client, place })
    }

    /// A server that ends with this command, able to run code.
    pub(super) async fn inside(config: Config) -> Result<Self, CliError> {
        let service = service(config)?;
        service.start();
        let (inside, client) = Inside::start(service).await?;
        let place = Place::Inside(inside);
        Ok(Self { client, place })
    }

    /// A server that is there; else one in this process, which is enough to look at sessions and
    /// to forget them.
    pub(super) async fn outside_or_inside(reach: Reach, config: Config) -> Result<Self, CliError> {
        if let Some(client) = reach.find().await? {
            let place = Place::Outside(reach);
            return Ok(Self { client, place });
        }
        let (inside, client) = Inside::start(service(config)?).await?;
        let place = Place::Inside(inside);
        Ok(Self { client, place })
    }

    /// Runs code. Should the session live in another server, that one runs it, and is the
    /// console's from then on.
    pub(super) async fn execute(
        &mut self,
        request: &Value,
        heard: &mut dyn Observer,
    ) -> Result<Turned, CliError> {
        let refused = match turn(&mut self.client, request, heard).await {
            Err(error) => error,
            turned => return turned,
        };
        for mut client in self.owners(&refused).await? {
            match turn(&mut client, request, heard).await {
                Err(error) if pid_of(&error).is_some() => {}
                turned => {
                    self.client = client;
                    return turned;
                }
            }
        }
        Err(refused)
    }

    /// Calls a tool; of the server that runs the session, if another one does.
    pub(super) async fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value, CliError> {
        let refused = match self.client.call(tool, arguments).await {
            Err(error) => CliError::from(error),
            Ok(answer) => return Ok(answer),
        };
        for mut client in self.owners(&refused).await? {
            match client.call(tool, arguments).await.map_err(CliError::from) {
                Err(error) if pid_of(&error).is_some() => {}
                answered => return answered,
            }
        }
        Err(refused)
    }

    /// Reads all that is known of a session; by the server that runs it, which knows best.
    pub(super) async fn state(&mut self, session_id: &str) -> Result<Value, CliError> {
        let uri = format!("mcp://forge/sessions/{session_id}/state");
        let state = self.client.read(&uri).await?;
        if let (Some(pid), Place::Outside(reach)) = (state["pid"].as_i64(), &self.place) {
            for mut client in reach.of_process(pid).await? {
                match client.read(&uri).await {
                    Ok(state) if state["state"] == "live" => return Ok(state),
                    // What is known here is still right.
                    _ => {}
                }
            }
        }
        Ok(state)
    }

    /// Ends what was started for this command.
    pub(super) async fn end(self) {
        drop(self.client);
        if let Place::Inside(inside) = self.place {
            inside.end().await;
        }
    }

    /// The servers that may run the session, if that is why one refused.
    async fn owners(&self, refused: &CliError) -> Result<Vec<Client>, ReachError> {
        match (pid_of(refused), &self.place) {
            (Some(pid), Place::Outside(reach)) => reach.of_process(pid).await,
            _ => Ok(Vec::new()),
        }
    }
}

fn pid_of(error: &CliError) -> Option<i64> {
    match error {
        CliError::Server(ClientError::Refused { pid, .. }) => *pid,
        _ => None,
    }
}

/// One turn: its output as it comes, then its answer. The first Ctrl-C interrupts it; the second
/// one, or a turn that does not stop, ends the wait.
async fn turn(
    client: &mut Client,
    request: &Value,
    heard: &mut dyn Observer,
) -> Result<Turned, CliError> {
    let mut signals = Signals::watch()?;
    let asked = tokio::select! {
        asked = client.begin("execute_python", request) => asked?,
        exit = signals.next() => return Ok(Turned::Left(exit)),
    };
    let mut until: Option<Instant> = None;
    loop {
        tokio::select! {
            said = client.next(asked) => match said? {
                Said::Output(stream, text) => heard.output(stream, &text),
                Said::Answer(answer) => return Ok(Turned::Ended(answer?)),
            },
            exit = signals.next() => {
                if exit != Exit::Interrupted || until.is_some() {
                    client.give_up(asked).await?;
                    return Ok(Turned::Left(exit));
                }
                client.interrupt(asked).await?;
                until = Some(Instant::now() + INTERRUPT_PATIENCE);
            }
            () = async { sleep_until(until.unwrap_or_else(Instant::now)).await }, if until.is_some() => {
                client.give_up(asked).await?;
                return Ok(Turned::Left(Exit::Interrupted));
            }
        }
    }
}

/// The name of the session that a request asks for, as a request for another tool has it.
pub(super) fn named(session_id: &str) -> Value {
    json!({"session_id": session_id})
}
