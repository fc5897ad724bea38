//! Every vector of the project, and of the shared set where it is there.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use kvsp_proto::block_key::{BlockKeyChain, ScopeKey, block_keys};
use kvsp_proto::codec;
use kvsp_proto::container::{Container, ContainerError, LayerRange, Limits, StreamParser};
use kvsp_proto::descriptor::{Descriptor, DescriptorError};
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::json::{self, JsonError};
use kvsp_proto::positional::Positional;
use kvsp_proto::registry::Codec;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
}

/// The shared vectors lie beside the checkout and may be absent.
fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("no {}: only the project's own vectors are checked", folder.display());
    None
}

fn read<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let vectors: Vec<T> = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(!vectors.is_empty(), "{}", path.display());
    vectors
}

fn all<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let mut vectors = read(&own().join(name));
    vectors.extend(shared().into_iter().flat_map(|folder| read(&folder.join(name))));
    vectors
}

fn unhex(text: &str) -> Vec<u8> {
    hex::decode(text).unwrap()
}

#[test]
fn compat_ids() {
    #[derive(Deserialize)]
    struct Vector {
        descriptor: Value,
        jcs_hex: String,
        compat_id: String,
    }
    for vector in all::<Vector>("compat_id.json") {
        let descriptor = Descriptor::from_json(&serde_json::to_vec(&vector.descriptor).unwrap()).unwrap();
        assert_eq!(
            String::from_utf8(descriptor.jcs()).unwrap(),
            String::from_utf8(unhex(&vector.jcs_hex)).unwrap()
        );
        assert_eq!(descriptor.compat_id().to_string(), vector.compat_id);
    }
}

#[test]
fn compat_ids_of_other_spellings() {
    #[derive(Deserialize)]
    struct Vector {
        text: String,
        compat_id: String,
    }
    for vector in read::<Vector>(&own().join("compat_id_spellings.json")) {
        let descriptor = Descriptor::from_json(vector.text.as_bytes()).unwrap();
        assert_eq!(descriptor.compat_id().to_string(), vector.compat_id, "{}", vector.text);
        assert_eq!((descriptor.layers, descriptor.block_tokens), (30, 64), "{}", vector.text);
    }
}

#[test]
fn refused_descriptors() {
    #[derive(Deserialize)]
    struct Vector {
        text: String,
        problem: String,
    }
    for vector in read::<Vector>(&own().join("descriptor_refused.json")) {
        let problem = match Descriptor::from_json(vector.text.as_bytes()) {
            Err(DescriptorError::Json(_)) => "kvsp-malformed-json",
            Err(DescriptorError::Invalid { .. }) => "kvsp-descriptor-invalid",
            Ok(_) => "none",
        };
        assert_eq!(problem, vector.problem, "{}", vector.text);
    }
}

#[test]
fn positional_encodings() {
    #[derive(Deserialize)]
    struct Vector {
        positional: String,
        valid: bool,
    }
    for vector in read::<Vector>(&own().join("positional.json")) {
        let parsed = vector.positional.parse::<Positional>();
        assert_eq!(parsed.is_ok(), vector.valid, "{}", vector.positional);
        assert!(parsed.is_err() || parsed.unwrap().to_string() == vector.positional);
    }
}

#[test]
fn scope_ids() {
    #[derive(Deserialize)]
    struct Vector {
        scope_key_hex: String,
        scope_id: String,
    }
    for vector in all::<Vector>("scope_id.json") {
        let key = ScopeKey::new(unhex(&vector.scope_key_hex)).unwrap();
        assert_eq!(key.scope_id().to_string(), vector.scope_id);
    }
}

#[test]
fn block_key_chains() {
    #[derive(Deserialize)]
    struct Vector {
        scope_key_hex: String,
        compat_id: String,
        block_tokens: u32,
        tokens: Vec<u32>,
        block_keys: Vec<String>,
    }
    for vector in all::<Vector>("block_keys.json") {
        let key = ScopeKey::new(unhex(&vector.scope_key_hex)).unwrap();
        let compat_id = vector.compat_id.parse().unwrap();
        let expected: Vec<_> = vector.block_keys.iter().map(|key| key.parse().unwrap()).collect();
        assert_eq!(block_keys(&key, compat_id, vector.block_tokens, &vector.tokens), expected);
        let mut chain = BlockKeyChain::new(&key, compat_id, vector.block_tokens);
        let pushed: Vec<_> = vector.tokens.iter().filter_map(|&token| chain.push(token)).collect();
        assert_eq!(pushed, expected);
        assert_eq!(chain.last(), expected.last().copied());
    }
}

#[derive(Deserialize)]
struct SliceVector {
    layers: (u32, u32),
    container_hex: String,
    repr_digest: String,
}

#[derive(Deserialize)]
struct ContainerVector {
    first_layer: u32,
    layer_count: u64,
    token_count: u32,
    codec: Option<u16>,
    container_hex: String,
    layer_digests: Vec<String>,
    digest: String,
    repr_digest: String,
    slice: SliceVector,
    raw_container_hex: Option<String>,
}

#[test]
fn containers() {
    for vector in all::<ContainerVector>("container.json") {
        let octets = Bytes::from(unhex(&vector.container_hex));
        let container = Container::parse(octets.clone(), &Limits::default()).unwrap();
        assert_eq!(container.layers().first(), vector.first_layer);
        assert_eq!(container.layers().count(), vector.layer_count);
        assert_eq!(container.token_count(), vector.token_count);
        assert_eq!(container.codec().number(), vector.codec.unwrap_or(1));
        let digests: Vec<_> = container.layer_digests().iter().map(ToString::to_string).collect();
        assert_eq!(digests, vector.layer_digests);
        assert_eq!(container.digest().to_string(), vector.digest);
        assert_eq!(container.repr_digest().to_string(), vector.repr_digest);
        assert_eq!(ReprDigest::parse(&vector.repr_digest), Ok(Some(container.repr_digest())));

        let range = LayerRange::new(vector.slice.layers.0, vector.slice.layers.1).unwrap();
        let slice = container.slice(range).unwrap();
        assert_eq!(slice.repr_digest().to_string(), vector.slice.repr_digest);
        assert_eq!(slice.join().bytes(), &unhex(&vector.slice.container_hex));

        let sections: Vec<_> =
            container.layers().layers().map(|l| container.layer(l).unwrap()).map(|l| (l.k, l.v)).collect();
        let built =
            Container::build(container.codec(), vector.first_layer, vector.token_count, &sections).unwrap();
        assert_eq!(built.bytes(), &octets);

        if let Some(raw) = vector.raw_container_hex {
            assert_eq!(codec::transcode(&container, Codec::RAW, 2).unwrap().bytes(), &unhex(&raw));
        }
    }
}

#[derive(Deserialize)]
struct RefusedVector {
    why: String,
    hex: String,
}

fn parse_and_stream(hex: &str) -> [Result<(), ContainerError>; 2] {
    let octets = Bytes::from(unhex(hex));
    let limits = Limits { max_octets: u64::MAX, max_layers: u32::MAX };
    let mut parser = StreamParser::single(limits);
    parser.push(octets.clone());
    let streamed = loop {
        match parser.next_event() {
            Ok(Some(_)) => {}
            Ok(None) => break parser.finish(),
            Err(error) => break Err(error),
        }
    };
    [Container::parse(octets, &limits).map(|_| ()), streamed]
}

#[test]
fn malformed_containers() {
    for vector in all::<RefusedVector>("container_malformed.json") {
        for result in parse_and_stream(&vector.hex) {
            assert!(matches!(result, Err(ContainerError::Malformed(_))), "{}: {result:?}", vector.why);
        }
    }
}

#[test]
fn containers_of_invalid_codecs() {
    for vector in read::<RefusedVector>(&own().join("container_unsupported_codec.json")) {
        for result in parse_and_stream(&vector.hex) {
            assert!(matches!(result, Err(ContainerError::Codec(0 | 65535))), "{}: {result:?}", vector.why);
        }
    }
}

#[test]
fn split_zstd_sections() {
    #[derive(Deserialize)]
    struct Vector {
        why: String,
        section_hex: String,
        raw_hex: Option<String>,
    }
    for vector in read::<Vector>(&own().join("split_zstd.json")) {
        let section = Bytes::from(unhex(&vector.section_hex));
        let raw = codec::decode_section(Codec::SPLIT_ZSTD, &section).ok();
        assert_eq!(raw.as_deref(), vector.raw_hex.as_deref().map(unhex).as_deref(), "{}", vector.why);
        if let Some(raw) = raw {
            assert_eq!(codec::decoded_octets(Codec::SPLIT_ZSTD, &section), Ok(Some(raw.len() as u64)));
        }
    }
}

#[test]
fn json_texts() {
    #[derive(Deserialize)]
    struct Vector {
        text_hex: String,
        verdict: String,
        jcs: Option<String>,
    }
    for vector in read::<Vector>(&own().join("json.json")) {
        let text = unhex(&vector.text_hex);
        let shown = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
        let (verdict, value) = match json::parse(&text) {
            Ok(value) => ("accepted", Some(value)),
            Err(JsonError::LoneSurrogate) => ("lone-surrogate", None),
            Err(_) => ("malformed", None),
        };
        assert_eq!(verdict, vector.verdict, "{shown}");
        let jcs = value.map(|value| serde_json_canonicalizer::to_string(&value).unwrap());
        assert_eq!(jcs, vector.jcs, "{shown}");
    }
}

#[test]
fn real_kv_blocks() {
    #[derive(Deserialize)]
    struct Sidecar {
        layers: u32,
        kv_heads: u32,
        head_dim: u32,
        kv_dtype: String,
        block_tokens: u32,
        size: u64,
        container_sha256: String,
        replica_digest: String,
        layer_digests: Vec<String>,
    }
    let Some(folder) = shared().map(|folder| folder.join("real-kv")) else { return };
    for name in ["smollm2-135m_bf16_t64_block0.kvb1", "smollm2-135m_bf16_t64_block1.kvb1"] {
        let container =
            Container::parse(std::fs::read(folder.join(name)).unwrap().into(), &Limits::default()).unwrap();
        let sidecar: Sidecar =
            serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
        assert_eq!(container.size(), sidecar.size);
        assert_eq!(container.repr_digest().0.to_string(), sidecar.container_sha256);
        assert_eq!(container.digest().to_string(), sidecar.replica_digest);
        let digests: Vec<_> = container.layer_digests().iter().map(ToString::to_string).collect();
        assert_eq!(digests, sidecar.layer_digests);

        let digest = format!("sha-256:{}", "11".repeat(32));
        let descriptor = Descriptor::from_value(serde_json::json!({
            "model": "SmolLM2-135M-Instruct", "model_digest": digest, "tokenizer_digest": digest,
            "layers": sidecar.layers, "kv_heads": sidecar.kv_heads, "head_dim": sidecar.head_dim,
            "kv_dtype": sidecar.kv_dtype, "positional": "rope;theta=100000",
            "block_tokens": sidecar.block_tokens, "layout": "kvsp-layout-1"
        }))
        .unwrap();
        assert_eq!(container.check_geometry(&descriptor), Ok(()));
        assert_eq!(descriptor.block_octets(), Some(sidecar.size));

        let split = codec::transcode(&container, Codec::SPLIT_ZSTD, 2).unwrap();
        assert_eq!(split.check_geometry(&descriptor), Ok(()));
        // The high plane of real activations compresses to well under half.
        assert!(split.size() < container.size() * 3 / 4, "{} of {}", split.size(), container.size());
        assert_eq!(codec::transcode(&split, Codec::RAW, 2).unwrap(), container);
    }
}
