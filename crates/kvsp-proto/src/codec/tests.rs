use proptest::prelude::*;

use super::*;

fn split(raw: &[u8]) -> Vec<u8> {
    split_zstd::Encoder::new().unwrap().encode(raw).unwrap()
}

fn frame(high: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(high, 1).unwrap()
}

/// A section of method 1 from its two planes.
fn section(frame: &[u8], low: &[u8]) -> Bytes {
    [&[1], (frame.len() as u32).to_be_bytes().as_slice(), frame, low].concat().into()
}

fn decode(section: &Bytes) -> Result<Bytes, CodecError> {
    let decoded = decode_section(Codec::SPLIT_ZSTD, section);
    // Measuring must refuse whatever decoding refuses, but for a frame that is corrupt inside.
    match (&decoded, decoded_octets(Codec::SPLIT_ZSTD, section)) {
        (Ok(raw), measured) => assert_eq!(measured, Ok(Some(raw.len() as u64))),
        (Err(CodecError::Corrupt), measured) => assert!(measured.is_ok()),
        (Err(error), measured) => assert_eq!(measured, Err(*error)),
    }
    decoded
}

#[test]
fn planes_are_those_of_the_profile() {
    // 0x3F80 (1.0) rotated left by one bit is 0x7F00; 0xC049 (about -3.14) is 0x8093.
    let raw = [0x80, 0x3F, 0x49, 0xC0];
    assert_eq!(decode(&section(&frame(&[0x7F, 0x80]), &[0x00, 0x93])).unwrap(), raw.as_slice());
}

#[test]
fn only_a_smaller_section_is_split() {
    assert_eq!(split(b""), [0]);
    assert_eq!(split(&[1, 2]), [0, 1, 2]);
    let alike = [0x12, 0x3F].repeat(500);
    let small = split(&alike);
    assert_eq!(small[0], 1);
    assert!(small.len() < 1 + 500 + 40);
    let noise: Vec<u8> = (0..64_u32).flat_map(|i| i.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    assert_eq!(split(&noise)[0], 0);
    assert_eq!(split_zstd::Encoder::new().unwrap().encode(&[1, 2, 3]), Err(CodecError::Odd));
}

#[test]
fn a_stored_section_is_what_follows_the_method() {
    assert_eq!(decode(&Bytes::from_static(&[0])).unwrap(), Bytes::new());
    assert_eq!(decode(&Bytes::from_static(&[0, 1, 2])).unwrap(), [1, 2].as_slice());
    assert_eq!(decode(&Bytes::from_static(&[0, 1])), Err(CodecError::Odd));
}

#[test]
fn everything_else_is_refused() {
    let good = frame(&[7; 100]);
    let low = [3; 100];
    let two_frames = [frame(&[7; 50]), frame(&[7; 50])].concat();
    let skippable = [0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0];
    let unsized_frame = {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_contentsize(false).unwrap();
        std::io::copy(&mut [7_u8; 100].as_slice(), &mut encoder).unwrap();
        encoder.finish().unwrap()
    };
    let mut corrupt = frame(&(0..=255).cycle().take(100).collect::<Vec<u8>>());
    let last = corrupt.len() - 1;
    assert!(decode(&section(&good, &low)).is_ok());
    for (why, bytes, error) in [
        ("empty", Bytes::new(), CodecError::Truncated),
        ("no length", Bytes::from_static(&[1, 0, 0, 0]), CodecError::Truncated),
        ("length beyond the end", Bytes::from_static(&[1, 0xFF, 0xFF, 0xFF, 0xFF, 0]), CodecError::Truncated),
        ("method 2", Bytes::from_static(&[2, 0, 0]), CodecError::Method(2)),
        ("no frame", section(&[], &[]), CodecError::NotAFrame),
        ("noise for a frame", section(&[1; 20], &low), CodecError::NotAFrame),
        ("low plane short", section(&good, &low[1..]), CodecError::Planes),
        ("low plane long", section(&good, &[3; 101]), CodecError::Planes),
        ("two frames", section(&two_frames, &low), CodecError::Planes),
        ("an empty second frame", section(&[good.clone(), frame(&[])].concat(), &low), CodecError::NotAFrame),
        ("trailing octet", section(&[good.as_slice(), &[0]].concat(), &low), CodecError::NotAFrame),
        ("skippable before", section(&[skippable.as_slice(), &good].concat(), &low), CodecError::NotAFrame),
        ("skippable after", section(&[good.as_slice(), &skippable].concat(), &low), CodecError::NotAFrame),
        ("skippable alone", section(&skippable, &[]), CodecError::NotAFrame),
        ("cut frame", section(&good[..good.len() - 1], &low), CodecError::NotAFrame),
        ("no content size", section(&unsized_frame, &low), CodecError::NotAFrame),
    ] {
        assert_eq!(decode(&bytes), Err(error), "{why}");
    }
    // A block header that claims a compressed block where a raw one lies.
    corrupt[6] ^= 0x04;
    corrupt.truncate(last + 1);
    assert!(decode(&section(&corrupt, &low)).is_err());
}

#[test]
fn a_bomb_is_refused_by_its_stated_size() {
    let bomb = frame(&vec![0; 64 << 20]);
    assert!(bomb.len() < 10_000);
    assert_eq!(decode(&section(&bomb, &[0; 100])), Err(CodecError::Planes));
}

#[test]
fn opaque_codecs_are_not_transcoded() {
    let private = Codec::new(0xFF01).unwrap();
    let unknown = Codec::new(77).unwrap();
    let of = |codec| Container::build(codec, 0, 1, &[(b"kk", b"vv")]).unwrap();
    assert_eq!(transcode(&of(private), Codec::RAW, 2), Err(CodecError::Opaque(private)));
    assert_eq!(transcode(&of(Codec::RAW), unknown, 2), Err(CodecError::Opaque(unknown)));
    assert_eq!(transcode(&of(private), private, 1), Ok(of(private)));
    assert_eq!(transcode(&of(Codec::RAW), Codec::SPLIT_ZSTD, 4), Err(CodecError::ElementType(4)));
    assert_eq!(decode_section(private, &Bytes::new()), Err(CodecError::Opaque(private)));
    let odd = Container::build(Codec::RAW, 0, 1, &[(b"k", b"v")]).unwrap();
    assert_eq!(transcode(&odd, Codec::SPLIT_ZSTD, 2), Err(CodecError::Odd));
}

proptest! {
    #[test]
    fn transcoding_there_and_back_changes_nothing(
        sections in prop::collection::vec((elements(), elements()), 1..4), first in 0_u32..9
    ) {
        let raw = Container::build(Codec::RAW, first, 3, &sections).unwrap();
        let split = transcode(&raw, Codec::SPLIT_ZSTD, 2).unwrap();
        prop_assert_eq!(split.codec(), Codec::SPLIT_ZSTD);
        for (coded, plain) in split.header().lengths().iter().zip(raw.header().lengths()) {
            prop_assert!(coded.0 <= plain.0 + 1 && coded.1 <= plain.1 + 1);
        }
        prop_assert_eq!(transcode(&split, Codec::RAW, 2).unwrap(), raw);
    }

    #[test]
    fn mutated_sections_never_panic(raw in elements(), at: prop::sample::Index, octet: u8, cut: bool) {
        let mut octets = split(&raw);
        let at = at.index(octets.len());
        if cut { octets.truncate(at) } else { octets[at] = octet }
        let _ = decode(&octets.into());
    }
}

/// Sections of two-octet elements: some alike, some noise.
fn elements() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u16>(), 0..200);
    let alike = prop::collection::vec((0x3F00..0x3FFF_u16, any::<bool>()), 0..400)
        .prop_map(|items| items.into_iter().map(|(bits, sign)| bits | u16::from(sign) << 15).collect());
    prop_oneof![noise, alike]
        .prop_map(|items: Vec<u16>| items.into_iter().flat_map(u16::to_le_bytes).collect())
}
