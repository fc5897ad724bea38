use serde_json::json;

use super::*;

fn valid() -> Value {
    json!({
        "model": "m",
        "model_digest": format!("sha-256:{}", "11".repeat(32)),
        "tokenizer_digest": format!("sha-256:{}", "22".repeat(32)),
        "layers": 32, "kv_heads": 8, "head_dim": 128,
        "kv_dtype": "bfloat16", "positional": "rope-llama3",
        "block_tokens": 16, "layout": "kvsp-layout-1"
    })
}

fn with(member: &str, value: Value) -> Result<Descriptor, DescriptorError> {
    let mut descriptor = valid();
    descriptor[member] = value;
    Descriptor::from_json(&serde_json::to_vec(&descriptor).unwrap())
}

#[test]
fn the_geometry_is_that_of_the_draft() {
    let descriptor = Descriptor::from_value(valid()).unwrap();
    assert_eq!(descriptor.section_octets(16), Some((32_768, 32_768)));
    assert_eq!(descriptor.block_octets(), Some(20 + 32 * (16 + 65_536)));
    let mla = with("layout", json!("kvsp-mla-1")).unwrap_err();
    assert!(matches!(mla, DescriptorError::Invalid { member: "kv_heads", .. }));
    let mut mla = valid();
    mla["layout"] = json!("kvsp-mla-1");
    mla["kv_heads"] = json!(1);
    assert_eq!(Descriptor::from_value(mla).unwrap().section_octets(2), Some((512, 0)));
}

#[test]
fn sizes_beyond_64_bits_are_none() {
    let mut huge = valid();
    for member in ["layers", "kv_heads", "head_dim", "block_tokens"] {
        huge[member] = json!(2_147_483_647);
    }
    let descriptor = Descriptor::from_value(huge).unwrap();
    assert_eq!(descriptor.section_octets(descriptor.block_tokens), None);
    assert_eq!(descriptor.block_octets(), None);
}

#[test]
fn a_missing_member_or_a_wrong_type_is_malformed() {
    for member in valid().as_object().unwrap().keys() {
        let mut descriptor = valid();
        descriptor.as_object_mut().unwrap().remove(member);
        assert!(matches!(Descriptor::from_value(descriptor), Err(DescriptorError::Json(_))), "{member}");
        for wrong in [json!(null), json!([]), json!({}), json!(true)] {
            assert!(matches!(with(member, wrong), Err(DescriptorError::Json(_))), "{member}");
        }
    }
    for (member, wrong) in
        [("layers", json!("32")), ("model", json!(7)), ("adapters", json!("a")), ("adapters", json!([1]))]
    {
        assert!(matches!(with(member, wrong), Err(DescriptorError::Json(_))), "{member}");
    }
    for text in ["[]", "null", "\"x\"", "{", "{\"model\":\"a\",\"model\":\"b\"}"] {
        assert!(matches!(Descriptor::from_json(text.as_bytes()), Err(DescriptorError::Json(_))), "{text}");
    }
}

#[test]
fn a_false_value_is_invalid() {
    let hex = "ab".repeat(32);
    for (member, value) in [
        ("adapters", json!([])),
        ("adapters", json!([hex])),
        ("model_digest", json!(hex)),
        ("model_digest", json!(format!("sha-256:{}", hex.to_uppercase()))),
        ("tokenizer_digest", json!("sha-256:")),
        ("kv_scales", json!("sha-256:0")),
        ("layers", json!(0)),
        ("layers", json!(-1)),
        ("layers", json!(1.5)),
        ("layers", json!(1e20)),
        ("kv_heads", json!(2_147_483_648_u64)),
        ("head_dim", json!(4_294_967_297_u64)),
        ("block_tokens", json!(0)),
        ("kv_dtype", json!("auto")),
        ("kv_dtype", json!("fp8")),
        ("kv_dtype", json!("Bfloat16")),
        ("layout", json!("kvsp-layout-2")),
        ("positional", json!("rope;b=1;a=1")),
        ("positional", json!("rope-dynamic")),
    ] {
        match with(member, value.clone()) {
            Err(DescriptorError::Invalid { member: named, .. }) => assert_eq!(named, member),
            other => panic!("{member} {value}: {other:?}"),
        }
    }
    let text = serde_json::to_string(&valid()).unwrap().replace("\"m\"", "\"\\ud800\"");
    assert!(matches!(Descriptor::from_json(text.as_bytes()), Err(DescriptorError::Invalid { .. })));
    let text = serde_json::to_string(&valid()).unwrap().replace('{', "{\"x\":{\"\\udc00\":1},");
    assert!(matches!(Descriptor::from_json(text.as_bytes()), Err(DescriptorError::Invalid { .. })));
}

#[test]
fn the_identity_covers_unknown_members_and_no_spelling() {
    let base = Descriptor::from_value(valid()).unwrap();
    assert_ne!(with("x-unknown", json!(null)).unwrap().compat_id(), base.compat_id());
    let text = serde_json::to_string_pretty(&valid())
        .unwrap()
        .replace(": 32", ": 3.2E1")
        .replace("\"m\"", "\"\\u006d\"");
    let respelt = Descriptor::from_json(text.as_bytes()).unwrap();
    assert_eq!(respelt.compat_id(), base.compat_id());
    assert_eq!(respelt.layers, 32);
    assert_eq!(respelt.jcs(), base.jcs());
    assert_eq!(Descriptor::from_json(&serde_json::to_vec(&respelt).unwrap()).unwrap(), base);
}
