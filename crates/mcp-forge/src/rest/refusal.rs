//! What the service refuses, as HTTP says it.

use http::StatusCode;

use crate::{
    bridge::GrantError, engine::LaunchError, environments::EnvironmentsError,
    service::ServiceError, session::SessionError, web::Problem,
};

/// The answer to a refused request.
pub(super) fn problem(error: &ServiceError) -> Problem {
    if is_ours(error) {
        tracing::error!("a request failed: {error}");
    }
    quiet(error)
}

/// As [`problem`], for one that the log has already.
pub(super) fn quiet(error: &ServiceError) -> Problem {
    let status = status(error);
    let problem = if is_ours(error) {
        Problem::new(status, error.in_short())
    } else {
        Problem::new(status, sentence(&error.to_string()))
    };
    let problem = match field(error) {
        Some(field) => problem.about(field),
        None => problem,
    };
    let problem = match error {
        ServiceError::Environments(error) => about_packages(problem, error),
        _ => problem,
    };
    if let ServiceError::Environments(error) = error
        && let EnvironmentsError::TooManyBuilds { wait_s, .. } = **error
    {
        return problem.again_in(wait_s.max(1));
    }
    if let ServiceError::CpuQuota { wait_s, .. } = error {
        return problem.again_in(*wait_s);
    }
    let is_worth_trying = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    if is_worth_trying {
        problem.again_in(1)
    } else {
        problem
    }
}

/// Whether the log should have it, since the client is told little.
fn is_ours(error: &ServiceError) -> bool {
    status(error) == StatusCode::INTERNAL_SERVER_ERROR || error.is_internal()
}

fn status(error: &ServiceError) -> StatusCode {
    match error {
        ServiceError::Rejected { .. } | ServiceError::Grant(GrantError::Unknown { .. }) => {
            StatusCode::BAD_REQUEST
        }
        ServiceError::Forbidden { .. } | ServiceError::Launch(LaunchError::Forbidden(_)) => {
            StatusCode::FORBIDDEN
        }
        ServiceError::UnknownTool(_) | ServiceError::NoContext(_) => StatusCode::NOT_FOUND,
        ServiceError::ContextVersion { .. } => StatusCode::CONFLICT,
        ServiceError::TooManyContexts(_)
        | ServiceError::TooManyUploads(_)
        | ServiceError::CpuQuota { .. } => StatusCode::TOO_MANY_REQUESTS,
        ServiceError::Busy { .. }
        | ServiceError::Launch(_)
        | ServiceError::Grant(GrantError::Unavailable { .. })
        | ServiceError::Environment(_) => StatusCode::SERVICE_UNAVAILABLE,
        ServiceError::Session(error) => of_session(error),
        ServiceError::Environments(error) => of_environments(error),
        // A disk that is full has room again some day; so it is with the store and with files.
        ServiceError::Audit(_) => StatusCode::SERVICE_UNAVAILABLE,
        ServiceError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn of_session(error: &SessionError) -> StatusCode {
    match error {
        SessionError::Unknown(_) | SessionError::NoFile { .. } => StatusCode::NOT_FOUND,
        SessionError::Full { .. } | SessionError::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
        SessionError::Elsewhere { .. }
        | SessionError::Exists(_)
        | SessionError::NotLive(_)
        | SessionError::LimitsFixed(_)
        | SessionError::PackagesFixed { .. }
        | SessionError::Ended { .. }
        | SessionError::Interrupted(_)
        | SessionError::NotForkable { .. }
        | SessionError::FileExists { .. }
        | SessionError::NotWritten { .. }
        | SessionError::Branch(_) => StatusCode::CONFLICT,
        SessionError::Volumes(_) | SessionError::Documentation(_) | SessionError::BadPath(_) => {
            StatusCode::BAD_REQUEST
        }
        SessionError::TooLarge(_) | SessionError::NoRoom { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        SessionError::Launch(LaunchError::Forbidden(_)) => StatusCode::FORBIDDEN,
        SessionError::Launch(_)
        | SessionError::Start(_)
        | SessionError::Audit(_)
        | SessionError::Store(_)
        | SessionError::Files(_) => StatusCode::SERVICE_UNAVAILABLE,
        SessionError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn of_environments(error: &EnvironmentsError) -> StatusCode {
    match error {
        EnvironmentsError::Unknown(_) | EnvironmentsError::UnknownTemplate { .. } => {
            StatusCode::NOT_FOUND
        }
        EnvironmentsError::Disabled
        | EnvironmentsError::Refused(_)
        | EnvironmentsError::NeedsApproval(_)
        | EnvironmentsError::Vulnerable(_) => StatusCode::FORBIDDEN,
        EnvironmentsError::TooManyBuilds { .. } => StatusCode::TOO_MANY_REQUESTS,
        EnvironmentsError::Field { .. }
        | EnvironmentsError::Python(_)
        | EnvironmentsError::Resolve(_)
        | EnvironmentsError::Lock(_)
        | EnvironmentsError::Install(_)
        | EnvironmentsError::TooLarge { .. }
        | EnvironmentsError::Import(_) => StatusCode::UNPROCESSABLE_ENTITY,
        EnvironmentsError::Uv(_)
        | EnvironmentsError::TimedOut(_)
        | EnvironmentsError::Audit(_)
        | EnvironmentsError::Store(_)
        | EnvironmentsError::Files { .. }
        | EnvironmentsError::Launch(_) => StatusCode::SERVICE_UNAVAILABLE,
        EnvironmentsError::Tree(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// With the packages that the rules do not let in.
fn about_packages(problem: Problem, error: &EnvironmentsError) -> Problem {
    match error {
        EnvironmentsError::Refused(refused) | EnvironmentsError::NeedsApproval(refused) => {
            problem.refused(refused)
        }
        _ => problem,
    }
}

fn field(error: &ServiceError) -> Option<&str> {
    match error {
        ServiceError::Rejected { field, .. } | ServiceError::Forbidden { field, .. } => Some(field),
        ServiceError::Grant(_) => Some("mcp_tools"),
        _ => None,
    }
}

/// A message with a capital first and a full stop last.
fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    let mut text: String = first.into_iter().chain(letters).collect();
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    text
}
