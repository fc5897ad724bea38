//! A tree of directories and files in memory.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::{Component, Path};

/// Names a directory or file whatever its path.
pub(super) type Id = u64;

/// The directory `/`.
pub(super) const ROOT: Id = 0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Dir(BTreeMap<OsString, Id>),
    File(Vec<u8>),
}

#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<Id, Node>,
}

impl Default for Tree {
    /// `/` alone.
    fn default() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::Dir(BTreeMap::new()))]) }
    }
}

fn not_found() -> io::Error {
    ErrorKind::NotFound.into()
}

impl Tree {
    /// The node at a path, which is taken to start at `/`.
    pub(super) fn find(&self, path: &Path) -> io::Result<Id> {
        let mut at = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                at = *self.dir(at)?.get(name).ok_or_else(not_found)?;
            }
        }
        Ok(at)
    }

    /// The directory that a path's last name is in, and that name.
    pub(super) fn place<'a>(&self, path: &'a Path) -> io::Result<(Id, &'a OsStr)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        let parent = self.find(path.parent().unwrap_or(Path::new("/")))?;
        self.dir(parent)?;
        Ok((parent, name))
    }

    pub(super) fn dir(&self, id: Id) -> io::Result<&BTreeMap<OsString, Id>> {
        match self.nodes.get(&id) {
            Some(Node::Dir(names)) => Ok(names),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(not_found()),
        }
    }

    pub(super) fn file(&self, id: Id) -> io::Result<&Vec<u8>> {
        match self.nodes.get(&id) {
            Some(Node::File(octets)) => Ok(octets),
            Some(Node::Dir(_)) => Err(ErrorKind::IsADirectory.into()),
            None => Err(not_found()),
        }
    }

    /// A node without a name yet.
    pub(super) fn make(&mut self, id: Id, node: Node) {
        self.nodes.insert(id, node);
    }

    pub(super) fn link(&mut self, dir: Id, name: &OsStr, id: Id) {
        if let Some(Node::Dir(names)) = self.nodes.get_mut(&dir) {
            names.insert(name.to_owned(), id);
        }
    }

    /// Takes a name from what has it now; another that took the name since keeps it.
    pub(super) fn unlink(&mut self, dir: Id, name: &OsStr, id: Id) {
        if let Some(Node::Dir(names)) = self.nodes.get_mut(&dir)
            && names.get(name) == Some(&id)
        {
            names.remove(name);
        }
    }

    /// Writes into a file, which grows where it must.
    pub(super) fn write(&mut self, id: Id, octets: &[u8], offset: usize) {
        if let Some(Node::File(file)) = self.nodes.get_mut(&id) {
            let end = offset + octets.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            file[offset..end].copy_from_slice(octets);
        }
    }

    pub(super) fn set_length(&mut self, id: Id, octets: usize) {
        if let Some(Node::File(file)) = self.nodes.get_mut(&id) {
            file.resize(octets, 0);
        }
    }
}
