//! Files on their way into a session's workspace, and out of it for good.

use axum::{
    Extension,
    body::Body,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    response::IntoResponse,
};
use http::{
    HeaderMap, Request, StatusCode,
    header::{
        CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, IF_MATCH, IF_NONE_MATCH,
        LOCATION,
    },
};

use super::{Answer, Api, json, refusal};
use crate::{
    identity::{Caller, Scope},
    service::Upload,
    web::{Pieces, Problem, needs},
};

/// Headers that would make something else of a body than a file's bytes, or of its name.
const UNKNOWN: [(http::HeaderName, StatusCode, &str); 4] = [
    (
        CONTENT_ENCODING,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "A file is sent as its bytes: send no Content-Encoding.",
    ),
    (
        CONTENT_RANGE,
        StatusCode::BAD_REQUEST,
        "A file is sent whole: send no Content-Range.",
    ),
    (
        IF_MATCH,
        StatusCode::BAD_REQUEST,
        "Files have no ETag: send no If-Match, and overwrite=true to replace a file.",
    ),
    (
        IF_NONE_MATCH,
        StatusCode::BAD_REQUEST,
        "Files have no ETag: send no If-None-Match; without overwrite=true no file is replaced.",
    ),
];

/// `PUT /api/v1/sessions/{id}/files/{path}`
pub(super) async fn put(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    place: Result<Path<(String, String)>, PathRejection>,
    RawQuery(query): RawQuery,
    request: Request<Body>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path((id, path)) = place.map_err(|_| Problem::bad_path())?;
    let replace = overwrite(query.as_deref())?;
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers)?;
    let upload = api.service.begin_upload(&caller.principal, &id, &path);
    let mut upload = upload.await.map_err(|error| refusal::problem(&error))?;
    take(&mut upload, &parts.headers, body).await?;
    let placed = api.service.finish_upload(upload, replace).await;
    let placed = placed.map_err(|error| refusal::problem(&error))?;
    if !placed.is_new {
        return Ok(json(StatusCode::OK, &placed.file));
    }
    let mut response = json(StatusCode::CREATED, &placed.file);
    if let Ok(address) = HeaderValue::from_str(parts.uri.path()) {
        response.headers_mut().insert(LOCATION, address);
    }
    Ok(response)
}

/// `DELETE /api/v1/sessions/{id}/files/{path}`
pub(super) async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    place: Result<Path<(String, String)>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path((id, path)) = place.map_err(|_| Problem::bad_path())?;
    let removed = api.service.remove_file(&caller.principal, &id, &path).await;
    removed.map_err(|error| refusal::problem(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn take(upload: &mut Upload, headers: &HeaderMap, body: Body) -> Result<(), Problem> {
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    if let Some(length) = length {
        upload
            .expect(length)
            .map_err(|error| refusal::problem(&error))?;
    }
    let mut pieces = Pieces::new(body);
    while let Some(piece) = pieces.next().await.map_err(|error| error.problem())? {
        upload
            .push(&piece)
            .await
            .map_err(|error| refusal::problem(&error))?;
    }
    Ok(())
}

fn check_headers(headers: &HeaderMap) -> Result<(), Problem> {
    let found = UNKNOWN.iter().find(|(name, ..)| headers.contains_key(name));
    found.map_or(Ok(()), |(_, status, detail)| {
        Err(Problem::new(*status, *detail))
    })
}

/// The one parameter of the address.
fn overwrite(query: Option<&str>) -> Result<bool, Problem> {
    match query.unwrap_or_default() {
        "" | "overwrite=false" => Ok(false),
        "overwrite=true" => Ok(true),
        _ => {
            let detail =
                "The address takes `overwrite`, once, which is true or false, and nothing else.";
            Err(Problem::new(StatusCode::BAD_REQUEST, detail).about("overwrite"))
        }
    }
}
