//! Clients that put, get, delete and lease, and know what each answer promised.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{BLOCK, Chance, Connection, block_path, container, hex, key};
use crate::support::{COMPAT, SCOPE};

/// Layers and octets of a section: 256 KiB of data a block.
const LAYERS: u32 = 4;
const SECTION: usize = 32 << 10;

/// The container of a block whose contents were made of `seed`.
pub(crate) fn contents(seed: u64) -> Vec<u8> {
    container(0, LAYERS, SECTION, seed)
}

/// What a client knows of a block of its own.
#[derive(Debug, Clone)]
pub(crate) enum Known {
    /// A PUT was acknowledged: these contents.
    Held(u64),
    /// A DELETE was acknowledged, or the block was found to be gone.
    Absent,
    /// A request broke off: any of these contents, or absent.
    Unsure(Vec<u64>),
}

/// A lease that was granted on blocks with these contents.
#[derive(Debug)]
struct Lease {
    block: u64,
    /// Until when the block must be there: from the sending of the request.
    until: Instant,
}

/// A client with blocks of its own.
#[derive(Debug)]
pub(crate) struct Client {
    chance: u64,
    /// Blocks of this client: these numbers.
    blocks: Vec<u64>,
    known: BTreeMap<u64, Known>,
    lease: Option<Lease>,
    /// More is put than the tier has room for.
    pub(crate) over_the_cap: bool,
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    /// Blocks that were evicted: held once, and 404 later.
    pub(crate) evicted: u64,
}

impl Client {
    pub(crate) fn new(number: u64, blocks: u64, over_the_cap: bool) -> Self {
        Self {
            chance: 7919 * (number + 1),
            blocks: (0..blocks).map(|block| number << 32 | block).collect(),
            known: BTreeMap::new(),
            lease: None,
            over_the_cap,
            requests: 0,
            refused: 0,
            evicted: 0,
        }
    }

    fn roll(&mut self, n: u64) -> u64 {
        let mut chance = Chance(self.chance);
        let rolled = chance.of(n);
        self.chance = chance.0;
        rolled
    }

    /// Blocks that are held for certain.
    pub(crate) fn held(&self) -> impl Iterator<Item = u64> {
        self.known.iter().filter(|(_, known)| matches!(known, Known::Held(_))).map(|(block, _)| *block)
    }

    /// Puts every block once, so that a tier that is too small for all of them is full.
    pub(crate) fn fill(&mut self, base: &str) {
        let mut connection = Connection::open(base).unwrap();
        for block in self.blocks.clone() {
            self.requests += 1;
            self.put(&mut connection, block).unwrap();
        }
    }

    /// Hammers until the connection breaks.
    pub(crate) fn hammer(&mut self, base: &str) {
        let Ok(mut connection) = Connection::open(base) else { return };
        while self.step(&mut connection).is_ok() {}
    }

    fn step(&mut self, connection: &mut Connection) -> std::io::Result<()> {
        let at = usize::try_from(self.roll(self.blocks.len() as u64)).unwrap();
        let block = self.blocks[at];
        self.requests += 1;
        let known = self.known.get(&block).cloned().unwrap_or(Known::Absent);
        match (known, self.roll(10)) {
            (Known::Absent, _) => self.put(connection, block),
            (Known::Held(seed), 0..=4) => self.get(connection, block, &[seed], false),
            (Known::Held(seed), 5 | 6) => self.delete(connection, block, seed),
            (Known::Held(_), _) => self.take_lease(connection, block),
            (Known::Unsure(seeds), _) => self.get(connection, block, &seeds, true),
        }
    }

    fn put(&mut self, connection: &mut Connection, block: u64) -> std::io::Result<()> {
        let seed = self.roll(u64::MAX);
        self.known.insert(block, Known::Unsure(vec![seed]));
        let headers = [("content-type", BLOCK), ("if-none-match", "*")];
        let answer = connection.send("PUT", &block_path(block), &headers, &contents(seed))?;
        let known = match answer.status {
            201 => Known::Held(seed),
            // Nothing is evicted for a while after a restart, and room that is promised is not there yet.
            507 if self.over_the_cap => {
                self.refused += 1;
                Known::Absent
            }
            _ => panic!("PUT of an absent block: {answer:?}"),
        };
        self.known.insert(block, known);
        Ok(())
    }

    /// Gets a block that has one of these contents. `unsure`: it may as well be absent.
    fn get(
        &mut self,
        connection: &mut Connection,
        block: u64,
        seeds: &[u64],
        unsure: bool,
    ) -> std::io::Result<()> {
        let leased = self.lease.as_ref().filter(|lease| lease.block == block).map(|lease| lease.until);
        let answer = connection.send("GET", &block_path(block), &[], b"")?;
        let in_time = leased.is_some_and(|until| Instant::now() < until);
        match answer.status {
            200 => {
                let seed = seeds.iter().copied().find(|seed| contents(*seed) == answer.body);
                let seed = seed.unwrap_or_else(|| panic!("block {} has foreign octets", key(block)));
                self.known.insert(block, Known::Held(seed));
            }
            404 => {
                assert_eq!(answer.problem(), "kvsp-block-not-found");
                assert!(!in_time, "block {} is gone under lease", key(block));
                assert!(unsure || self.over_the_cap, "block {} was acknowledged and is gone", key(block));
                self.evicted += u64::from(!unsure);
                self.known.insert(block, Known::Absent);
            }
            _ => panic!("GET: {answer:?}"),
        }
        Ok(())
    }

    fn delete(&mut self, connection: &mut Connection, block: u64, seed: u64) -> std::io::Result<()> {
        self.known.insert(block, Known::Unsure(vec![seed]));
        let answer = connection.send("DELETE", &block_path(block), &[], b"")?;
        let known = match answer.status {
            204 => Known::Absent,
            409 => {
                assert_eq!(answer.problem(), "kvsp-block-leased");
                Known::Held(seed)
            }
            _ => panic!("DELETE: {answer:?}"),
        };
        self.known.insert(block, known);
        Ok(())
    }

    fn take_lease(&mut self, connection: &mut Connection, block: u64) -> std::io::Result<()> {
        let body = json!({
            "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": [key(block)], "ttl_ms": 300
        });
        let sent = Instant::now();
        let headers = [("content-type", "application/json")];
        let answer = connection.send("POST", "leases", &headers, body.to_string().as_bytes())?;
        match answer.status {
            201 => {
                let ttl_ms = answer.value()["ttl_ms"].as_u64().unwrap();
                self.lease = Some(Lease { block, until: sent + Duration::from_millis(ttl_ms) });
            }
            404 if self.over_the_cap => {
                self.evicted += 1;
                self.known.insert(block, Known::Absent);
            }
            429 => assert_eq!(answer.problem(), "kvsp-lease-quota"),
            _ => panic!("lease of {}: {answer:?}", key(block)),
        }
        Ok(())
    }

    /// After a restart: every block is as was promised. Answers octets held.
    pub(crate) fn verify(&mut self, connection: &mut Connection) -> usize {
        let mut octets = 0;
        for (block, known) in self.known.clone() {
            let (seeds, unsure) = match known {
                Known::Held(seed) => (vec![seed], false),
                Known::Unsure(seeds) => (seeds, true),
                Known::Absent => {
                    let answer = connection.send("GET", &block_path(block), &[], b"").unwrap();
                    assert_eq!(answer.status, 404, "block {} was deleted", key(block));
                    continue;
                }
            };
            self.get(connection, block, &seeds, unsure).unwrap();
            if let Some(Known::Held(seed)) = self.known.get(&block) {
                octets += contents(*seed).len();
            }
        }
        octets
    }
}
