//! The front end's side: every index once, in order, of one chain (draft section 6.8, profile section 7).

use kvsp_proto::uri::BaseUri;

/// What became of a token that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is the next one: deliver it.
    New,
    /// It was delivered before, and is the same: drop it.
    Duplicate,
    /// It carries an epoch lower than one already seen: drop it, and the stream with it.
    Stale,
    /// Tokens before it are missing: connect again from [`Delivery::next`].
    Ahead,
}

/// A token differs from the one delivered at its index: two samples would be mixed, so the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the token of index {index} in epoch {epoch} differs from the one delivered")]
pub struct Mismatch {
    /// The output index.
    pub index: u64,
    /// The epoch that says otherwise.
    pub epoch: u64,
}

/// The output of one session as the client has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    epoch: u64,
    instance: BaseUri,
    tokens: Vec<u32>,
}

impl Delivery {
    /// Nothing delivered yet; `instance` serves `epoch`.
    #[must_use]
    pub const fn new(epoch: u64, instance: BaseUri) -> Self {
        Self { epoch, instance, tokens: Vec::new() }
    }

    /// A token that arrived. A higher epoch than the highest seen is taken up: from then on the lower ones
    /// are stale.
    ///
    /// # Errors
    /// [`Mismatch`] where another token was delivered at this index.
    pub fn token(&mut self, epoch: u64, index: u64, token: u32) -> Result<Taken, Mismatch> {
        if epoch < self.epoch {
            return Ok(Taken::Stale);
        }
        self.epoch = epoch;
        let delivered = usize::try_from(index).ok().and_then(|at| self.tokens.get(at));
        match delivered {
            Some(delivered) if *delivered == token => Ok(Taken::Duplicate),
            Some(_) => Err(Mismatch { index, epoch }),
            None if index == self.next() => {
                self.tokens.push(token);
                Ok(Taken::New)
            }
            None => Ok(Taken::Ahead),
        }
    }

    /// The controller names the instance of an epoch. Whether that is news: then connect there from
    /// [`Delivery::next`].
    pub fn raised(&mut self, epoch: u64, instance: BaseUri) -> bool {
        let news = epoch > self.epoch || (epoch == self.epoch && instance != self.instance);
        if news {
            self.epoch = epoch;
            self.instance = instance;
        }
        news
    }

    /// The index that is needed next.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// The output delivered.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The highest epoch seen.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The instance that serves it, as far as is known.
    #[must_use]
    pub const fn instance(&self) -> &BaseUri {
        &self.instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(n: u32) -> BaseUri {
        format!("http://i{n}/kvsp/").parse().unwrap()
    }

    #[test]
    fn every_index_is_delivered_once_and_in_order() {
        let mut delivery = Delivery::new(1, uri(1));
        assert_eq!(delivery.token(1, 1, 8), Ok(Taken::Ahead));
        assert_eq!(delivery.token(1, 0, 7), Ok(Taken::New));
        assert_eq!(delivery.token(1, 0, 7), Ok(Taken::Duplicate));
        assert_eq!(delivery.token(1, 1, 8), Ok(Taken::New));
        assert_eq!(delivery.token(1, u64::MAX, 8), Ok(Taken::Ahead));
        assert_eq!((delivery.tokens(), delivery.next()), (&[7, 8][..], 2));
    }

    #[test]
    fn lower_epochs_are_dropped_however_the_higher_one_was_learned() {
        let mut delivery = Delivery::new(1, uri(1));
        assert_eq!(delivery.token(2, 0, 7), Ok(Taken::New));
        assert_eq!(delivery.token(1, 1, 8), Ok(Taken::Stale));
        assert!(delivery.raised(3, uri(2)));
        assert!(!delivery.raised(3, uri(2)));
        assert!(!delivery.raised(2, uri(1)));
        assert_eq!(delivery.token(2, 1, 8), Ok(Taken::Stale));
        assert_eq!((delivery.epoch(), delivery.instance(), delivery.next()), (3, &uri(2), 1));
    }

    #[test]
    fn the_instance_of_an_epoch_learned_from_a_token_is_news() {
        let mut delivery = Delivery::new(1, uri(1));
        assert_eq!(delivery.token(2, 0, 7), Ok(Taken::New));
        assert!(delivery.raised(2, uri(2)));
        assert_eq!(delivery.instance(), &uri(2));
    }

    #[test]
    fn a_duplicate_that_differs_is_an_error_and_changes_nothing() {
        let mut delivery = Delivery::new(1, uri(1));
        assert_eq!(delivery.token(1, 0, 7), Ok(Taken::New));
        assert_eq!(delivery.token(2, 0, 8), Err(Mismatch { index: 0, epoch: 2 }));
        assert_eq!(delivery.tokens(), [7]);
    }
}
