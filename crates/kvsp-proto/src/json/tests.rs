use proptest::prelude::*;
use serde_json::json;

use super::*;

fn malformed(text: &[u8]) -> bool {
    matches!(parse(text), Err(JsonError::Malformed(_)))
}

#[test]
fn what_serde_json_lets_through_is_refused() {
    for text in [
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"\ud83d\ude00":1,"😀":2}"#,
        r#"{"x":{"b":1,"c":2,"b":3}}"#,
        "9007199254740992",
        "-9007199254740992",
        "123456789012345678901234567890",
        "1e400",
        "-1e400",
        "\"\u{FFFE}\"",
        "\"\u{FFFF}\"",
        "\"\u{FDD0}\"",
        "\"\u{FDEF}\"",
        "\"\u{1FFFE}\"",
        "\"\u{10FFFF}\"",
        r#""\ufffe""#,
        r#""\ufdd0""#,
        r#""\ud83f\udfff""#,
        "{\"\u{FFFF}\":1}",
        "\u{FEFF}{}",
    ] {
        assert!(malformed(text.as_bytes()), "{text}");
        assert!(matches!(from_slice::<Value>(text.as_bytes()), Err(JsonError::Malformed(_))), "{text}");
    }
    assert!(malformed(b"\"\xff\""));
    assert!(malformed(b"\"\xed\xa0\x80\""));
}

#[test]
fn what_is_no_json_is_refused() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "[1,]",
        "[,1]",
        "{,}",
        "[1 2]",
        "{\"a\" 1}",
        "{a:1}",
        "[1}",
        "{\"a\":1]",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "Infinity",
        "tru",
        "nul",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\u{0}\"",
        "1 2",
        "{}{}",
        "]",
        "}",
        ",",
        ":",
        "{} x",
        "\u{a0}1",
        "'a'",
        "[1]]",
        "-01",
        "1.e1",
        "\"\\",
    ] {
        assert!(malformed(text.as_bytes()), "{text:?}");
    }
}

#[test]
fn the_limits_themselves_are_accepted() {
    for (text, value) in [
        ("9007199254740991", json!(9_007_199_254_740_991_u64)),
        ("-9007199254740991", json!(-9_007_199_254_740_991_i64)),
        ("\"\u{FFFD}\u{FDCF}\u{FDF0}\u{10FFFD}\"", json!("\u{FFFD}\u{FDCF}\u{FDF0}\u{10FFFD}")),
        (r#""\ud83d\ude00\u0000\/""#, json!("😀\0/")),
        (" \t\r\n{ \"a\" : [ ] , \"A\" : { } } ", json!({"a": [], "A": {}})),
        ("1e30", json!(1e30)),
        ("null", json!(null)),
    ] {
        assert_eq!(parse(text.as_bytes()).unwrap(), value, "{text}");
    }
}

#[test]
fn an_integral_number_is_an_integer_however_written() {
    let value = parse(br#"{"a":32.0,"b":3.2e1,"c":-0.0,"d":-0,"e":[9007199254740991.0],"f":0.5}"#).unwrap();
    assert_eq!(value, json!({"a": 32, "b": 32, "c": 0, "d": 0, "e": [9_007_199_254_740_991_u64], "f": 0.5}));
    assert_eq!(from_slice::<Vec<u32>>(b"[1.0, 2e0, -0]").unwrap(), [1, 2, 0]);
    assert!(from_slice::<Vec<u32>>(b"[1.5]").is_err());
}

#[test]
fn depth_is_counted_and_cheap_to_refuse() {
    let nested = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
    assert!(parse(&nested(32)).is_ok());
    assert!(malformed(&nested(33)));
    assert!(malformed(&vec![b'['; 10_000]));
    assert!(malformed("{\"a\":".repeat(100_000).as_bytes()));
}

#[test]
fn a_lone_surrogate_is_told_apart_unless_more_is_wrong() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#""\ud800x""#,
        r#"{"\udfff":1}"#,
        r#""\ud800\u0041""#,
    ] {
        assert_eq!(parse(text.as_bytes()), Err(JsonError::LoneSurrogate), "{text}");
    }
    assert!(malformed(br#"["\ud800""#));
    assert!(malformed(br#"{"\ud800":1,"\ud800":2}"#));
}

#[test]
fn many_members_are_checked_in_linear_time() {
    let mut text: String = "{".to_owned();
    for i in 0..200_000 {
        text.push_str(&format!("\"n{i}\":0,"));
    }
    assert!(malformed(format!("{text}\"n5\":0}}").as_bytes()));
    assert!(parse(format!("{text}\"m\":0}}").as_bytes()).is_ok());
}

#[test]
fn a_bad_identifier_is_told_apart() {
    #[derive(Debug, serde::Deserialize)]
    struct Body {
        #[allow(dead_code, reason = "only its refusal matters")]
        block_key: crate::id::BlockKey,
    }
    let bad = format!("{{\"block_key\":\"{}\"}}", "AB".repeat(32));
    assert!(matches!(from_slice::<Body>(bad.as_bytes()), Err(JsonError::BadIdentifier(_))));
    assert!(matches!(from_value::<Body>(json!({"block_key": "x"})), Err(JsonError::BadIdentifier(_))));
    assert!(matches!(from_slice::<Body>(br#"{"block_key":7}"#), Err(JsonError::Malformed(_))));
    assert!(matches!(from_slice::<Body>(b"{}"), Err(JsonError::Malformed(_))));
}

#[test]
fn an_error_never_repeats_a_value() {
    let error = from_slice::<Vec<u32>>(br#"["secret, expected secret"]"#).unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    let error = from_slice::<Vec<u8>>(b"[7777]").unwrap_err();
    assert!(!error.to_string().contains("7777"), "{error}");
}

#[test]
fn jcs_numbers_survive_the_way_through() {
    let value =
        parse(b"[1e21,0.1,5e-324,-0.0,1e20,333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001]")
            .unwrap();
    assert_eq!(
        serde_json_canonicalizer::to_string(&value).unwrap(),
        "[1e+21,0.1,5e-324,0,100000000000000000000,333333333.3333333,1e+30,4.5,0.002,1e-27]"
    );
}

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1e9_f64..1e9).prop_map(Value::from),
        "[a-z\\\\\"/é€\n\u{1}]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Zé\"\\\\]{0,3}", inner, 0..20)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn every_valid_text_reads_as_serde_json_reads_it(value in arbitrary_json(), pretty: bool) {
        let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
        let mut expected: Value = serde_json::from_slice(&text).unwrap();
        normalise(&mut expected);
        prop_assert_eq!(parse(&text).unwrap(), expected);
    }

    #[test]
    fn the_scan_never_accepts_what_serde_json_refuses(
        value in arbitrary_json(), at: prop::sample::Index, octet: u8, cut: bool
    ) {
        let mut text = serde_json::to_vec(&value).unwrap();
        let at = at.index(text.len());
        if cut { text.truncate(at) } else { text[at] = octet }
        if scan::scan(&text).is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&text).is_ok());
        }
    }

    #[test]
    fn random_octets_never_panic(text in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = parse(&text);
    }
}

#[test]
fn a_struct_is_no_array_and_a_variant_no_object() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Inner {
        a: u8,
        #[serde(default)]
        b: Option<Side>,
    }
    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Side {
        Left,
    }
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Outer {
        list: Vec<Inner>,
        pair: (u8, u8),
        #[serde(flatten)]
        rest: serde_json::Map<String, Value>,
    }
    let read = |text: &str| from_slice::<Outer>(text.as_bytes());
    let good =
        read(r#"{"list": [{"a": 1, "b": "left"}, {"a": 2}], "pair": [1, 2], "x": [{"y": 1}]}"#).unwrap();
    assert_eq!(good.list[0], Inner { a: 1, b: Some(Side::Left) });
    assert_eq!(good.rest["x"], json!([{"y": 1}]));
    for text in [
        r#"{"list": [[1, "left"]], "pair": [1, 2]}"#,
        r#"{"list": [[1]], "pair": [1, 2]}"#,
        r#"{"list": [{"a": 1, "b": {"left": null}}], "pair": [1, 2]}"#,
        r#"[[{"a": 1}], [1, 2]]"#,
    ] {
        assert!(matches!(read(text), Err(JsonError::Malformed(_))), "{text}");
        // The same by way of a value.
        let value = parse(text.as_bytes()).unwrap();
        assert!(matches!(from_value::<Outer>(value), Err(JsonError::Malformed(_))), "{text}");
    }
    assert!(matches!(from_slice::<Inner>(b"[1]"), Err(JsonError::Malformed(_))));
}
