use hmac::{KeyInit as _, Mac as _};
use proptest::prelude::*;

use super::*;

fn oracle(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn message(octets: &[u8]) -> HmacMessage {
    let mut message = HmacMessage::new(octets.len());
    message.octets_mut().copy_from_slice(octets);
    message
}

/// Octets that differ everywhere.
fn octets(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn every_length_of_key_and_message_is_that_of_the_library() {
    let lengths: Vec<usize> = if cfg!(miri) { vec![0, 54, 55, 56, 64, 141] } else { (0..=300).collect() };
    for kernel in Kernel::all() {
        for &length in &lengths {
            let text = octets(length);
            for key in [octets(32), octets(length)] {
                let want = oracle(&key, &text);
                let hmac = HmacKey::with(kernel, &key);
                assert_eq!(hmac.mac(&message(&text)), want, "{kernel:?} {length}");
                let mut parts = hmac.begin();
                for part in text.chunks(17) {
                    parts.update(part);
                }
                assert_eq!(parts.finish(), want, "{kernel:?} {length}");
            }
        }
    }
}

#[test]
fn a_message_is_written_again_and_a_mac_forks() {
    let hmac = HmacKey::new(b"key");
    let mut written = message(b"one message");
    assert_eq!(hmac.mac(&written), oracle(b"key", b"one message"));
    written.octets_mut()[..3].copy_from_slice(b"two");
    assert_eq!(written.octets(), b"two message");
    assert_eq!(hmac.mac(&written), oracle(b"key", b"two message"));
    let mut one = hmac.begin();
    one.update(b"ab");
    let mut other = one.clone();
    one.update(b"c");
    other.update(b"d");
    assert_eq!((one.finish(), other.finish()), (oracle(b"key", b"abc"), oracle(b"key", b"abd")));
}

#[test]
fn nothing_of_a_key_is_shown() {
    let key = HmacKey::new(&[7; 32]);
    assert_eq!(
        (format!("{key:?}"), format!("{:?}", key.begin())),
        ("HmacKey(redacted)".into(), "Hmac(redacted)".into())
    );
    assert!(!format!("{:?}", message(b"secret")).contains("115"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 64 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn two_messages_together_are_each_alone(
        key in prop::collection::vec(any::<u8>(), 0..200),
        a in prop::collection::vec(any::<u8>(), 0..2000),
        b in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        for kernel in Kernel::all() {
            let hmac = HmacKey::with(kernel, &key);
            prop_assert_eq!(hmac.mac2([&message(&a), &message(&b)]), [oracle(&key, &a), oracle(&key, &b)]);
        }
    }
}
