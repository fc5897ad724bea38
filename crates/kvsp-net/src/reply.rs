//! Answers: JSON, empty, and problems (RFC 9457; profile section 3).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use kvsp_proto::id::BadIdentifier;
use kvsp_proto::json::JsonError;
use kvsp_proto::path::{MEDIA_JSON, MEDIA_PROBLEM};
use kvsp_proto::problem::{Problem, ProblemType};
use serde::Serialize;

/// A request that failed: answered as `application/problem+json` with the problem's status.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure(pub Problem);

impl Failure {
    /// A failure of a registered type.
    pub fn new(problem: ProblemType, detail: impl Into<String>) -> Self {
        Self(Problem::new(problem, detail))
    }

    /// A failure of type `about:blank`.
    pub fn blank(status: StatusCode, detail: impl Into<String>) -> Self {
        Self(Problem::blank(status.as_u16(), detail))
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<JsonError> for Failure {
    fn from(error: JsonError) -> Self {
        Self(error.into())
    }
}

impl From<BadIdentifier> for Failure {
    fn from(error: BadIdentifier) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status = StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::from(problem.to_json().to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_PROBLEM));
        if let Some(seconds) = problem.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An answer of `application/kvsp+json`.
pub fn json<T: Serialize + ?Sized>(status: StatusCode, body: &T) -> Response {
    match serde_json::to_vec(body) {
        Ok(octets) => {
            let mut response = Response::new(Body::from(octets));
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_JSON));
            response
        }
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            Failure::blank(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be written")
                .into_response()
        }
    }
}

/// An answer without a body.
#[must_use]
pub fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_carries_its_fields() {
        let problem = Problem::new(ProblemType::Overloaded, "later").retry_after(3);
        let response = Failure(problem).into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "3");
        assert_eq!(response.headers()[CONTENT_TYPE], MEDIA_PROBLEM);
        let response = Failure::new(ProblemType::Unauthenticated, "").into_response();
        assert_eq!(
            (response.status(), &response.headers()[WWW_AUTHENTICATE]),
            (StatusCode::UNAUTHORIZED, &HeaderValue::from_static("Bearer"))
        );
    }
}
