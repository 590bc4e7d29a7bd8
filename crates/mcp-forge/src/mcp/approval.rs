//! Asking the person at the client whether packages may be installed that wait for an approval.
//!
//! Up to 2025-11-25 the server sends a request of its own and the build goes on with its answer. From
//! 2026-07-28 on the call is answered with the question, and the client calls again with the answer.
//! Nothing is kept between the two and nothing that the client sends back is trusted: the second call
//! judges the packages anew, and only an answer to exactly the question that it would ask counts. In a task
//! the build waits, and the client finds the question when it asks how far it is.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use rmcp::{
    RoleServer,
    model::{
        CancelledNotificationParam, ClientCapabilities, ClientResult, ElicitRequest,
        ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, InputRequest,
        InputRequiredResult, InputResponses, ProtocolVersion, RequestId, ServerRequest,
    },
    service::{Peer, PeerRequestOptions, RequestContext},
};
use sha2::{Digest, Sha256};

use crate::{
    environments::Refusal,
    service::{Execution, Question},
};

/// For how long a person may think.
const PATIENCE: Duration = Duration::from_mins(10);

/// Packages that one question may name: nobody judges more.
const MOST_PACKAGES: usize = 50;

/// What comes of a question.
pub(super) enum Said {
    /// They may be installed.
    Yes,
    /// They may not, or nobody said so.
    No,
    /// The client is to ask, and to call again.
    Later(Box<InputRequiredResult>),
}

/// A client that can be asked.
pub(super) enum Asking<'a> {
    /// By a request of ours.
    Request(&'a RequestContext<RoleServer>),
    /// By the call's answer; these are the answers of an earlier round.
    Rounds(Option<&'a InputResponses>),
    /// Whenever it asks how far its task is.
    Task(&'a Execution),
}

impl<'a> Asking<'a> {
    /// `None` if the client has not said that it can show a form.
    pub(super) fn of(
        context: &'a RequestContext<RoleServer>,
        answers: Option<&'a InputResponses>,
    ) -> Option<Self> {
        let in_rounds = context
            .protocol_version()
            .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        has_forms(&context.client_capabilities()?).then_some(if in_rounds {
            Self::Rounds(answers)
        } else {
            Self::Request(context)
        })
    }

    /// Asks for packages of an environment, the call's question of this number.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub(super) async fn ask(&self, number: usize, environment: &str, waiting: &[Refusal]) -> Said {
        if waiting.is_empty() || waiting.len() > MOST_PACKAGES {
            return Said::No;
        }
        match self {
            Self::Request(context) => request(&context.peer, form(environment, waiting)).await,
            Self::Rounds(answers) => in_rounds(*answers, environment, waiting),
            Self::Task(execution) => {
                let question = Question {
                    key: format!("{}-{number}", key(environment, waiting)),
                    environment: environment.to_owned(),
                    packages: waiting.to_vec(),
                };
                if execution.ask(question).await {
                    Said::Yes
                } else {
                    Said::No
                }
            }
        }
    }
}

/// Whether a client can show a form.
pub(super) fn has_forms(client: &ClientCapabilities) -> bool {
    // An empty capability means forms: others came later.
    let shown = client.elicitation.as_ref();
    shown.is_some_and(|shown| shown.form.is_some() || shown.url.is_none())
}

/// The question as a client shows it.
pub(super) fn form(environment: &str, waiting: &[Refusal]) -> ElicitRequest {
    ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: question(environment, waiting),
        // Yes and no are all there is to say.
        requested_schema: ElicitationSchema::new(BTreeMap::new()),
    })
}

/// Whether a person said yes.
pub(super) fn is_yes(answer: &ElicitResult) -> bool {
    matches!(answer.action, ElicitationAction::Accept)
}

fn in_rounds(answers: Option<&InputResponses>, environment: &str, waiting: &[Refusal]) -> Said {
    let key = key(environment, waiting);
    if let Some(answer) = answers.and_then(|answers| answers.get(&key)) {
        let answer = serde_json::from_value::<ElicitResult>(answer.clone());
        return answer.map_or(Said::No, |answer| said(&answer));
    }
    let question = InputRequest::Elicitation(form(environment, waiting));
    let asked = BTreeMap::from([(key, question)]);
    Said::Later(Box::new(InputRequiredResult::from_input_requests(asked)))
}

async fn request(peer: &Peer<RoleServer>, question: ElicitRequest) -> Said {
    let options = PeerRequestOptions::with_timeout(PATIENCE);
    let sent = peer
        .send_cancellable_request(ServerRequest::ElicitRequest(question), options)
        .await;
    let Ok(handle) = sent else {
        return Said::No;
    };
    let mut open = Open(Some((peer.clone(), handle.id.clone())));
    let answer = handle.await_response().await;
    open.0 = None;
    match answer {
        Ok(ClientResult::ElicitResult(answer)) => said(&answer),
        // Too late, an error, or nonsense: nobody said yes.
        _ => Said::No,
    }
}

/// A question that nobody has answered: the client is told when it is of no interest any more.
struct Open(Option<(Peer<RoleServer>, RequestId)>);

impl Drop for Open {
    fn drop(&mut self) {
        let Some((peer, id)) = self.0.take() else {
            return;
        };
        tokio::spawn(async move {
            let reason = "the build was cancelled".to_owned();
            let cancelled = CancelledNotificationParam::new(Some(id), Some(reason));
            // A client that is gone needs no telling.
            let _ = peer.notify_cancelled(cancelled).await;
        });
    }
}

fn said(answer: &ElicitResult) -> Said {
    if is_yes(answer) { Said::Yes } else { Said::No }
}

fn question(environment: &str, waiting: &[Refusal]) -> String {
    let mut text = format!(
        "Environment `{environment}` asks for packages that this server's rules hold back:\n"
    );
    for refusal in waiting {
        let _ = writeln!(text, "- {} ({})", refusal.package, refusal.rule);
    }
    text.push_str(
        "Approving lets them into this and every later environment of this server, for everybody who uses it, \
         until `mcp-forge env revoke` takes it back. Approve them?",
    );
    text
}

/// A question's name: another question has another.
fn key(environment: &str, waiting: &[Refusal]) -> String {
    let mut hash = Sha256::new();
    hash.update(environment);
    for refusal in waiting {
        for part in [&refusal.package, &refusal.rule] {
            hash.update([0]);
            hash.update(part);
        }
    }
    format!("approve-{:.32}", format!("{:x}", hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(packages: &[(&str, &str)]) -> Vec<Refusal> {
        let refusal = |(package, pattern): &(&str, &str)| Refusal {
            package: (*package).to_owned(),
            rule: format!("packages.manual_approval: {pattern}"),
            reason: "needs an approval".to_owned(),
        };
        packages.iter().map(refusal).collect()
    }

    #[test]
    fn a_question_names_every_package_and_its_pattern() {
        let text = question("tools", &waiting(&[("paramiko", "*"), ("pynacl", "pyna*")]));
        for part in [
            "`tools`",
            "- paramiko (packages.manual_approval: *)",
            "- pynacl (packages.manual_approval: pyna*)",
            "for everybody",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn each_question_has_a_name_of_its_own() {
        let one = [("a", "p")];
        let keys = [
            key("e", &waiting(&one)),
            key("f", &waiting(&one)),
            key("e", &waiting(&[("b", "p")])),
            key("e", &waiting(&[("a", "q")])),
            key("e", &waiting(&[("a", "p"), ("b", "p")])),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(keys[0], key("e", &waiting(&one)));
        assert!(keys[0].len() == 40, "{}", keys[0]);
    }
}
