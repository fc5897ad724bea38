//! Any section: no panic, never more than twice its octets, and what decodes is what was measured.
#![no_main]

use bytes::Bytes;
use kvsp_proto::codec;
use kvsp_proto::registry::Codec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|section: &[u8]| {
    let section = Bytes::copy_from_slice(section);
    let measured = codec::decoded_octets(Codec::SPLIT_ZSTD, &section);
    match codec::decode_section(Codec::SPLIT_ZSTD, &section) {
        Ok(raw) => {
            assert_eq!(measured, Ok(Some(raw.len() as u64)));
            assert!(raw.len() <= 2 * section.len());
        }
        Err(_) => assert!(measured.is_err() || section.first() == Some(&1)),
    }
});
