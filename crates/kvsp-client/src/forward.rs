//! Passing a request on, for streamed completions.

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderName, ORIGIN, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Request, Response};
use kvsp_proto::uri::BaseUri;

use crate::body::StreamedBody;
use crate::error::ClientError;
use crate::transport::{Call, Client};

/// What belongs to one connection (RFC 9110 section 7.6.1), or to the caller alone: its credentials are never
/// sent on (profile section 4).
const NOT_FORWARDED: [HeaderName; 13] = [
    CONNECTION,
    CONTENT_LENGTH,
    HOST,
    ORIGIN,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
];

impl Client {
    /// Sends a request's method, headers and body to `path` below `base`, whatever the request's own URI.
    /// The answer's status is the caller's to judge; its head must come within the client's timeout, its
    /// body may take as long as it is not silent for too long. Neither side's hop-by-hop fields pass, nor do
    /// credentials.
    ///
    /// # Errors
    /// [`ClientError`], but never [`ClientError::Problem`].
    pub async fn forward(
        &self,
        base: &BaseUri,
        path: &str,
        request: Request<Bytes>,
    ) -> Result<Response<StreamedBody>, ClientError> {
        let (parts, body) = request.into_parts();
        let mut headers = parts.headers;
        strip(&mut headers);
        let call = Call { method: parts.method, path: path.to_owned(), headers, body };
        let mut response = self.send(base, call, self.deadline(), None).await?;
        strip(response.headers_mut());
        Ok(response)
    }
}

fn strip(headers: &mut HeaderMap) {
    let mut named: Vec<HeaderName> = Vec::new();
    for value in headers.get_all(CONNECTION) {
        let names = value.to_str().unwrap_or_default().split(',');
        named.extend(names.filter_map(|name| name.trim().parse().ok()));
    }
    for name in NOT_FORWARDED.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_hops_do_not_pass() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("host", "h"),
            ("kvsp-request-ref", "r"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        strip(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["kvsp-request-ref"], "r");
    }
}
