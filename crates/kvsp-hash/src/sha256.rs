//! SHA-256 of one message, and of a message and its segments in one pass.

use std::fmt;

use crate::kernel::Kernel;
use crate::stream::Stream;

/// The SHA-256 of `octets`.
#[must_use]
pub fn sha256(octets: &[u8]) -> [u8; 32] {
    sha256_parts([octets])
}

/// The SHA-256 of the concatenation of `parts`.
#[must_use]
pub fn sha256_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finish()
}

/// An incremental SHA-256. A clone forks the message.
#[derive(Clone)]
pub struct Sha256 {
    kernel: Kernel,
    stream: Stream,
}

impl Sha256 {
    /// Of a message without octets yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Kernel::best())
    }

    pub(crate) const fn with(kernel: Kernel) -> Self {
        Self { kernel, stream: Stream::new(kernel) }
    }

    /// Takes in more octets.
    pub fn update(&mut self, octets: &[u8]) {
        self.stream.update(self.kernel, octets);
    }

    /// The digest of everything taken in.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.stream.finish(self.kernel)
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sha256").finish_non_exhaustive()
    }
}

/// The digest of a whole message and those of its consecutive segments, in one pass over the octets: two
/// streams whose rounds alternate take little longer than one.
#[derive(Clone)]
pub struct Sweep {
    kernel: Kernel,
    whole: Stream,
    segment: Stream,
}

impl Sweep {
    /// Of a message without octets yet; its first segment has begun.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Kernel::best())
    }

    pub(crate) const fn with(kernel: Kernel) -> Self {
        Self { kernel, whole: Stream::new(kernel), segment: Stream::new(kernel) }
    }

    /// Takes in more octets of the message, which are of the present segment too.
    pub fn update(&mut self, octets: &[u8]) {
        Stream::update_both(self.kernel, &mut self.whole, &mut self.segment, octets);
    }

    /// Takes in more octets of the message that are of no segment: a header.
    pub fn update_whole_only(&mut self, octets: &[u8]) {
        self.whole.update(self.kernel, octets);
    }

    /// Ends the present segment, and begins the next: the digest of the one that ended.
    pub fn end_segment(&mut self) -> [u8; 32] {
        std::mem::replace(&mut self.segment, Stream::new(self.kernel)).finish(self.kernel)
    }

    /// The digest of the whole message.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.whole.finish(self.kernel)
    }
}

impl Default for Sweep {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweep").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
