//! Containers that arrive piece by piece.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::header::{HEADER_OCTETS, Start};
use super::{ContainerError, Header, LayerSections, Limits, Malformed};

/// What a [`StreamParser`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEvent {
    /// A container's header is complete and within the limits.
    Header(Header),
    /// A layer is complete.
    Layer {
        /// Which one.
        layer: u32,
        /// Its sections.
        sections: LayerSections,
    },
    /// The container is complete.
    End,
}

/// Parses one container, or several back to back, as octets arrive: a receiver starts on layer l
/// while layer l + 1 is on its way (draft section 4.3).
///
/// After every [`push`](Self::push), call [`next_event`](Self::next_event) until it returns `None`;
/// then the parser holds less than one header, table or layer, within the limits, whatever arrives.
/// Nothing is allocated for octets that have not arrived.
#[derive(Debug)]
pub struct StreamParser {
    limits: Limits,
    sequence: bool,
    arrived: Arrived,
    state: State,
    failed: Option<ContainerError>,
}

#[derive(Debug)]
enum State {
    Start,
    Table(Start),
    Layer {
        header: Header,
        /// Index of the next layer in the header's table.
        index: usize,
    },
    Done,
}

impl StreamParser {
    /// For one container.
    #[must_use]
    pub fn single(limits: Limits) -> Self {
        Self { limits, sequence: false, arrived: Arrived::default(), state: State::Start, failed: None }
    }

    /// For any number of containers back to back, none included (extension `layer-stream`). The
    /// limits hold for each of them.
    #[must_use]
    pub fn sequence(limits: Limits) -> Self {
        Self { sequence: true, ..Self::single(limits) }
    }

    /// Takes in the octets that arrived next; large pieces are kept without copying.
    pub fn push(&mut self, octets: Bytes) {
        self.arrived.push(octets);
    }

    /// The next thing that is complete; `None` where more octets are needed.
    ///
    /// # Errors
    /// The octets are no container, or exceed a limit; from then on always the same error. A codec
    /// of 0 or 65535 is an error only once the rest of its container is found to be well-formed.
    pub fn next_event(&mut self) -> Result<Option<StreamEvent>, ContainerError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.advance().inspect_err(|error| self.failed = Some(*error))
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// The octets break off within a container, an event was not taken, or the error that
    /// [`next_event`](Self::next_event) returned.
    pub fn finish(&self) -> Result<(), ContainerError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let between =
            matches!(self.state, State::Done) || (self.sequence && matches!(self.state, State::Start));
        if between && self.arrived.total == 0 { Ok(()) } else { Err(Malformed::Missing.into()) }
    }

    fn advance(&mut self) -> Result<Option<StreamEvent>, ContainerError> {
        loop {
            match &mut self.state {
                State::Start => {
                    let Some(octets) = self.arrived.take(HEADER_OCTETS as u64) else { return Ok(None) };
                    let octets = octets.as_ref().try_into().map_err(|_| Malformed::Missing)?;
                    let start = Start::parse(octets)?;
                    start.check_limits(&self.limits)?;
                    self.state = State::Table(start);
                }
                State::Table(start) => {
                    let Some(table) = self.arrived.take(start.table_octets()) else { return Ok(None) };
                    let header = start.with_table(&table)?;
                    self.limits.check_octets(header.container_octets())?;
                    self.state = State::Layer { header: header.clone(), index: 0 };
                    return Ok(Some(StreamEvent::Header(header)));
                }
                State::Layer { header, index } => {
                    let Some(&(k, v)) = header.lengths().get(*index) else {
                        let codec = header.codec_number();
                        header.codec().ok_or(ContainerError::Codec(codec))?;
                        self.state = if self.sequence { State::Start } else { State::Done };
                        return Ok(Some(StreamEvent::End));
                    };
                    // The header's sum of all lengths did not overflow.
                    let Some(octets) = self.arrived.take(k + v) else { return Ok(None) };
                    let layer = header.layers().first() + *index as u32;
                    *index += 1;
                    let sections = LayerSections::split(&octets, k as usize);
                    return Ok(Some(StreamEvent::Layer { layer, sections }));
                }
                State::Done if self.arrived.total > 0 => return Err(Malformed::Trailing.into()),
                State::Done => return Ok(None),
            }
        }
    }
}

/// Octets that have arrived and are not taken yet.
#[derive(Debug, Default)]
struct Arrived {
    pieces: VecDeque<Bytes>,
    /// Small pieces, gathered: a peer that sends single octets must not cost a piece for each.
    tail: BytesMut,
    total: u64,
}

const SMALL_PIECE: usize = 4096;

impl Arrived {
    fn push(&mut self, octets: Bytes) {
        self.total += octets.len() as u64;
        if octets.len() < SMALL_PIECE {
            self.tail.extend_from_slice(&octets);
        } else {
            self.seal_tail();
            self.pieces.push_back(octets);
        }
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }

    /// The next `count` octets, all or none; copied only where they came in several pieces.
    fn take(&mut self, count: u64) -> Option<Bytes> {
        if count > self.total {
            return None;
        }
        self.total -= count;
        // Not more than has arrived, so it fits.
        let count = count as usize;
        if self.pieces.front().is_none_or(|front| front.len() < count) {
            self.seal_tail();
        }
        match self.pieces.front_mut() {
            Some(front) if front.len() > count => Some(front.split_to(count)),
            Some(front) if front.len() == count => self.pieces.pop_front(),
            Some(_) => Some(self.join(count)),
            None => Some(Bytes::new()),
        }
    }

    fn join(&mut self, count: usize) -> Bytes {
        let mut joined = BytesMut::with_capacity(count);
        while joined.len() < count {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            let more = piece.split_to(piece.len().min(count - joined.len()));
            joined.extend_from_slice(&more);
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        joined.freeze()
    }
}
