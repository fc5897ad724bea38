//! The output tokens of a session as an instance releases them (profile section 5).

use std::collections::VecDeque;

use http::HeaderMap;
use kvsp_proto::message::{Needs, TokenEvent};
use kvsp_proto::path::{self, MEDIA_EVENTS, SESSION_NEEDS_HEADER};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::answer::require_media;
use crate::body::StreamedBody;
use crate::error::ClientError;
use crate::sse::{Message, Parser};
use crate::transport::{Call, Client};

/// A stream of tokens.
#[derive(Debug)]
pub struct TokenStream {
    /// What the instance waits for before it goes on.
    pub needs: Option<Needs>,
    body: StreamedBody,
    parser: Parser,
    ready: VecDeque<Message>,
}

impl Client {
    /// The output tokens of a session from an index on. The head of the answer must come within the client's
    /// timeout; after it the stream may be silent for the client's idle timeout, comments not counted as
    /// silence.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn tokens(
        &self,
        instance: &BaseUri,
        session: Uuid,
        from: u64,
    ) -> Result<TokenStream, ClientError> {
        let call = Call::get(path::session_tokens(session, from));
        let (parts, body) = self.begin(instance, call, true).await?.into_parts();
        TokenStream::new(&parts.headers, body)
    }
}

impl TokenStream {
    /// Reads a successful answer, whatever request it answers.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] where it is no event stream.
    pub fn new(headers: &HeaderMap, body: StreamedBody) -> Result<Self, ClientError> {
        require_media(headers, &[MEDIA_EVENTS])?;
        let needs = headers.get(SESSION_NEEDS_HEADER).map(http::HeaderValue::as_bytes);
        Ok(Self {
            needs: (needs == Some(Needs::Prompt.as_str().as_bytes())).then_some(Needs::Prompt),
            body,
            parser: Parser::default(),
            ready: VecDeque::new(),
        })
    }

    /// The next event; `None` once the stream has ended, which without a [`TokenEvent::Done`] before means
    /// that the instance no longer serves the session. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&mut self) -> Option<Result<TokenEvent, ClientError>> {
        loop {
            while let Some(message) = self.ready.pop_front() {
                // Something that is not a token's event, such as one with a name, is for others.
                if !message.data.is_empty() && message.name.is_empty() {
                    let event = kvsp_proto::json::from_slice(message.data.as_bytes());
                    return Some(event.map_err(|e| ClientError::protocol(format!("an event's data: {e}"))));
                }
            }
            match self.body.chunk().await {
                Ok(Some(octets)) => {
                    if let Err(error) = self.parser.take(&octets, &mut self.ready) {
                        return Some(Err(error));
                    }
                }
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
