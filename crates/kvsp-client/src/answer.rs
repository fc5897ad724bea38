//! Whole answers: success, problem, or neither.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use kvsp_proto::path::MEDIA_JSON;
use kvsp_proto::problem::Problem;
use kvsp_proto::uri::BaseUri;
use serde::de::DeserializeOwned;

use crate::body::StreamedBody;
use crate::error::ClientError;
use crate::transport::{Call, Client};

/// Octets of a problem that are read.
const MAX_PROBLEM_OCTETS: u64 = 256 << 10;

/// A successful answer, whole.
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    /// Sends a request; an answer other than 2xx is an error. The body is still to come.
    pub(crate) async fn begin(
        &self,
        base: &BaseUri,
        call: Call,
        streamed: bool,
    ) -> Result<Response<StreamedBody>, ClientError> {
        let deadline = self.deadline();
        let response = self.send(base, call, deadline, (!streamed).then_some(deadline)).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_client_error() || status.is_server_error() {
            return Err(ClientError::Problem(problem(status, response).await));
        }
        Err(ClientError::protocol(format!("status {status}; redirects are not followed")))
    }

    /// Sends a request and takes the whole answer.
    pub(crate) async fn call(&self, base: &BaseUri, call: Call) -> Result<Answer, ClientError> {
        let (parts, body) = self.begin(base, call, false).await?.into_parts();
        let body = body.collect(self.config().max_json_octets).await?;
        Ok(Answer { headers: parts.headers, body })
    }

    /// Sends a request and takes no body of interest.
    pub(crate) async fn call_empty(&self, base: &BaseUri, call: Call) -> Result<(), ClientError> {
        self.call(base, call).await.map(|_| ())
    }

    /// Sends a request that is answered with JSON.
    pub(crate) async fn call_json<T: DeserializeOwned>(
        &self,
        base: &BaseUri,
        call: Call,
    ) -> Result<T, ClientError> {
        self.call(base, call).await?.json()
    }
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        self.require_json()?;
        kvsp_proto::json::from_slice(&self.body).map_err(|error| ClientError::protocol(error.to_string()))
    }

    pub(crate) fn require_json(&self) -> Result<(), ClientError> {
        require_media(&self.headers, &[MEDIA_JSON, "application/json"])
    }
}

/// Requires an answer to be of one of these media types, whatever their parameters.
pub(crate) fn require_media(headers: &HeaderMap, media: &[&str]) -> Result<(), ClientError> {
    let named = headers.get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    let essence = named.split(|c| *c == b';').next().unwrap_or_default().trim_ascii();
    if media.iter().any(|name| essence.eq_ignore_ascii_case(name.as_bytes())) {
        return Ok(());
    }
    Err(ClientError::protocol(format!("the Content-Type is not {}", media.join(" or "))))
}

async fn problem(status: StatusCode, response: Response<StreamedBody>) -> Problem {
    let (parts, body) = response.into_parts();
    // Whatever happens to the body, the status has been answered.
    let body = body.collect(MAX_PROBLEM_OCTETS).await.unwrap_or_default();
    let mut problem = Problem::from_json(status.as_u16(), &body);
    let seconds = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    problem.retry_after_s = seconds.and_then(|text| text.trim().parse().ok());
    problem
}
