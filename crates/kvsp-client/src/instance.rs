//! Calls to an inference instance (draft sections 6.3 and 6.5).

use http::Method;
use http::header::LOCATION;
use kvsp_proto::message::{DirectiveStatus, PrefetchDirective, StateBody};
use kvsp_proto::path;
use kvsp_proto::record::{InstanceState, InstanceStatus};
use kvsp_proto::uri::BaseUri;
use url::Url;

use crate::error::ClientError;
use crate::transport::{Call, Client};

impl Client {
    /// Sends a prefetch directive; answers the absolute URI of its status resource.
    ///
    /// # Errors
    /// [`ClientError`], [`ClientError::Protocol`] where that URI is not the instance's.
    pub async fn prefetch(
        &self,
        instance: &BaseUri,
        directive: &PrefetchDirective,
    ) -> Result<String, ClientError> {
        let answer = self.call(instance, Call::json(Method::POST, path::PREFETCH, directive)?).await?;
        let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| ClientError::protocol("no Location of the directive"))?;
        let resolved = Url::parse(instance.as_str()).and_then(|base| base.join(location));
        let resolved = resolved.map_err(|_| ClientError::protocol("the Location is not a URI"))?;
        if !resolved.as_str().starts_with(instance.as_str()) {
            return Err(ClientError::protocol("the Location is not the instance's"));
        }
        Ok(resolved.into())
    }

    /// How far a directive is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn directive_status(&self, status_uri: &str) -> Result<DirectiveStatus, ClientError> {
        let (base, path) = split(status_uri)?;
        self.call_json(&base, Call::get(path)).await
    }

    /// Cancels a directive.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel_directive(&self, status_uri: &str) -> Result<(), ClientError> {
        let (base, path) = split(status_uri)?;
        self.call_empty(&base, Call::delete(path)).await
    }

    /// An instance's own status.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn status(&self, instance: &BaseUri) -> Result<InstanceStatus, ClientError> {
        self.call_json(instance, Call::get(path::STATUS)).await
    }

    /// Puts an instance into a state; answers the one taken up.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_state(
        &self,
        instance: &BaseUri,
        state: InstanceState,
    ) -> Result<StateBody, ClientError> {
        self.call_json(instance, Call::json(Method::PUT, path::STATE, &StateBody { state })?).await
    }
}

/// A base URI and the rest of an absolute URI.
fn split(uri: &str) -> Result<(BaseUri, &str), ClientError> {
    let (base, rest) = uri.split_at(uri.rfind('/').map_or(0, |at| at + 1));
    let base = base.parse().map_err(|_| ClientError::protocol("not the URI of a directive"))?;
    Ok((base, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_uri_is_a_base_and_a_name() {
        let (base, rest) = split("http://127.0.0.1:1/kvsp/prefetch/abc").unwrap();
        assert_eq!((base.as_str(), rest), ("http://127.0.0.1:1/kvsp/prefetch/", "abc"));
        for bad in ["abc", "", "/kvsp/prefetch/abc", "http://", "ftp://h/a", "http://u@h/a"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }
}
