//! Rows encrypted at rest: whoever has the disk, a backup of it, or what was deleted on it, reads keys of rows and
//! lengths of values, and no values.
//!
//! A value is sealed with AES-256-GCM. Its row's key and the format's version are authenticated with it, so a row
//! cannot be moved to another key; the store's identifier goes into the derived key, so it cannot be moved to another
//! store either. An old value put back in the place of a newer one is not noticed.
//!
//! Every open draws a salt and derives a key of its own, whose nonces are a counter. So no nonce is used twice, however
//! many rows are written, and also after the disk was put back to an earlier state.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use bytes::Bytes;

use super::key::{MasterKey, random};
use super::{EachRow, KeyError, MAX_VALUE_OCTETS, RedbConfig, RedbState, RowChange, StateError, StateStore};

/// The table that is not the caller's.
const RESERVED: u8 = 0;
/// The key of the row that tells with which key the others are sealed: magic, version (u32 in network order), the
/// store's identifier, and nothing, sealed.
const MARKER: &[u8] = b"\0sealed";
const MAGIC: &[u8; 8] = b"KVSPSEAL";
const VERSION: u32 = 1;

/// A sealed value: version, salt, counter (u64 in network order), and the octets with their tag.
const VALUE_VERSION: u8 = 1;
const SALT_OCTETS: usize = 16;
const HEAD_OCTETS: usize = 1 + SALT_OCTETS + 8;
const ID_OCTETS: usize = 16;
/// Openings whose keys are kept while rows are read.
const MAX_OPENINGS: usize = 256;

type SaltOctets = [u8; SALT_OCTETS];
type StoreId = [u8; ID_OCTETS];

/// A store whose values are sealed. Keys of rows are not: they order the rows.
#[derive(Debug)]
pub struct Sealed<S> {
    inner: S,
    master: MasterKey,
    id: StoreId,
    salt: SaltOctets,
    key: LessSafeKey,
    /// The next nonce.
    counter: AtomicU64,
}

/// Opens the store of a directory, sealed. The key is read from `key_file`; without one it lies beside the rows, made
/// before they are.
///
/// # Errors
/// [`StateError::Key`], [`StateError::WrongKey`], [`StateError::NotSealed`], and as [`RedbState::open`].
pub fn open_sealed(
    dir: &Path,
    key_file: Option<&Path>,
    config: RedbConfig,
) -> Result<Sealed<RedbState>, StateError> {
    let key = match key_file {
        Some(path) => MasterKey::read(path)?,
        None => {
            RedbState::make_dir(dir)?;
            beside(dir)?
        }
    };
    Sealed::new(RedbState::open(dir, config)?, key)
}

/// The key that lies beside the rows. Where there are rows and no key it is lost, and another would be of no use.
fn beside(dir: &Path) -> Result<MasterKey, KeyError> {
    let path = dir.join("key");
    match MasterKey::read(&path) {
        Err(KeyError::Missing) if !RedbState::is_in(dir)? => {}
        other => return other,
    }
    match MasterKey::create(&path) {
        Err(KeyError::Exists) => MasterKey::read(&path),
        other => other,
    }
}

impl<S: StateStore> Sealed<S> {
    /// Seals an empty store, or opens one that was sealed with this key.
    ///
    /// # Errors
    /// [`StateError::WrongKey`]; [`StateError::NotSealed`] where there are rows in the clear; as [`StateStore`].
    pub fn new(inner: S, master: MasterKey) -> Result<Self, StateError> {
        let mut marker = None;
        let mut others = false;
        inner.scan(MARKER, &mut |key, value| {
            if key == MARKER {
                marker = Some(value.to_vec());
            }
            Ok(())
        })?;
        let id = match &marker {
            Some(marker) => parse_marker(marker)?.0,
            None => {
                let first = inner.scan(b"", &mut |_, _| {
                    others = true;
                    Err(StateError::NotSealed)
                });
                if others {
                    return Err(StateError::NotSealed);
                }
                first?;
                random()?
            }
        };
        let salt = random()?;
        let key = derive(&master, &id, &salt)?;
        let sealed = Self { inner, master, id, salt, key, counter: AtomicU64::new(0) };
        match &marker {
            Some(marker) => {
                let mut proof = parse_marker(marker)?.1.to_vec();
                let key = derive(&sealed.master, &id, salt_of(&proof)?)?;
                open(&key, MARKER, &mut proof).map_err(|_| StateError::WrongKey)?;
            }
            None => {
                let proof = sealed.seal(MARKER, b"")?;
                let marker = [&MAGIC[..], &VERSION.to_be_bytes(), &id, &proof].concat();
                sealed.inner.commit(&[RowChange::set(MARKER, marker)])?;
            }
        }
        Ok(sealed)
    }

    fn seal(&self, key: &[u8], value: &[u8]) -> Result<Bytes, StateError> {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        let mut sealed = Vec::with_capacity(HEAD_OCTETS + value.len() + AES_256_GCM.tag_len());
        sealed.push(VALUE_VERSION);
        sealed.extend_from_slice(&self.salt);
        sealed.extend_from_slice(&counter.to_be_bytes());
        sealed.extend_from_slice(value);
        let tag = self.key.seal_in_place_separate_tag(nonce(counter), aad(key), &mut sealed[HEAD_OCTETS..]);
        sealed.extend_from_slice(tag.map_err(|_| StateError::BadRow("it cannot be sealed"))?.as_ref());
        Ok(sealed.into())
    }
}

impl<S: StateStore> StateStore for Sealed<S> {
    fn term(&self) -> u64 {
        self.inner.term()
    }

    fn commit(&self, changes: &[RowChange]) -> Result<(), StateError> {
        super::check_changes(changes)?;
        let seal = |change: &RowChange| {
            if change.key.first() == Some(&RESERVED) {
                return Err(StateError::BadRow("the table is reserved"));
            }
            let value = change.value.as_ref().map(|value| {
                if value.len() > MAX_VALUE_OCTETS {
                    return Err(StateError::BadRow("the value is too long"));
                }
                self.seal(&change.key, value)
            });
            Ok(RowChange { key: change.key.clone(), value: value.transpose()? })
        };
        let sealed = changes.iter().map(seal).collect::<Result<Vec<_>, _>>()?;
        self.inner.commit(&sealed)
    }

    fn scan(&self, prefix: &[u8], each: &mut EachRow<'_>) -> Result<(), StateError> {
        let mut keys: BTreeMap<SaltOctets, LessSafeKey> = BTreeMap::new();
        let mut buffer = Vec::new();
        self.inner.scan(prefix, &mut |key, sealed| {
            if key.first() == Some(&RESERVED) {
                return Ok(());
            }
            let salt = salt_of(sealed)?;
            if !keys.contains_key(salt) {
                if keys.len() == MAX_OPENINGS {
                    keys.clear();
                }
                keys.insert(*salt, derive(&self.master, &self.id, salt)?);
            }
            let opening = keys.get(salt).ok_or(StateError::Corrupt("a sealed row"))?;
            buffer.clear();
            buffer.extend_from_slice(sealed);
            let opened = open(opening, key, &mut buffer).map(|value| each(key, value));
            zeroize::Zeroize::zeroize(&mut buffer);
            opened?
        })
    }
}

/// The store's identifier and the proof of its key.
fn parse_marker(marker: &[u8]) -> Result<(StoreId, &[u8]), StateError> {
    let rest = marker.strip_prefix(MAGIC).ok_or(StateError::Corrupt("the seal's magic"))?;
    let (version, rest) = rest.split_first_chunk().ok_or(StateError::Corrupt("the seal's version"))?;
    match u32::from_be_bytes(*version) {
        VERSION => {}
        other => return Err(StateError::UnknownVersion(other)),
    }
    let (id, proof) = rest.split_first_chunk().ok_or(StateError::Corrupt("the seal"))?;
    Ok((*id, proof))
}

/// The salt of the opening that sealed a value.
fn salt_of(sealed: &[u8]) -> Result<&SaltOctets, StateError> {
    let (version, rest) = sealed.split_first().ok_or(StateError::Corrupt("a sealed row"))?;
    if *version != VALUE_VERSION {
        return Err(StateError::UnknownVersion((*version).into()));
    }
    rest.first_chunk().ok_or(StateError::Corrupt("a sealed row"))
}

/// The octets of a sealed value, decrypted where they lie.
fn open<'a>(opening: &LessSafeKey, key: &[u8], sealed: &'a mut [u8]) -> Result<&'a [u8], StateError> {
    let corrupt = StateError::Corrupt("a sealed row");
    let (head, octets) = sealed.split_at_mut_checked(HEAD_OCTETS).ok_or(corrupt.clone())?;
    let counter = head.last_chunk().ok_or(corrupt.clone())?;
    let nonce = nonce(u64::from_be_bytes(*counter));
    Ok(opening.open_in_place(nonce, aad(key), octets).map_err(|_| corrupt)?)
}

fn derive(master: &MasterKey, id: &StoreId, salt: &SaltOctets) -> Result<LessSafeKey, StateError> {
    let failed = |_| StateError::BadRow("no key can be derived");
    let pseudorandom = Salt::new(HKDF_SHA256, id).extract(master.octets());
    let info = [b"kvsp state rows 1".as_slice(), salt];
    let okm = pseudorandom.expand(&info, &AES_256_GCM).map_err(failed)?;
    Ok(LessSafeKey::new(UnboundKey::from(okm)))
}

fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// What is authenticated beside the value.
fn aad(key: &[u8]) -> Aad<Vec<u8>> {
    Aad::from([&[VALUE_VERSION], key].concat())
}
