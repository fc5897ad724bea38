//! Any octets: no panic in what members of a group say to each other, and what is read is written the same.
#![no_main]

use kvsp_proto::attention::{AttentionPartial, AttentionQuery};
use kvsp_proto::message::{ReshardMessage, TokenRange};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    if let Ok(query) = AttentionQuery::decode(octets) {
        assert_eq!(query.encode(), octets);
    }
    if let Ok(partial) = AttentionPartial::decode(octets) {
        assert_eq!(partial.encode(), octets);
    }
    if let Ok(message) = ReshardMessage::from_json(octets) {
        let written = serde_json::to_vec(&message).expect("a message is JSON");
        assert_eq!(ReshardMessage::from_json(&written), Ok(message));
    }
    if let Some(range) = std::str::from_utf8(octets).ok().and_then(|text| text.parse::<TokenRange>().ok()) {
        assert_eq!(range.to_string().as_bytes(), octets);
    }
});
