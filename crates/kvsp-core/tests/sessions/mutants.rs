//! The checks checked: a driver that leaves a step out is found out, by the rule that the step is there for.

use crate::oracle::Violation;
use crate::world::{Mutant, run};

/// Seeds until the first violation.
fn caught(mutant: Mutant) -> Violation {
    const MOST: u64 = 60;
    let found = (0..MOST).find_map(|seed| run(seed, 1_500, Some(mutant)).1.err());
    found.unwrap_or_else(|| panic!("{mutant:?} was not caught in {MOST} runs"))
}

#[test]
fn an_acknowledgement_before_the_write_is_caught() {
    let violation = caught(Mutant::AckBeforePersist);
    assert!(matches!(violation, Violation::AckLost { .. }), "{violation:?}");
}

#[test]
fn an_epoch_that_is_not_durable_is_caught() {
    let violation = caught(Mutant::EpochNotDurable);
    let right = matches!(
        violation,
        Violation::SharedEpoch { .. } | Violation::EpochFell { .. } | Violation::OldEpochAccepted { .. }
    );
    assert!(right, "{violation:?}");
}

#[test]
fn an_epoch_that_is_not_raised_on_a_second_attempt_is_caught() {
    let violation = caught(Mutant::EpochNotRaisedAgain);
    assert!(matches!(violation, Violation::SharedEpoch { .. }), "{violation:?}");
}

#[test]
fn a_controller_without_an_epoch_check_is_caught() {
    let violation = caught(Mutant::NoEpochAtController);
    assert!(matches!(violation, Violation::OldEpochAccepted { .. }), "{violation:?}");
}

#[test]
fn a_front_end_without_an_epoch_check_is_caught() {
    let violation = caught(Mutant::NoEpochAtFront);
    assert!(matches!(violation, Violation::OldEpochAccepted { .. }), "{violation:?}");
}

#[test]
fn a_resume_that_serves_from_output_offset_is_caught() {
    let violation = caught(Mutant::ResumeAtOffset);
    assert!(matches!(violation, Violation::Gap { .. }), "{violation:?}");
}

#[test]
fn a_release_before_the_acknowledgement_is_caught() {
    let violation = caught(Mutant::ReleaseBeforeAck);
    assert!(matches!(violation, Violation::ReleasedEarly { .. }), "{violation:?}");
}
