use proptest::prelude::*;
use sha2::Digest as _;

use super::*;

fn oracle(octets: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(octets).into()
}

/// Octets that differ everywhere.
fn octets(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Cases of a property: few under Miri; PROPTEST_CASES asks for more.
fn cases(count: u32) -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        cases: if cfg!(miri) {
            4
        } else if asked {
            config.cases
        } else {
            count
        },
        ..config
    }
}

#[test]
fn both_kernels_run_where_the_processor_has_them() {
    assert_eq!(Kernel::all()[0], Kernel::Portable);
    assert_eq!(Kernel::all().last(), Some(&Kernel::best()));
}

#[test]
fn every_length_is_that_of_the_library() {
    let all = octets(300);
    let lengths: Vec<usize> =
        if cfg!(miri) { vec![0, 1, 55, 56, 63, 64, 65, 130] } else { (0..=300).collect() };
    for kernel in Kernel::all() {
        for &length in &lengths {
            let text = &all[..length];
            let mut hash = Sha256::with(kernel);
            hash.update(text);
            assert_eq!(hash.finish(), oracle(text), "{kernel:?} {length}");
            // Every split in two, every segment border, with the first part in no segment or in one.
            for cut in (0..=length).step_by(if cfg!(miri) { 29 } else { 1 }) {
                let (a, b) = text.split_at(cut);
                let mut split = Sha256::with(kernel);
                split.update(a);
                split.update(b);
                assert_eq!(split.finish(), oracle(text), "{kernel:?} {length} {cut}");
                let mut sweep = Sweep::with(kernel);
                sweep.update_whole_only(a);
                sweep.update(b);
                assert_eq!(sweep.end_segment(), oracle(b), "{kernel:?} {length} {cut}");
                sweep.update(a);
                assert_eq!(sweep.end_segment(), oracle(a), "{kernel:?} {length} {cut}");
                assert_eq!(sweep.finish(), oracle(&[a, b, a].concat()), "{kernel:?} {length} {cut}");
            }
        }
    }
    assert_eq!(sha256(b"abc"), oracle(b"abc"));
    assert_eq!(sha256_parts([b"a".as_slice(), b"", b"bc"]), oracle(b"abc"));
}

#[test]
fn a_clone_forks() {
    let mut one = Sweep::new();
    one.update(b"ab");
    let mut other = one.clone();
    one.update(b"c");
    assert_eq!((one.end_segment(), one.finish()), (oracle(b"abc"), oracle(b"abc")));
    assert_eq!((other.end_segment(), other.finish()), (oracle(b"ab"), oracle(b"ab")));
}

/// A piece of a message.
#[derive(Debug, Clone)]
enum Piece {
    Octets(usize),
    WholeOnly(usize),
    Border,
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let length = || prop_oneof![0..70_usize, 0..700_usize, Just(64), Just(128), 5000..20_000_usize];
    let piece = prop_oneof![
        6 => length().prop_map(Piece::Octets),
        1 => length().prop_map(Piece::WholeOnly),
        2 => Just(Piece::Border),
    ];
    prop::collection::vec(piece, 0..if cfg!(miri) { 6 } else { 40 })
}

proptest! {
    #![proptest_config(cases(128))]
    #[test]
    fn a_sweep_of_any_pieces_is_each_digest_alone(pieces in pieces(), offset in 0..64_usize) {
        let text = octets(1_000_000);
        for kernel in Kernel::all() {
            let (mut sweep, mut at) = (Sweep::with(kernel), offset);
            let (mut whole, mut segment) = (Vec::new(), Vec::new());
            for piece in &pieces {
                match *piece {
                    Piece::Octets(count) => {
                        sweep.update(&text[at..at + count]);
                        whole.extend_from_slice(&text[at..at + count]);
                        segment.extend_from_slice(&text[at..at + count]);
                        at += count;
                    }
                    Piece::WholeOnly(count) => {
                        sweep.update_whole_only(&text[at..at + count]);
                        whole.extend_from_slice(&text[at..at + count]);
                        at += count;
                    }
                    Piece::Border => {
                        prop_assert_eq!(sweep.end_segment(), oracle(&segment));
                        segment.clear();
                    }
                }
            }
            prop_assert_eq!(sweep.end_segment(), oracle(&segment));
            prop_assert_eq!(sweep.finish(), oracle(&whole));
        }
    }
}
