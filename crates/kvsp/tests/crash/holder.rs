//! A holder with a disk tier of 64 MiB, and in one test an object tier below it, killed at random moments.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::filesystem::{filesystem_used, on_small_filesystem};
use crate::hammer::{Client, contents};
use crate::support::{COMPAT, Chance, Process, SCOPE, count, eventually, files, hex, key, octets_used};

const CAP: u64 = 64 << 20;
/// The quarantine's share is not for blocks.
const ROOM: u64 = CAP - CAP / 16;
/// Room for all blocks of all clients.
const OBJECT_CAP: u64 = 256 << 20;
const CLIENTS: u64 = 4;
/// All blocks of all clients together: below the cap, and three times over it.
const FEW: u64 = 160 / CLIENTS;
const MANY: u64 = 720 / CLIENTS;

/// What a holder is put through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// All blocks of all clients fit.
    Below,
    /// The disk tier is full, and evicts.
    Over,
    /// The disk tier is full, and its cold blocks go to an object tier that has room for all.
    Overflow,
}

struct Crash<'a> {
    place: &'a Path,
    load: Load,
    /// Whether the file system is the test's own, so that all that is used on it is the tier's.
    own: bool,
    logs: tempfile::TempDir,
    index: Process,
    clients: Vec<Client>,
    most_used: AtomicU64,
}

impl Crash<'_> {
    fn start(&self) -> Process {
        let config = self.logs.path().join("holder.toml");
        let mut text = "[holder]\nhost_octets = 4194304\nreplica_ttl_ms = 600000\n\
                        [holder.limits]\nmax_lease_ttl_ms = 300\n"
            .to_owned();
        if self.load == Load::Overflow {
            let below = self.objects();
            std::fs::create_dir_all(&below).unwrap();
            // A holder on another port is the same one: it has the directory of the first.
            text += &format!(
                "[holder.object]\nurl = \"file://{}\"\noctets = {OBJECT_CAP}\nowner = \"the holder\"\n",
                below.display()
            );
        }
        std::fs::write(&config, text).unwrap();
        let dir = self.place.join("tier");
        let cap = CAP.to_string();
        let args = [
            "holder",
            "--config",
            config.to_str().unwrap(),
            "--index",
            &self.index.base,
            "--disk-dir",
            dir.to_str().unwrap(),
            "--disk-octets",
            &cap,
        ];
        Process::serve(self.logs.path(), &args)
    }

    /// Where the object tier is.
    fn objects(&self) -> PathBuf {
        self.logs.path().join("objects")
    }

    fn used(&self) -> u64 {
        if self.own { filesystem_used(self.place) } else { octets_used(self.place) }
    }

    fn sample(&self) {
        let used = self.used();
        self.most_used.fetch_max(used, Ordering::Relaxed);
        assert!(used <= CAP, "{used} octets are used, over the cap of {CAP}");
        if self.load == Load::Overflow {
            let below = octets_used(&self.objects());
            assert!(below <= OBJECT_CAP, "{below} octets are used, over the cap of {OBJECT_CAP}");
        }
    }

    /// What must be true of a holder that has just started, before anything else is done to it.
    fn verify(&mut self, holder: &Process, was_full: bool) {
        let mut connection = holder.connect();
        let left = files(&self.place.join("tier").join("tmp"));
        assert!(left.is_empty(), "temporary files stay: {left:?}");
        let adopted = holder.metric("kvsp_holder_octets{tier=\"disk\"}");
        if self.load == Load::Overflow {
            // What a kill left half-written is no object, and not left lying about; copies go on meanwhile.
            eventually("all that lies in the object tier is counted", || {
                let lie = files(&self.objects())
                    .iter()
                    .filter_map(|path| path.metadata().ok())
                    .map(|f| f.len())
                    .sum();
                let counted = holder.metric("kvsp_holder_octets{tier=\"object\"}");
                (counted + 4096 >= lie).then_some(())
            });
        }
        if was_full && self.load == Load::Over {
            // Only what made room for the PUTs that were under way may be missing from a full tier.
            let under_way = 2 * CLIENTS * (contents(0).len() as u64 + 8192);
            assert!(adopted + under_way >= ROOM, "a full tier came back with {adopted} octets of {ROOM}");
        }
        for client in &mut self.clients {
            client.verify(&mut connection);
        }
        let quarantined = holder.metric("kvsp_holder_quarantined_total");
        assert_eq!(quarantined, 0, "blocks are rotten after a kill");
        self.published();
        self.sample();
    }

    /// Every block that is held is at the index, which knows its blocks by the leading keys of a lookup.
    fn published(&self) {
        let held: Vec<String> = self.clients.iter().flat_map(Client::held).map(key).collect();
        let body = json!({
            "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": held, "detail": "none"
        });
        eventually("every block is published again", || {
            let answer = self.index.json("POST", "lookup", &body);
            (answer.value()["matched"] == held.len()).then_some(())
        });
    }

    /// Hammers a holder for a while, then kills it.
    fn hammer_and_kill(&mut self, holder: &mut Process, after: Duration) {
        let base = holder.base.clone();
        let ended = AtomicBool::new(false);
        let mut clients = std::mem::take(&mut self.clients);
        std::thread::scope(|scope| {
            let this = &*self;
            let threads: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| client.hammer(&base))).collect();
            let sampler = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    this.sample();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            std::thread::sleep(after);
            holder.kill();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            ended.store(true, Ordering::Relaxed);
            sampler.join().unwrap();
        });
        self.clients = clients;
    }

    fn run(&mut self, kills: u64) {
        let over_the_cap = self.load != Load::Below;
        let mut chance = Chance(self.load as u64);
        let mut was_full = false;
        for kill in 0..kills {
            let mut holder = self.start();
            self.verify(&holder, was_full);
            if kill == 0 && over_the_cap {
                let base = holder.base.as_str();
                std::thread::scope(|scope| {
                    self.clients.iter_mut().for_each(|client| drop(scope.spawn(|| client.fill(base))));
                });
                was_full = true;
            }
            self.hammer_and_kill(&mut holder, Duration::from_millis(20 + chance.of(700)));
        }
        let mut holder = self.start();
        self.verify(&holder, was_full);
        let (blocks, leases) = (holder.metric("kvsp_holder_blocks"), holder.metric("kvsp_holder_leases"));
        assert!(blocks > 0 && leases == 0, "{blocks} blocks, {leases} leases");
        holder.stop();
        let evicted = self.clients.iter().map(|client| client.evicted).sum::<u64>();
        // A burst may overtake the copies to the object tier.
        if self.load != Load::Overflow {
            assert_eq!(evicted > 0, over_the_cap, "{evicted} blocks were evicted");
        }
        let sum = |of: fn(&Client) -> u64| self.clients.iter().map(of).sum::<u64>();
        println!(
            "{kills} kills, {} requests, {} evicted, {} refused, {blocks} blocks at the end, at most {} of {CAP} octets used",
            sum(|client| client.requests),
            evicted,
            sum(|client| client.refused),
            self.most_used.load(Ordering::Relaxed),
        );
    }
}

fn crash(place: &Path, own: bool, load: Load) {
    let over_the_cap = load != Load::Below;
    let logs = tempfile::TempDir::new().unwrap();
    let index = Process::serve(logs.path(), &["index"]);
    let blocks = if over_the_cap { MANY } else { FEW };
    let clients = (0..CLIENTS).map(|number| Client::new(number, blocks, over_the_cap)).collect();
    let mut crash = Crash { place, load, own, logs, index, clients, most_used: AtomicU64::new(0) };
    crash.run(count("KVSP_CRASH_KILLS", 8) / 2);
}

#[test]
fn nothing_acknowledged_is_missing_after_kills_below_the_cap() {
    let name = "holder::nothing_acknowledged_is_missing_after_kills_below_the_cap";
    // The tier's directories take octets of the file system too.
    on_small_filesystem(name, 65, |place, own| crash(place, own, Load::Below));
}

#[test]
fn what_a_full_tier_did_not_evict_is_there_after_kills() {
    let name = "holder::what_a_full_tier_did_not_evict_is_there_after_kills";
    on_small_filesystem(name, 65, |place, own| crash(place, own, Load::Over));
}

#[test]
fn what_went_to_the_object_tier_is_there_after_kills() {
    let name = "holder::what_went_to_the_object_tier_is_there_after_kills";
    on_small_filesystem(name, 65, |place, own| crash(place, own, Load::Overflow));
}
