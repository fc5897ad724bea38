//! Durable checkpoints of many sessions at a controller with its store on a device, beside what the device and
//! the server allow at best: bare synced writes, and a handler of the same server that answers at once.

mod device;
mod load;
mod script;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use super::child::{Limit, Service, address_of};
use super::contest::Contest;
use super::error::BenchError;
use super::goal::Goal;
use super::limits::ACKNOWLEDGE;
use super::measure::{Series, figure};
use super::report::Bench;
use crate::progress;
use device::Device;
use load::Load;
use script::{Script, Sessions};

/// Sessions, each with one checkpoint under way.
const SESSIONS: usize = 64;
/// The share of the lower limit that the controller should reach.
const SHARE: f64 = 0.5;

/// Measures checkpoints a second, and both limits. `dir` is on the device whose durability is meant.
pub(super) fn measure(quick: bool, dir: Option<&Path>) -> Result<Bench, BenchError> {
    const WHAT: &str = "the state directory";
    let (each, syncs, rounds) = if quick { (10, 20, 3) } else { (100, 200, 11) };
    let bar = progress::spinner("checkpoints".to_owned());
    let parent = dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let state = tempfile::Builder::new().prefix("kvsp-bench-").tempdir_in(&parent);
    let state = state.map_err(BenchError::io(WHAT))?;
    let mut device = Device::open(state.path())?;
    let store = state.path().join("store");
    let store = store.to_str().ok_or(BenchError::Answer(WHAT))?;
    let controller = Service::start("the controller", &["controller", "--state", store])?;
    let floor = Limit::start(ACKNOWLEDGE)?;
    let mut contest = Contest::default();

    let bare = contest.enter("one small record written and synced", None, || device.write(syncs));
    let sessions = Rc::new(RefCell::new(Sessions::begin(&controller, SESSIONS)?));
    let script: Rc<RefCell<Script>> = Rc::new(RefCell::new(sessions.borrow_mut().appends(each)?));

    let mut load = Load::connect(floor.address(), SESSIONS)?;
    let same = Rc::clone(&script);
    let name = format!("the same PATCH from {SESSIONS} connections, answered at once");
    let nothing = contest.enter(name, Some(floor.clock()), move || load.run(&same.borrow()));

    let mut load = Load::connect(address_of(controller.base())?, SESSIONS)?;
    let sent = Rc::clone(&script);
    let name = format!("durable checkpoints of {SESSIONS} sessions");
    let durable = contest.enter(name, Some(controller.clock()), move || load.run(&sent.borrow()));
    // Sessions of a round have ended before the next one: what is measured does not depend on how long they are.
    contest.after(durable, move || {
        let mut sessions = sessions.borrow_mut();
        sessions.renew()?;
        *script.borrow_mut() = sessions.appends(each)?;
        Ok(())
    });

    let results = contest.run(rounds, &bar, "checkpoints")?;
    bar.finish_and_clear();
    let counts = Counts { syncs: f64::from(syncs), requests: (SESSIONS * each) as f64 };
    let mut bench = counts.bench([bare, nothing, durable].map(|entrant| &results[entrant]));
    bench.notes.push(format!(
        "{SESSIONS} connections, each with one PATCH of one token under way; {} of them a round, {rounds} rounds in \
         turns after one to warm up; the client runs beside the server on all cores",
        SESSIONS * each
    ));
    bench.notes.push(format!(
        "the device is that of {} ({}); a bare write is {} octets appended to a file, and fdatasync",
        parent.display(),
        device::kind(state.path()),
        device::RECORD_OCTETS,
    ));
    Ok(bench)
}

/// Things done in a round.
struct Counts {
    syncs: f64,
    requests: f64,
}

impl Counts {
    fn bench(&self, [bare, nothing, durable]: [&Series; 3]) -> Bench {
        let rounds = || {
            let (bare, nothing) = (bare.rates(self.syncs), nothing.rates(self.requests));
            let least = bare.zip(nothing).map(|(bare, nothing)| (SESSIONS as f64 * bare).min(nothing));
            durable.rates(self.requests).zip(least)
        };
        let goal = format!("goal: {SHARE} x min({SESSIONS} x synced writes, answered at once)");
        let ratio = format!("checkpoints / min({SESSIONS} x synced writes, answered at once)");
        let figures = vec![
            bare.rate(self.syncs, "1/s"),
            nothing.rate(self.requests, "1/s"),
            nothing.cpu_us(self.requests, "the server", |sample| sample.server_cpu_s),
            durable.rate(self.requests, "1/s"),
            durable.cpu_us(self.requests, "the controller", |sample| sample.server_cpu_s),
            figure(goal, "1/s", rounds().map(|(_, least)| SHARE * least)),
            figure(ratio, "ratio", rounds().map(|(durable, least)| durable / least))
                .should_be(Goal::AtLeast(SHARE)),
        ];
        Bench { name: "checkpoints", figures, notes: Vec::new() }
    }
}
