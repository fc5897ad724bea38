//! CPU time of the server for publishing, one by one and in batches.

use std::cell::RefCell;
use std::rc::Rc;

use indicatif::ProgressBar;

use super::super::child::{Limit, Service, address_of};
use super::super::contest::Contest;
use super::super::error::BenchError;
use super::super::goal::Goal;
use super::super::limits::NO_CONTENT;
use super::super::measure::Sample;
use super::super::report::Bench;
use super::super::wire::Wire;
use super::{lookup, records};

/// Records of a batch.
const BATCH: usize = 1000;

pub(super) fn measure(quick: bool, bar: &ProgressBar, bench: &mut Bench) -> Result<(), BenchError> {
    let (singles, batches, rounds) = if quick { (50, 1, 3) } else { (1000, 8, 15) };
    let (index, floor) = (lookup::index()?, Limit::start(NO_CONTENT)?);
    let known = singles.max(batches * BATCH);
    records::fill(&index, known)?;
    let (address, clock) = (address_of(index.base())?, Some(index.clock()));
    let puts = (0..singles).map(|block| records::put(&index, block)).collect::<Result<Vec<_>, _>>()?;
    let mut contest = Contest::default();

    let mut each = |name: &str, address, clock| {
        let (mut wire, puts) = (Wire::connect(address, 1 << 16)?, &puts);
        Ok::<_, BenchError>(contest.enter(name, clock, move || {
            for request in puts {
                wire.send(request)?;
                wire.http()?.good("a PUT")?;
            }
            Ok(())
        }))
    };
    let single = each("PUT of one record that is known", address, clock)?;
    let bare = each("the same to hyper that answers 204", floor.address(), Some(floor.clock()))?;

    let refreshes = batches_from(&index, 0, batches)?;
    let mut wire = Wire::connect(address, 1 << 20)?;
    let refresh = contest.enter(format!("batches of {BATCH} records that are known"), clock, move || {
        for request in &refreshes {
            wire.send(request)?;
            records::good_batch(&mut wire)?;
        }
        Ok(())
    });
    // Other ones in each round: made before they are measured, and sent once.
    let fresh = Rc::new(RefCell::new(batches_from(&index, known, batches)?));
    let (mut other, sent) = (Wire::connect(address, 1 << 20)?, Rc::clone(&fresh));
    let first = contest.enter(format!("batches of {BATCH} records that are new"), clock, move || {
        for request in sent.borrow().iter() {
            other.send(request)?;
            records::good_batch(&mut other)?;
        }
        Ok(())
    });
    let (mut next, at) = (known, &index);
    contest.after(first, move || {
        next += batches * BATCH;
        *fresh.borrow_mut() = batches_from(at, next, batches)?;
        Ok(())
    });

    let results = contest.run(rounds, bar, "index-http, publishing")?;
    let (singles, batched) = (singles as f64, (batches * BATCH) as f64);
    bench.figures.push(results[single].server_rate(singles, "records/s"));
    bench.figures.push(results[bare].server_rate(singles, "requests/s"));
    let serving = |sample: &Sample| sample.server_cpu_s;
    // The other way round than a ratio of CPU time: how many for the same.
    let ratio = results[bare].cpu_ratio(
        "PUT of one record / hyper that answers 204",
        &[&results[single]],
        serving,
        serving,
    );
    bench.figures.push(ratio.should_be(Goal::AtLeast(0.65)));
    for entrant in [refresh, first] {
        let figure = results[entrant].server_rate(batched, "records/s");
        bench.figures.push(figure.should_be(Goal::AtLeast(150_000.0)));
    }
    bench.notes.push(
        "publishing: one connection, one request at a time, both ends on one core; a record has 32 layer digests \
         and 2.6 KB as JSON"
            .to_owned(),
    );
    Ok(())
}

/// Batches of the blocks from `first` on.
fn batches_from(index: &Service, first: usize, batches: usize) -> Result<Vec<Vec<u8>>, BenchError> {
    let firsts = (0..batches).map(|batch| first + batch * BATCH);
    firsts.map(|first| records::batch(index, first..first + BATCH)).collect()
}
