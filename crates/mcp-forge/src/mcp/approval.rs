//! Asking the person at the client whether packages may be installed that wait for an approval.
//!
//! Up to 2025-11-25 the server sends a request of its own and the build goes on with its answer. From
//! 2026-07-28 on the call is answered with the question, and the client calls again with the answer.
//! Nothing is kept between the two and nothing that the client sends back is trusted: the second call
//! judges the packages anew, and only an answer to exactly the question that it would ask counts.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use rmcp::{
    RoleServer,
    model::{
        CancelledNotificationParam, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult,
        ElicitationAction, ElicitationSchema, InputRequest, InputRequiredResult, InputResponses,
        ProtocolVersion, RequestId, ServerRequest,
    },
    service::{Peer, PeerRequestOptions, RequestContext},
};
use sha2::{Digest, Sha256};

use crate::environments::Refusal;

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
pub(super) struct Asking<'a> {
    context: &'a RequestContext<RoleServer>,
    /// Whether the call is answered with the question.
    in_rounds: bool,
}

impl<'a> Asking<'a> {
    /// `None` if the client has not said that it can show a form.
    pub(super) fn of(context: &'a RequestContext<RoleServer>) -> Option<Self> {
        let shown = context.client_capabilities()?.elicitation?;
        // An empty capability means forms: others came later.
        let has_forms = shown.form.is_some() || shown.url.is_none();
        let in_rounds = context
            .protocol_version()
            .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        has_forms.then_some(Self { context, in_rounds })
    }

    /// Asks for packages of an environment. `answers` are those of an earlier round.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the question back.
    pub(super) async fn ask(
        &self,
        environment: &str,
        waiting: &[Refusal],
        answers: Option<&InputResponses>,
    ) -> Said {
        if waiting.is_empty() || waiting.len() > MOST_PACKAGES {
            return Said::No;
        }
        let question = ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: question(environment, waiting),
            // Yes and no are all there is to say.
            requested_schema: ElicitationSchema::new(BTreeMap::new()),
        });
        if !self.in_rounds {
            return self.request(question).await;
        }
        let key = key(environment, waiting);
        if let Some(answer) = answers.and_then(|answers| answers.get(&key)) {
            let answer = serde_json::from_value::<ElicitResult>(answer.clone());
            return answer.map_or(Said::No, |answer| said(&answer));
        }
        let asked = BTreeMap::from([(key, InputRequest::Elicitation(question))]);
        Said::Later(Box::new(InputRequiredResult::from_input_requests(asked)))
    }

    async fn request(&self, question: ElicitRequest) -> Said {
        let peer = &self.context.peer;
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
    match answer.action {
        ElicitationAction::Accept => Said::Yes,
        _ => Said::No,
    }
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
