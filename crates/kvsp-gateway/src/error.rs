//! Every answer of the gateway that is not a success has the form of the OpenAI API (profile section 10).

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{ALLOW, HeaderValue, RETRY_AFTER};
use kvsp_net::Failure;
use kvsp_openai::ApiError;

/// An [`ApiError`] as a response.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<Failure> for Refusal {
    /// What the body reader refused.
    fn from(Failure(problem): Failure) -> Self {
        Self(match problem.status() {
            415 => ApiError::MediaType,
            413 => {
                let limit = problem.extensions.get("limit").and_then(serde_json::Value::as_u64);
                ApiError::TooLarge(limit.unwrap_or_default())
            }
            403 => ApiError::Forbidden(problem.detail),
            _ => ApiError::InvalidRequest { message: problem.detail, param: None },
        })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.0.body())).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// An unknown path below `v1/`.
pub(crate) async fn not_found() -> Refusal {
    Refusal(ApiError::NotFound)
}

/// A known path with another method; `allow` lists those it has.
pub(crate) fn method(allow: &'static str) -> Response {
    let mut response = Refusal(ApiError::Method).into_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}
