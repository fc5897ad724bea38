//! What a service tells on its `/metrics`.

use bytes::Bytes;
use http::Request;
use kvsp_client::{Client, ClientError};
use kvsp_proto::uri::BaseUri;

/// The longest answer that is taken.
const MAX_OCTETS: u64 = 4 << 20;

/// All metrics of a service at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Scrape(String);

impl Scrape {
    /// Asks the administration listener of a service.
    pub(crate) async fn of(client: &Client, admin: &BaseUri) -> Result<Self, ClientError> {
        let (_, mut body) = client.forward(admin, "metrics", Request::new(Bytes::new())).await?.into_parts();
        let mut text = Vec::new();
        while let Some(chunk) = body.chunk().await? {
            text.extend_from_slice(&chunk);
            if text.len() as u64 > MAX_OCTETS {
                return Err(ClientError::TooLarge { max: MAX_OCTETS });
            }
        }
        Ok(Self(String::from_utf8_lossy(&text).into_owned()))
    }

    /// A counter or gauge by its name with its labels; 0 where it is not there.
    pub(crate) fn value(&self, name: &str) -> f64 {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }

    /// The same as a whole number.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.value(name) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let scrape = Scrape("# TYPE a counter\na_b 7\na{x=\"y\"} 3\na 2.5\n".to_owned());
        assert_eq!((scrape.value("a"), scrape.count("a{x=\"y\"}"), scrape.count("a_b")), (2.5, 3, 7));
        assert_eq!((scrape.count("b"), scrape.count("a_")), (0, 0));
    }
}
