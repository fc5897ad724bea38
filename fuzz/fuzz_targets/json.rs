//! Any octets: no panic, nothing accepted that serde_json refuses, and a canonical form that is stable.
#![no_main]

use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::json;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(value) = json::parse(text) else { return };
    assert!(serde_json::from_slice::<serde_json::Value>(text).is_ok());
    let again = serde_json::to_vec(&value).expect("a value serialises");
    assert_eq!(json::parse(&again), Ok(value));
    if let Ok(descriptor) = Descriptor::from_json(text) {
        let canonical = Descriptor::from_json(&descriptor.jcs()).expect("its canonical form is a descriptor");
        assert_eq!(canonical.compat_id(), descriptor.compat_id());
    }
});
