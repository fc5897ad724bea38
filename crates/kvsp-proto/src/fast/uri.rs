//! Base URIs that are plainly in normal form already, as those in records and paths mostly are.

/// Whether a text is a base URI that normalisation leaves as it is. `false` says nothing: the URL parser has to
/// look. `true` only for `http` and `https`, a lowercase host name or four decimal octets, a port that is not
/// the scheme's own, and segments of unreserved characters, none of them empty, `.` or `..`.
pub(crate) fn is_plainly_normal(text: &str) -> bool {
    let (default_port, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => ("443", rest),
        (_, Some(rest)) => ("80", rest),
        _ => return false,
    };
    let Some((authority, path)) = rest.split_once('/') else { return false };
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let plain_port = |port: &str| {
        (1..=4).contains(&port.len()) && is_number(port.as_bytes()) && port != default_port && port != "0"
    };
    (is_address(host) || is_name(host))
        && port.is_none_or(|port| plain_port(port) || is_high_port(port))
        && (path.is_empty() || path.strip_suffix('/').is_some_and(|path| path.split('/').all(is_segment)))
}

/// Five digits from 10000 to 65535.
fn is_high_port(port: &str) -> bool {
    port.len() == 5 && is_number(port.as_bytes()) && port <= "65535"
}

/// Decimal digits without a leading zero.
fn is_number(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || text.first().is_some_and(|c| *c != b'0'))
}

fn is_address(host: &str) -> bool {
    let octet = |text: &str| {
        (1..=3).contains(&text.len()) && is_number(text.as_bytes()) && (text.len() < 3 || text <= "255")
    };
    host.split('.').count() == 4 && host.split('.').all(octet)
}

/// Labels of letters, digits and single hyphens, the last one beginning with a letter: no address, and nothing
/// that is encoded for international names.
fn is_name(host: &str) -> bool {
    let label = |text: &str| {
        let octets = text.as_bytes();
        let plain = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-';
        (1..=63).contains(&octets.len())
            && octets.iter().all(plain)
            && !text.starts_with('-')
            && !text.ends_with('-')
            && !text.contains("--")
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= 253 && host.split('.').all(label) && last.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_segment(text: &str) -> bool {
    let unreserved = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~');
    !matches!(text, "" | "." | "..") && text.bytes().all(unreserved)
}
