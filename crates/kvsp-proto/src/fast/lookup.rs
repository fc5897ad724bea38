//! The request of a lookup.

use super::reader::{Reader, Unknown, once};
use crate::id::{BlockKey, CompatId, ScopeId};
use crate::message::{Detail, LookupRequest};

/// Octets of a key in a list: its digits, two quotation marks and a comma.
const KEY_OCTETS: usize = 67;

/// A plain request; `None` where the strict reader has to judge.
pub(crate) fn lookup_request(text: &[u8]) -> Option<LookupRequest> {
    let (mut scope_id, mut compat_id, mut block_keys) = (None, None, None);
    let (mut targets, mut detail, mut block_tokens) = (None, None, None);
    let mut unknown = Unknown::default();
    let mut reader = Reader::new(text);
    reader.object(|reader, name| match name {
        b"scope_id" => once(&mut scope_id, ScopeId(reader.hex16()?)),
        b"compat_id" => once(&mut compat_id, CompatId(reader.hex32()?)),
        b"block_keys" => {
            let mut keys = Vec::with_capacity(reader.left() / KEY_OCTETS);
            reader.array(|reader| {
                keys.push(BlockKey(reader.hex32()?));
                Some(())
            })?;
            once(&mut block_keys, keys)
        }
        b"targets" => {
            let mut uris = Vec::new();
            reader.array(|reader| {
                uris.push(reader.string()?.parse().ok()?);
                Some(())
            })?;
            once(&mut targets, uris)
        }
        b"detail" => {
            let value = match reader.string()? {
                "full" => Detail::Full,
                "location" => Detail::Location,
                "none" => Detail::None,
                _ => return None,
            };
            once(&mut detail, value)
        }
        b"block_tokens" => once(&mut block_tokens, reader.integer32()?),
        _ => unknown.skip(reader, name),
    })?;
    reader.end()?;
    Some(LookupRequest {
        scope_id: scope_id?,
        compat_id: compat_id?,
        block_keys: block_keys?,
        targets: targets.unwrap_or_default(),
        detail: detail.unwrap_or_default(),
        block_tokens,
    })
}
