use bytes::Buf as _;
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { max_octets: 1 << 20, max_layers: 64 };

fn sample() -> Container {
    let sections: Vec<(Vec<u8>, Vec<u8>)> = (0..3).map(|i| (vec![i; 5], vec![0x80 | i; 3])).collect();
    Container::build(Codec::RAW, 4, 2, &sections).unwrap()
}

/// The sample with `octets` written over it at `at`.
fn patched(at: usize, octets: &[u8]) -> Bytes {
    let mut all = sample().bytes().to_vec();
    all[at..at + octets.len()].copy_from_slice(octets);
    all.into()
}

fn malformed(octets: Bytes) -> Malformed {
    match Container::parse(octets, &LIMITS) {
        Err(ContainerError::Malformed(malformed)) => malformed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_field_is_where_the_draft_has_it() {
    let container = sample();
    let mut octets = container.bytes().clone();
    assert_eq!(octets.split_to(4), "KVB1");
    assert_eq!((octets.get_u8(), octets.get_u8(), octets.get_u16()), (1, 0, 1));
    assert_eq!((octets.get_u32(), octets.get_u32(), octets.get_u32()), (4, 3, 2));
    for _ in 0..3 {
        assert_eq!((octets.get_u64(), octets.get_u64()), (5, 3));
    }
    assert_eq!(octets.len(), 24);
    assert_eq!(container.size(), 20 + 3 * 16 + 24);
}

#[test]
fn sections_are_slices_of_the_container() {
    let container = sample();
    let layer = container.layer(5).unwrap();
    assert_eq!((layer.k.as_ref(), layer.v.as_ref()), ([1; 5].as_slice(), [0x81; 3].as_slice()));
    let within = container.bytes().as_ptr_range();
    assert!(within.contains(&layer.k.as_ptr()) && within.contains(&layer.v.as_ptr()));
    assert_eq!(container.layer_octets(5).unwrap(), [[1; 5].as_slice(), &[0x81; 3]].concat());
    assert_eq!(layer.digest(), container.layer_digests()[1]);
    assert!(
        container.layer(3).is_none() && container.layer(7).is_none() && container.layer_octets(7).is_none()
    );
}

#[test]
fn each_breach_is_named() {
    for (at, octets, error) in [
        (0, b"KVB0".as_slice(), Malformed::Magic),
        (0, b"1BVK", Malformed::Magic),
        (4, &[0], Malformed::Version(0)),
        (4, &[2], Malformed::Version(2)),
        (5, &[0x80], Malformed::Flags(0x80)),
        (12, &[0, 0, 0, 0], Malformed::NoLayers),
        (16, &[0, 0, 0, 0], Malformed::NoTokens),
        (8, &[0xFF; 4], Malformed::LayerOverflow),
        (12, &[0, 0xFF, 0xFF, 0xFF], Malformed::Missing),
        (12, &[0, 0, 0, 4], Malformed::Missing),
        (12, &[0, 0, 0, 2], Malformed::Trailing),
        (20, &[0xFF; 16], Malformed::LengthOverflow),
        (27, &[6], Malformed::Missing),
        (27, &[4], Malformed::Trailing),
        (20, &[0x80], Malformed::Missing),
    ] {
        assert_eq!(malformed(patched(at, octets)), error, "{at} {octets:?}");
    }
    let whole = sample().bytes().clone();
    for cut in 0..whole.len() {
        assert_eq!(malformed(whole.slice(..cut)), Malformed::Missing);
    }
    assert_eq!(malformed([whole.as_ref(), &[0]].concat().into()), Malformed::Trailing);
}

#[test]
fn an_invalid_codec_is_told_apart_and_comes_last() {
    for number in [0, 0xFFFF_u16] {
        let octets = patched(6, &number.to_be_bytes());
        assert_eq!(Container::parse(octets.clone(), &LIMITS), Err(ContainerError::Codec(number)));
        assert_eq!(malformed(octets.slice(..octets.len() - 1)), Malformed::Missing);
    }
    for number in [2, 3, 0x1234, 0xFF00, 0xFFFE_u16] {
        let container = Container::parse(patched(6, &number.to_be_bytes()), &LIMITS).unwrap();
        assert_eq!(container.codec().number(), number);
    }
}

#[test]
fn limits_hold_at_their_edge() {
    let container = sample();
    let parse = |max_octets, max_layers| {
        Container::parse(container.bytes().clone(), &Limits { max_octets, max_layers })
    };
    assert!(parse(container.size(), 3).is_ok());
    assert_eq!(parse(container.size() - 1, 3), Err(ContainerError::TooLarge { max: container.size() - 1 }));
    assert_eq!(parse(container.size(), 2), Err(ContainerError::TooManyLayers { max: 2 }));
}

#[test]
fn what_cannot_be_a_container_is_not_encoded() {
    let none: [(&[u8], &[u8]); 0] = [];
    let one = [(b"k", b"v")];
    assert_eq!(encode(Codec::RAW, 0, 1, &none), Err(Malformed::NoLayers));
    assert_eq!(encode(Codec::RAW, 0, 0, &one), Err(Malformed::NoTokens));
    assert_eq!(encode(Codec::RAW, u32::MAX, 1, &[one[0], one[0]]), Err(Malformed::LayerOverflow));
    assert!(encode(Codec::RAW, u32::MAX, 1, &one).is_ok());
    assert_eq!(Header::new(Codec::RAW, 0, 1, vec![(u64::MAX, 1)]), Err(Malformed::LengthOverflow));
}

fn stream(
    parser: &mut StreamParser,
    octets: &Bytes,
    chunk: usize,
) -> Result<Vec<StreamEvent>, ContainerError> {
    let mut events = Vec::new();
    for piece in octets.chunks(chunk.max(1)) {
        parser.push(Bytes::copy_from_slice(piece));
        while let Some(event) = parser.next_event()? {
            events.push(event);
        }
    }
    parser.finish().map(|()| events)
}

/// The events that a whole container must give.
fn expected(container: &Container) -> Vec<StreamEvent> {
    let mut events = vec![StreamEvent::Header(container.header().clone())];
    for layer in container.layers().layers() {
        events.push(StreamEvent::Layer { layer, sections: container.layer(layer).unwrap() });
    }
    events.push(StreamEvent::End);
    events
}

#[test]
fn a_stream_gives_each_layer_as_soon_as_it_is_there() {
    let container = sample();
    let mut parser = StreamParser::single(LIMITS);
    let mut seen = Vec::new();
    for (at, octet) in container.bytes().iter().enumerate() {
        parser.push(Bytes::copy_from_slice(&[*octet]));
        while let Some(event) = parser.next_event().unwrap() {
            seen.push((at + 1, matches!(event, StreamEvent::Layer { .. })));
        }
        assert!(parser.finish().is_err() || at + 1 == container.bytes().len());
    }
    assert_eq!(seen, [(68, false), (76, true), (84, true), (92, true), (92, false)]);
}

#[test]
fn a_sequence_may_be_empty_but_not_broken_off() {
    let one = sample();
    let both: Bytes = [one.bytes().as_ref(), one.bytes()].concat().into();
    let events = stream(&mut StreamParser::sequence(LIMITS), &both, 7).unwrap();
    assert_eq!(events, [expected(&one), expected(&one)].concat());
    assert_eq!(stream(&mut StreamParser::sequence(LIMITS), &Bytes::new(), 1), Ok(vec![]));
    let broken = both.slice(..both.len() - 1);
    assert_eq!(stream(&mut StreamParser::sequence(LIMITS), &broken, 7), Err(Malformed::Missing.into()));
    assert_eq!(stream(&mut StreamParser::single(LIMITS), &both, 7), Err(Malformed::Trailing.into()));
}

#[test]
fn a_stream_refuses_a_count_or_length_before_its_octets_come() {
    let mut parser = StreamParser::single(LIMITS);
    parser.push(patched(12, &[0, 0, 0xFF, 0xFF]).slice(..20));
    assert_eq!(parser.next_event(), Err(ContainerError::TooManyLayers { max: 64 }));
    assert_eq!(parser.next_event(), Err(ContainerError::TooManyLayers { max: 64 }));
    let mut parser = StreamParser::single(LIMITS);
    parser.push(patched(22, &[1]).slice(..68));
    assert_eq!(parser.next_event(), Err(ContainerError::TooLarge { max: 1 << 20 }));
    assert_eq!(parser.finish(), Err(ContainerError::TooLarge { max: 1 << 20 }));
}

/// The digests of octets that arrive in pieces of `chunk`.
fn hashed(octets: &[u8], chunk: usize) -> Result<(ReprDigest, Vec<Digest>), ContainerError> {
    let mut hasher = ContainerHasher::new(LIMITS);
    for piece in octets.chunks(chunk.max(1)) {
        hasher.update(piece)?;
    }
    hasher.finish()
}

#[test]
fn a_layers_digest_is_there_with_its_last_octet() {
    let container = sample();
    let mut hasher = ContainerHasher::new(LIMITS);
    let mut seen = Vec::new();
    for octet in container.bytes() {
        hasher.update(&[*octet]).unwrap();
        seen.push((hasher.header().is_some(), hasher.layer_digests().len()));
    }
    // Header and table have 68 octets, each layer 8.
    let want: Vec<_> = (1..=92_usize).map(|at| (at >= 68, at.saturating_sub(68) / 8)).collect();
    assert_eq!(seen, want);
    assert_eq!(hasher.layer_digests(), container.layer_digests());
    let mut trailing = hasher.clone();
    assert_eq!(hasher.finish().unwrap(), (container.repr_digest(), container.layer_digests()));
    for _ in 0..2 {
        assert_eq!(trailing.update(&[0]), Err(Malformed::Trailing.into()));
    }
    assert_eq!(trailing.finish(), Err(Malformed::Trailing.into()));
}

#[test]
fn empty_layers_have_digests() {
    let none: &[u8] = &[];
    for sections in [vec![(none, none); 3], vec![(none, none), (b"k", b"v"), (none, none)]] {
        let container = Container::build(Codec::RAW, 0, 1, &sections).unwrap();
        let want = (container.repr_digest(), container.layer_digests());
        assert_eq!(container.digests(), want);
        assert_eq!(hashed(container.bytes(), 1), Ok(want));
    }
}

#[test]
fn a_hasher_refuses_a_count_or_length_before_its_octets_come() {
    let mut hasher = ContainerHasher::new(LIMITS);
    assert_eq!(
        hasher.update(&patched(12, &[0, 0, 0xFF, 0xFF])[..20]),
        Err(ContainerError::TooManyLayers { max: 64 })
    );
    let mut hasher = ContainerHasher::new(LIMITS);
    assert_eq!(hasher.update(&patched(22, &[1])[..68]), Err(ContainerError::TooLarge { max: 1 << 20 }));
}

fn containers() -> impl Strategy<Value = Container> {
    let section = || prop::collection::vec(any::<u8>(), 0..40);
    let codec = any::<u16>().prop_filter_map("valid", Codec::new);
    let first = prop_oneof![Just(0), any::<u32>().prop_map(|first| first.min(u32::MAX - 8))];
    (codec, first, 1..=u32::MAX, prop::collection::vec((section(), section()), 1..6)).prop_map(
        |(codec, first, tokens, sections)| Container::build(codec, first, tokens, &sections).unwrap(),
    )
}

proptest! {
    #[test]
    fn a_container_survives_the_wire(container in containers()) {
        let parsed = Container::parse(container.bytes().clone(), &LIMITS).unwrap();
        prop_assert_eq!(&parsed, &container);
        prop_assert_eq!(parsed.header().encode(), &container.bytes()[..parsed.header().octets()]);
    }

    #[test]
    fn a_slice_is_what_encoding_those_layers_gives(container in containers(), a: prop::sample::Index, b: prop::sample::Index) {
        let layers: Vec<u32> = container.layers().layers().collect();
        let (a, b) = (a.index(layers.len()), b.index(layers.len()));
        let range = LayerRange::new(layers[a.min(b)], layers[a.max(b)]).unwrap();
        let sections: Vec<_> = range.layers().map(|l| container.layer(l).unwrap()).map(|s| (s.k, s.v)).collect();
        let encoded = Container::build(container.codec(), range.first(), container.token_count(), &sections).unwrap();
        let slice = container.slice(range).unwrap();
        prop_assert_eq!(slice.size(), encoded.size());
        prop_assert_eq!(slice.repr_digest(), encoded.repr_digest());
        prop_assert_eq!(slice.join(), encoded);
        if let Some(next) = container.layers().last().checked_add(1) {
            prop_assert!(container.slice(LayerRange::new(range.first(), next).unwrap()).is_none());
        }
    }

    #[test]
    fn a_stream_agrees_with_a_parse_however_it_is_cut(
        container in containers(), chunk in 1_usize..200, at: prop::sample::Index, octet: u8, mutate: bool
    ) {
        let mut octets = container.bytes().to_vec();
        if mutate {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        let octets = Bytes::from(octets);
        let whole = Container::parse(octets.clone(), &LIMITS);
        let streamed = stream(&mut StreamParser::single(LIMITS), &octets, chunk);
        let digests = hashed(&octets, chunk);
        match whole {
            Ok(container) => {
                prop_assert_eq!(streamed.unwrap(), expected(&container));
                let want = (container.repr_digest(), container.layer_digests());
                prop_assert_eq!(container.digests(), want.clone());
                prop_assert_eq!(digests, Ok(want));
            }
            Err(_) => {
                prop_assert!(streamed.is_err());
                prop_assert!(digests.is_err());
            }
        }
    }

    #[test]
    fn random_octets_never_panic(tail in prop::collection::vec(any::<u8>(), 0..80), magic: bool) {
        let octets: Bytes = if magic { [b"KVB1\x01\0", tail.as_slice()].concat() } else { tail }.into();
        let whole = Container::parse(octets.clone(), &LIMITS);
        prop_assert_eq!(whole.is_ok(), stream(&mut StreamParser::single(LIMITS), &octets, 3).is_ok());
    }
}

mod geometry {
    use serde_json::json;

    use super::*;
    use crate::codec::{CodecError, transcode};
    use crate::descriptor::Descriptor;

    fn descriptor(members: &[(&str, serde_json::Value)]) -> Descriptor {
        let digest = format!("sha-256:{}", "11".repeat(32));
        let mut value = json!({
            "model": "m", "model_digest": digest, "tokenizer_digest": digest,
            "layers": 3, "kv_heads": 2, "head_dim": 4, "kv_dtype": "bfloat16",
            "positional": "rope", "block_tokens": 16, "layout": "kvsp-layout-1"
        });
        for (member, new) in members {
            value[member] = new.clone();
        }
        Descriptor::from_value(value).unwrap()
    }

    fn block(first_layer: u32, layers: usize, tokens: u32, k: usize, v: usize) -> Container {
        Container::build(Codec::RAW, first_layer, tokens, &vec![(vec![0; k], vec![0; v]); layers]).unwrap()
    }

    #[test]
    fn a_raw_container_fits_to_the_octet() {
        let plain = descriptor(&[]);
        assert_eq!(block(0, 3, 16, 256, 256).check_geometry(&plain), Ok(()));
        assert_eq!(block(0, 3, 16, 256, 256).size(), plain.block_octets().unwrap());
        assert_eq!(block(2, 1, 16, 256, 256).check_geometry(&plain), Ok(()));
        assert_eq!(
            block(0, 3, 8, 256, 256).check_geometry(&plain),
            Err(GeometryError::Tokens { expected: 16, got: 8 })
        );
        assert_eq!(
            block(1, 3, 16, 256, 256).check_geometry(&plain),
            Err(GeometryError::Layers { layers: 3, last: 3 })
        );
        for (k, v, got) in [(255, 256, 255), (256, 258, 258), (256, 0, 0), (254, 258, 254)] {
            assert_eq!(
                block(1, 2, 16, k, v).check_geometry(&plain),
                Err(GeometryError::Section { layer: 1, expected: 256, got })
            );
        }
    }

    #[test]
    fn mla_has_no_v() {
        let mla = descriptor(&[("layout", json!("kvsp-mla-1")), ("kv_heads", json!(1))]);
        assert_eq!(block(0, 3, 16, 128, 0).check_geometry(&mla), Ok(()));
        assert!(matches!(block(0, 3, 16, 128, 128).check_geometry(&mla), Err(GeometryError::Section { .. })));
        let split = transcode(&block(0, 3, 16, 128, 0), Codec::SPLIT_ZSTD, 2).unwrap();
        assert_eq!(split.check_geometry(&mla), Ok(()));
    }

    #[test]
    fn split_zstd_is_measured_and_needs_two_octets() {
        let plain = descriptor(&[]);
        let split = transcode(&block(0, 3, 16, 256, 256), Codec::SPLIT_ZSTD, 2).unwrap();
        assert_eq!(split.check_geometry(&plain), Ok(()));
        let wide = descriptor(&[("kv_dtype", json!("float32")), ("head_dim", json!(2))]);
        assert_eq!(
            split.check_geometry(&wide),
            Err(GeometryError::ElementType { codec: Codec::SPLIT_ZSTD, octets: 4 })
        );
        let short = transcode(&block(0, 3, 16, 256, 254), Codec::SPLIT_ZSTD, 2).unwrap();
        assert_eq!(
            short.check_geometry(&plain),
            Err(GeometryError::Section { layer: 0, expected: 256, got: 254 })
        );
        let broken = Container::build(Codec::SPLIT_ZSTD, 0, 16, &[([9_u8; 4], [0_u8; 1])]).unwrap();
        assert_eq!(
            broken.check_geometry(&plain),
            Err(GeometryError::Codec { layer: 0, source: CodecError::Method(9) })
        );
    }

    #[test]
    fn private_sections_are_opaque() {
        let private = Container::build(Codec::new(0xFF00).unwrap(), 0, 16, &[(b"k", b"v")]).unwrap();
        assert_eq!(private.check_geometry(&descriptor(&[])), Ok(()));
    }
}
