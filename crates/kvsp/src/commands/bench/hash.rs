//! Digests of a container, as `Repr-Digest` and layer digests want them, by several ways.

use std::hint::black_box;

use kvsp_hash::Sweep;
use kvsp_proto::container::Container;
use sha2::{Digest as _, Sha256};

use super::blocks::{self, CONTAINER_OCTETS};
use super::contest::Contest;
use super::error::BenchError;
use super::report::Bench;
use crate::progress;

/// How octets are hashed while they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// They are not.
    Not,
    /// Whole and layer in one pass, two streams side by side.
    TwoLane,
    /// Whole and layer one after the other, by the `sha2` crate.
    TwoPasses,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Not, Self::TwoLane, Self::TwoPasses];
}

/// Digests in progress. The first piece is the header, each further one a layer.
pub(super) enum Hashing {
    Not,
    TwoLane { sweep: Sweep, header: bool },
    TwoPasses { whole: Sha256, header: bool },
}

impl Hashing {
    pub(super) fn new(way: Way) -> Self {
        match way {
            Way::Not => Self::Not,
            Way::TwoLane => Self::TwoLane { sweep: Sweep::new(), header: true },
            Way::TwoPasses => Self::TwoPasses { whole: Sha256::new(), header: true },
        }
    }

    pub(super) fn take(&mut self, piece: &[u8]) {
        match self {
            Self::Not => {}
            Self::TwoLane { sweep, header } => {
                if std::mem::take(header) {
                    sweep.update_whole_only(piece);
                } else {
                    sweep.update(piece);
                    black_box(sweep.end_segment());
                }
            }
            Self::TwoPasses { whole, header } => {
                whole.update(piece);
                if !std::mem::take(header) {
                    black_box(Sha256::digest(piece));
                }
            }
        }
    }

    pub(super) fn finish(self) {
        match self {
            Self::Not => {}
            Self::TwoLane { sweep, .. } => drop(black_box(sweep.finish())),
            Self::TwoPasses { whole, .. } => drop(black_box(whole.finalize())),
        }
    }
}

/// Measures octets a second of every way.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let (blocks, rounds) = if quick { (2, 3) } else { (16, 21) };
    let containers = blocks::containers(blocks)?;
    let octets = (blocks * CONTAINER_OCTETS) as f64;
    if let Some(container) = containers.first() {
        agree(container)?;
    }
    let bar = progress::spinner("hash".to_owned());
    let mut contest = Contest::default();
    let mut enter = |name: &str, one: fn(&Container)| {
        let containers = &containers;
        contest.enter(name, None, move || {
            containers.iter().for_each(one);
            Ok(())
        })
    };
    let sweep = enter("Repr-Digest and layer digests, two lanes", |c| _ = black_box(c.digests()));
    let own = enter("Repr-Digest, own kernel", |c| _ = black_box(kvsp_hash::sha256(c.bytes())));
    let one = enter("Repr-Digest, sha2", |c| _ = black_box(Sha256::digest(c.bytes())));
    let two = enter("Repr-Digest and layer digests, sha2, two passes", two_passes);
    let results = contest.run(rounds, &bar, "hash")?;
    bar.finish_and_clear();
    let mut figures: Vec<_> = results.iter().map(|series| series.rate(octets, "octets/s")).collect();
    figures.push(results[own].cpu_speed_ratio("own kernel / sha2, one pass", &[&results[one]]));
    figures.push(results[sweep].cpu_speed_ratio("two lanes / one pass of sha2", &[&results[one]]));
    figures.push(results[sweep].cpu_speed_ratio("two lanes / two passes of sha2", &[&results[two]]));
    let notes = vec![
        format!(
            "{blocks} containers of {CONTAINER_OCTETS} octets a round, {rounds} rounds in turns, one thread"
        ),
        "ratios are of CPU time".to_owned(),
    ];
    Ok(Bench { name: "hash", figures, notes })
}

fn two_passes(container: &Container) {
    black_box(Sha256::digest(container.bytes()));
    for layer in container.layers().layers() {
        black_box(container.layer_octets(layer).map(Sha256::digest));
    }
}

fn agree(container: &Container) -> Result<(), BenchError> {
    let (repr, layers) = container.digests();
    let library = |octets: &[u8]| <[u8; 32]>::from(Sha256::digest(octets));
    let same =
        repr.0.0 == library(container.bytes())
            && container.layers().layers().zip(&layers).all(|(layer, digest)| {
                container.layer_octets(layer).is_some_and(|o| library(&o) == digest.0)
            });
    if same { Ok(()) } else { Err(BenchError::Differ("digests")) }
}
