//! Query parameters, in order and with their repetitions.

use http::{StatusCode, Uri};

use crate::reply::Failure;

/// Most parameters of a query.
const MAX_PARAMETERS: usize = 64;

/// The parameters of a URI's query, percent-decoded, in order; a repeated name comes repeatedly, so that a
/// handler can refuse it.
///
/// # Errors
/// 400 `about:blank` for broken percent-encoding, what is not UTF-8, and over 64 parameters.
pub fn query(uri: &Uri) -> Result<Vec<(String, String)>, Failure> {
    let text = uri.query().unwrap_or_default();
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    if pairs.clone().count() > MAX_PARAMETERS {
        return Err(Failure::blank(StatusCode::BAD_REQUEST, "the query has too many parameters"));
    }
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}

fn decode(text: &str) -> Result<String, Failure> {
    let malformed = || Failure::blank(StatusCode::BAD_REQUEST, "the query is not percent-encoded UTF-8");
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(c) = rest.next() {
        octets.push(match c {
            b'%' => {
                let mut digit = || rest.next().and_then(|c| char::from(c).to_digit(16)).ok_or_else(malformed);
                let value = digit()? << 4 | digit()?;
                u8::try_from(value).map_err(|_| malformed())?
            }
            // The form of HTML forms, which common clients send.
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(octets).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<(String, String)>, u16> {
        query(&text.parse().unwrap()).map_err(|failure| failure.0.status())
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn parameters_come_in_order_with_repetitions() {
        assert_eq!(of("/x"), Ok(vec![]));
        assert_eq!(of("/x?"), Ok(vec![]));
        let want = pairs(&[("layers", "0-1"), ("b", ""), ("layers", "é =")]);
        assert_eq!(of("/x?layers=0-1&b&&layers=%C3%a9+%3D"), Ok(want));
        assert_eq!(of("/x?layers=1=2"), Ok(pairs(&[("layers", "1=2")])));
    }

    #[test]
    fn broken_queries_are_refused() {
        for text in ["/x?a=%", "/x?a=%f", "/x?a=%zz", "/x?a=%ff"] {
            assert_eq!(of(text), Err(400), "{text}");
        }
        assert_eq!(of(&format!("/x?{}", "a&".repeat(65))), Err(400));
    }
}
