//! What is left of a file system when power is lost.
//!
//! What was synced is there: a file's octets and length after a sync of the file, a directory's names after
//! a sync of the directory. Of the rest any part may be there or not, in any order: this is less than any
//! journalling file system promises, so a store that lives with it lives with all of them. A rename may be
//! seen on one of its sides only, a write may have happened in part, or have left zeros.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::recording::Step;
use super::tree::{Id, Node, Tree};

/// What happens to that which was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of it is lost.
    All,
    /// Nothing is lost.
    Nothing,
    /// Octets and lengths are lost, names are there.
    Octets,
    /// Names are lost, octets and lengths are there.
    Names,
    /// Names and lengths are there; octets are zeros.
    Zeros,
    /// Names are there; of each write the first half happened.
    Halves,
    /// New names are there and removed ones are back.
    Removals,
    /// New names are lost, and so are removed ones; octets are there.
    Additions,
    /// Each step has a fate of its own, drawn from a seed.
    Chance(u64),
    /// As [`Loss::Chance`], and of a write each 512 octets have a fate of their own.
    Sectors(u64),
}

/// The kinds of loss that are told without a seed.
pub const LOSSES: [Loss; 8] = [
    Loss::All,
    Loss::Nothing,
    Loss::Octets,
    Loss::Names,
    Loss::Zeros,
    Loss::Halves,
    Loss::Removals,
    Loss::Additions,
];

/// A change of a directory that is not synced yet.
#[derive(Debug, Clone)]
enum Name {
    Added(OsString, Id),
    Removed(OsString, Id),
}

/// A change of a file that is not synced yet.
#[derive(Debug, Clone)]
enum Content {
    Write(usize, Vec<u8>),
    Length(usize),
}

/// What was synced, and what waits for a sync.
struct Disk {
    tree: Tree,
    names: BTreeMap<Id, Vec<Name>>,
    contents: BTreeMap<Id, Vec<Content>>,
}

/// What is left after `steps` on `start`.
pub(super) fn survivors(start: &Tree, steps: &[Step], loss: Loss) -> Tree {
    let mut disk = Disk { tree: start.clone(), names: BTreeMap::new(), contents: BTreeMap::new() };
    let mut chance = Chance(if let Loss::Chance(seed) | Loss::Sectors(seed) = loss { seed } else { 0 });
    for step in steps {
        disk.take(step, loss, &mut chance);
    }
    disk.lose(loss, &mut chance)
}

impl Disk {
    fn take(&mut self, step: &Step, loss: Loss, chance: &mut Chance) {
        let mut name = |dir: Id, change: Name| self.names.entry(dir).or_default().push(change);
        match step {
            // Without a name a node is out of reach, so it may as well be there.
            Step::Dir { parent, name: called, id } => {
                name(*parent, Name::Added(called.clone(), *id));
                self.tree.make(*id, Node::Dir(BTreeMap::new()));
            }
            Step::File { parent, name: called, id } => {
                name(*parent, Name::Added(called.clone(), *id));
                self.tree.make(*id, Node::File(Vec::new()));
            }
            Step::Rename { from, to, id } => {
                name(to.0, Name::Added(to.1.clone(), *id));
                name(from.0, Name::Removed(from.1.clone(), *id));
            }
            Step::Remove { parent, name: called, id } => name(*parent, Name::Removed(called.clone(), *id)),
            Step::Write { id, offset, octets } => {
                self.contents.entry(*id).or_default().push(Content::Write(*offset, octets.clone()));
            }
            Step::Length { id, octets } => {
                self.contents.entry(*id).or_default().push(Content::Length(*octets));
            }
            Step::SyncFile { id } => {
                for change in self.contents.remove(id).unwrap_or_default() {
                    self.keep_content(*id, &change);
                }
            }
            // The system counts it as written, whatever became of it.
            Step::LostSync { id } => self.lose_contents(*id, loss, chance),
            Step::SyncDir { id } => {
                for change in self.names.remove(id).unwrap_or_default() {
                    self.keep_name(*id, &change);
                }
            }
        }
    }

    fn keep_name(&mut self, dir: Id, change: &Name) {
        match change {
            Name::Added(name, id) => self.tree.link(dir, name, *id),
            Name::Removed(name, id) => self.tree.unlink(dir, name, *id),
        }
    }

    fn keep_content(&mut self, id: Id, change: &Content) {
        match change {
            Content::Write(offset, octets) => self.tree.write(id, octets, *offset),
            Content::Length(octets) => self.tree.set_length(id, *octets),
        }
    }

    fn lose(mut self, loss: Loss, chance: &mut Chance) -> Tree {
        for (dir, changes) in std::mem::take(&mut self.names) {
            for change in changes {
                let kept = match (loss, &change) {
                    (Loss::All | Loss::Names, _)
                    | (Loss::Removals, Name::Removed(..))
                    | (Loss::Additions, Name::Added(..)) => false,
                    (Loss::Chance(_) | Loss::Sectors(_), _) => chance.of(2) == 0,
                    _ => true,
                };
                if kept {
                    self.keep_name(dir, &change);
                }
            }
        }
        while let Some((&id, _)) = self.contents.first_key_value() {
            self.lose_contents(id, loss, chance);
        }
        self.tree
    }

    fn lose_contents(&mut self, id: Id, loss: Loss, chance: &mut Chance) {
        for change in self.contents.remove(&id).unwrap_or_default() {
            match (loss, change) {
                (Loss::Sectors(_), Content::Write(offset, octets)) => {
                    for (offset, octets) in sectors(offset, &octets) {
                        if chance.of(2) == 0 {
                            self.keep_content(id, &Content::Write(offset, octets.to_vec()));
                        }
                    }
                }
                (_, change) => {
                    if let Some(change) = partly(change, loss, chance) {
                        self.keep_content(id, &change);
                    }
                }
            }
        }
    }
}

/// The parts of a write that a device writes each as a whole, with their offsets.
fn sectors(mut offset: usize, mut octets: &[u8]) -> Vec<(usize, &[u8])> {
    let mut parts = Vec::new();
    while !octets.is_empty() {
        let (part, rest) = octets.split_at(octets.len().min(512 - offset % 512));
        parts.push((offset, part));
        offset += part.len();
        octets = rest;
    }
    parts
}

/// What is left of a change of a file.
fn partly(change: Content, loss: Loss, chance: &mut Chance) -> Option<Content> {
    let fate = match loss {
        Loss::All | Loss::Octets => 0,
        Loss::Zeros => 2,
        Loss::Halves => 3,
        Loss::Chance(_) => chance.of(4),
        Loss::Sectors(_) => chance.of(2),
        _ => 1,
    };
    match (fate, change) {
        (0, _) => None,
        (2, Content::Write(offset, octets)) => Some(Content::Write(offset, vec![0; octets.len()])),
        (3, Content::Write(offset, octets)) => {
            let half = octets.len() / 2;
            Some(Content::Write(offset, octets[..half].to_vec()))
        }
        (_, change) => Some(change),
    }
}

/// Numbers that look drawn (splitmix64).
struct Chance(u64);

impl Chance {
    fn of(&mut self, outcomes: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % outcomes
    }
}
