//! The checks checked: a driver that leaves a step out is found out, by the rule that the step is there for.

use crate::STEPS;
use crate::oracle::{Violation, Why};
use crate::world::{Mutant, run};

/// The violations of the first seeds, until there is one of those that are looked for.
fn caught(mutant: Mutant, right: impl Fn(&Violation) -> bool) {
    const MOST: u64 = 3000;
    let mut others = Vec::new();
    for seed in 0..MOST {
        match run(seed, STEPS, Some(mutant)).1 {
            Err(violation) if right(&violation) => return,
            Err(violation) => others.push(violation),
            Ok(()) => {}
        }
    }
    panic!("{mutant:?} was not caught by its rule in {MOST} runs, but: {others:?}");
}

#[test]
fn a_decision_only_in_memory_is_caught() {
    caught(Mutant::DecisionInMemory, |violation| {
        matches!(violation, Violation::NotDurable { .. } | Violation::TwoDecisions { .. })
    });
}

#[test]
fn a_member_that_aborts_alone_is_caught() {
    caught(Mutant::MemberAbortsAlone, |violation| {
        matches!(violation, Violation::DecidedAlone { commit: false, .. })
    });
}

#[test]
fn a_release_at_the_acknowledgement_is_caught() {
    caught(Mutant::ReleaseAtAck, |violation| matches!(violation, Violation::ReleasedEarly { .. }));
}

#[test]
fn a_retained_range_that_is_fetched_again_is_caught() {
    caught(Mutant::RetainedFetched, |violation| matches!(violation, Violation::RetainedMoved { .. }));
}

#[test]
fn a_restarted_members_old_acknowledgement_that_counts_is_caught() {
    caught(Mutant::OldAckCounted, |violation| matches!(violation, Violation::VoidAcknowledgement { .. }));
}

#[test]
fn a_commit_without_all_acknowledgements_is_caught() {
    caught(Mutant::CommitWithoutAllAcks, |violation| matches!(violation, Violation::NotAcknowledged { .. }));
}

/// After an abort the next plan leads to the same version. Messages that tell the version alone, as the draft's do,
/// count for the wrong one when they are late.
#[test]
fn plans_that_are_told_apart_by_their_version_alone_are_caught() {
    caught(Mutant::NoNumbers, |violation| {
        matches!(
            violation,
            Violation::LastCopy { .. }
                | Violation::ReleasedEarly { .. }
                | Violation::DecidedAlone { .. }
                | Violation::NotAcknowledged { .. }
        )
    });
}

#[test]
fn a_decision_that_lets_the_last_copy_go_is_caught() {
    caught(Mutant::NothingKept, |violation| {
        matches!(
            violation,
            Violation::LastCopyGivenUp { .. } | Violation::LastCopy { why: Why::Commit | Why::Abort, .. }
        )
    });
}

#[test]
fn a_leader_that_does_not_say_what_is_certain_is_caught() {
    caught(Mutant::NothingCertain, |violation| matches!(violation, Violation::WrongKeys { .. }));
}
