//! The controller, a member or the leader is killed with SIGKILL at an exact message of a change of a map.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::cast::{Cast, DEADLINE_MS, OUTPUT, Settings, count, long_question};
use crate::group::{Shard, held, is_covered, reshard, reshard_whole, settled, shards, split, view};
use crate::oracle::Oracle;
use crate::relay::{Blow, Kind, Moment, Victim};
use crate::stream::{Event, Sampling, Stream, assert_equal, text};
use crate::support::{eventually, get};

/// So slow is a partial attention, so that a change begins and ends within an answer.
const DRAG: Duration = Duration::from_millis(2);

/// Which message of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Last,
}

/// Where a blow falls: all that the outcome of a change hangs on, the first few of every kind.
const BLOWS: [(Victim, Kind, Which, Moment); 16] = [
    // The controller before the commits, a member before its acknowledgement, the leader after it.
    (Victim::Controller, Kind::Commit, Which::First, Moment::Before),
    (Victim::Member, Kind::Plan, Which::First, Moment::Before),
    (Victim::Leader, Kind::Plan, Which::First, Moment::After),
    // The controller between the commits and after them, a member with its acknowledgement on its way.
    (Victim::Controller, Kind::Commit, Which::First, Moment::After),
    (Victim::Member, Kind::Plan, Which::Last, Moment::Unacknowledged),
    (Victim::Controller, Kind::Commit, Which::Last, Moment::After),
    (Victim::Member, Kind::Plan, Which::First, Moment::After),
    (Victim::Controller, Kind::Plan, Which::First, Moment::Before),
    (Victim::Controller, Kind::Plan, Which::Last, Moment::Unacknowledged),
    (Victim::Leader, Kind::Commit, Which::First, Moment::Before),
    (Victim::Member, Kind::Commit, Which::First, Moment::Before),
    (Victim::Member, Kind::Commit, Which::First, Moment::Unacknowledged),
    (Victim::Member, Kind::Commit, Which::Last, Moment::After),
    (Victim::Leader, Kind::Commit, Which::Last, Moment::After),
    (Victim::Leader, Kind::Plan, Which::Last, Moment::Unacknowledged),
    (Victim::Controller, Kind::Commit, Which::Last, Moment::Unacknowledged),
];

/// Random numbers, the same for the same seed.
struct Chance(u64);

impl Chance {
    fn of(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % n.max(1)
    }

    /// Another split of `0..end` over some of the instances, at any boundaries.
    fn split(&mut self, end: u64, instances: usize, before: &[Shard]) -> Vec<Shard> {
        loop {
            let members = 1 + usize::try_from(self.of(instances as u64)).unwrap();
            let mut who: Vec<usize> = (0..instances).collect();
            for at in (1..instances).rev() {
                who.swap(at, usize::try_from(self.of(at as u64 + 1)).unwrap());
            }
            let cuts: BTreeSet<u64> = (1..members).map(|_| 1 + self.of(end - 1)).collect();
            let starts = std::iter::once(0).chain(cuts.iter().copied());
            let ends = cuts.iter().copied().chain([end]);
            let shards: Vec<Shard> = starts.zip(ends).map(|(a, b)| a..b).zip(who).collect();
            if shards != before {
                return shards;
            }
        }
    }
}

fn instances_of(shards: &[Shard]) -> BTreeSet<usize> {
    shards.iter().map(|(_, at)| *at).collect()
}

/// A fleet, a question whose prompt is split, and the answer that nothing interrupts.
pub(crate) struct Hall {
    pub(crate) cast: Cast,
    pub(crate) question: serde_json::Value,
    whole: Vec<Event>,
    oracle: Oracle,
    pub(crate) prompt: u64,
    /// How long the split answer takes that nothing interrupts.
    took: Duration,
}

impl Hall {
    /// The undisturbed answer is that of a single instance, and that of three is the same.
    pub(crate) async fn open(sampling: Sampling) -> Self {
        Self::open_with(sampling, &Settings::split(1)).await
    }

    /// The same, with one instance in the beginning and other settings.
    pub(crate) async fn open_with(sampling: Sampling, settings: &Settings) -> Self {
        let mut cast = Cast::start(settings).await;
        let question = long_question(sampling);
        let prompt = question["prompt"].as_str().unwrap().len() as u64;
        let alone = cast.ask(&question).await;
        assert!(view(&cast, &alone.session()).await.is_none(), "one instance is no group");
        let whole = alone.whole().await;
        assert_eq!(whole.last().unwrap().tokens(), OUTPUT, "the answer is shorter than it should be");
        for _ in 0..2 {
            cast.add_instance();
        }
        cast.all_active().await;
        cast.plan.drag(DRAG);
        let begin = Instant::now();
        let stream = cast.ask(&question).await;
        assert!(view(&cast, &stream.session()).await.is_some(), "three instances are a group");
        let heard = stream.whole().await;
        let took = begin.elapsed();
        let oracle = Oracle::of(&question);
        let hall = Self { cast, question, whole, oracle, prompt, took };
        hall.hold(&heard, "split over three");
        hall
    }

    /// Holds an answer to the one that nothing interrupted: equal, but from a place on where two tokens are as good; at
    /// how many tokens it took the other way.
    pub(crate) fn hold(&self, heard: &[Event], what: &str) -> usize {
        let said = text(heard);
        if said == text(&self.whole) || !said.is_ascii() {
            assert_equal(heard, &self.whole, what);
            return 0;
        }
        let tokens: Vec<u32> = said.bytes().map(u32::from).collect();
        assert_eq!(heard.last().unwrap().tokens(), tokens.len() as u64, "{what}: {said:?}");
        self.oracle.hold(&tokens, what)
    }

    /// Waits for the blow; the victim's process, or `None` where the answer was over first.
    pub(crate) async fn struck(&self, map: &str) -> Option<u32> {
        eventually("the blow", async || {
            if let Some(process) = self.cast.plan.struck() {
                return Some(Some(process));
            }
            // The controller is alive, or it has been struck.
            let session = format!("sessions/{map}");
            let over = match kvsp_view(&self.cast, &session).await {
                Some(state) => state != "running" && state != "resuming",
                None => false,
            };
            if over { Some(self.cast.plan.struck()) } else { None }
        })
        .await
    }

    /// Who was killed is started again; an instance either at once or once it is known to be gone.
    async fn revive(&mut self, process: u32, late: bool) {
        if process == self.cast.controller.id() {
            self.cast.revive_controller();
            return;
        }
        let is = |instance: &crate::cast::Instance| instance.process.id() == process;
        let at = self.cast.instances.iter().position(is).expect("one of the fleet was killed");
        if late {
            let base = self.cast.instances[at].base();
            eventually("the end of a status", async || {
                let list = get(&self.cast.controller.base(), "instances").await.ok();
                let mut views = list["instances"].as_array().unwrap().iter();
                let active = views.any(|view| view["instance"] == base.as_str() && view["state"] == "active");
                (!active).then_some(())
            })
            .await;
        }
        self.cast.revive(at);
    }
}

/// The state of a session where there is a controller to tell it.
async fn kvsp_view(cast: &Cast, path: &str) -> Option<String> {
    let request = http::Request::get("/").body(bytes::Bytes::new()).unwrap();
    let answer = crate::support::client().forward(&cast.controller.base(), path, request).await.ok()?;
    let (_, mut body) = answer.into_parts();
    let mut octets = Vec::new();
    while let Some(chunk) = body.chunk().await.ok()? {
        octets.extend_from_slice(&chunk);
    }
    let view: serde_json::Value = serde_json::from_slice(&octets).ok()?;
    view["state"].as_str().map(str::to_owned)
}

/// One answer, in the middle of which a change of its map is struck.
struct Case {
    blow: (Victim, Kind, Which, Moment),
    /// Tokens after which the change begins.
    after: u64,
    /// Whether a killed instance comes again only once it is known to be gone.
    late: bool,
}

/// What became of it.
struct Outcome {
    struck: bool,
    /// How much longer the answer took than one that nothing interrupts.
    longer: Duration,
    /// What the answer showed.
    checked: Checked,
}

/// What an answer showed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checked {
    /// Whether it still went on when its map was settled, so that the owners could be asked for what they hold.
    pub(crate) covered: bool,
    /// Tokens that are others, and as good.
    pub(crate) others: usize,
}

impl Hall {
    /// What became of the answer.
    async fn strike(&mut self, chance: &mut Chance, case: &Case, what: &str) -> Outcome {
        let begin = Instant::now();
        let mut stream = self.cast.ask(&self.question).await;
        let map = stream.session();
        let (first, mut before) = split(&self.cast, &map).await;
        let mut version = first["version"].as_u64().unwrap();
        let end = before.last().unwrap().0.end;
        stream.until(case.after).await;
        // Every other change is not the first one.
        if chance.of(2) == 0 {
            let shards = chance.split(end, self.cast.instances.len(), &before);
            if let Some(view) = reshard_whole(&self.cast, &map, (version, &shards)).await {
                (version, before) = (view["version"].as_u64().unwrap(), self::shards(&self.cast, &view));
            }
        }
        let leader = self.cast.serving(&map).await;
        let next = chance.split(end, self.cast.instances.len(), &before);
        let told = instances_of(&before).union(&instances_of(&next)).count() as u64;
        let (victim, kind, which, moment) = case.blow;
        let message = if which == Which::First { 1 } else { told };
        let blow = Blow { kind, message, moment, victim };
        self.cast.plan.arm(Some(blow), self.cast.instances[leader].process.id());
        let answer = reshard(&self.cast, &map, (version, &next), DEADLINE_MS).await;
        let what = format!("{what}: {before:?} of {version} to {next:?}, led by {leader}");
        assert!(matches!(answer.status, 202 | 404), "{what}: {answer:?}");
        let struck = self.struck(&map).await;
        if let Some(process) = struck {
            self.revive(process, case.late).await;
        }
        self.cast.plan.arm(None, 0);
        let checked = self.check(&map, stream, &what).await;
        let longer = begin.elapsed().saturating_sub(self.took);
        self.cast.all_active().await;
        Outcome { struck: struck.is_some(), longer, checked }
    }

    /// The map settles with the whole prompt at its owners while the answer goes on, and the answer is the one that
    /// nothing interrupts.
    pub(crate) async fn check(&self, map: &str, stream: Stream, what: &str) -> Checked {
        let mut covered = false;
        if let Some(view) = settled(&self.cast, map).await {
            assert!(view["version"].as_u64() >= Some(1), "{what}: {view}");
            // The last token of the prompt is the first step of decoding.
            covered = is_covered(&self.cast, map, self.prompt - 1).await;
        }
        Checked { covered, others: self.hold(&stream.whole().await, what) }
    }

    /// Waits until no member holds anything of a map whose session is over.
    pub(crate) async fn is_forgotten(&self, map: &str) {
        eventually("the end of a map at every member", async || {
            for instance in &self.cast.instances {
                if !held(&instance.base(), map).await.is_empty() {
                    return None;
                }
            }
            view(&self.cast, map).await.is_none().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn killed_in_the_middle_of_a_change() {
    let kills = count("KVSP_RESHARD_KILLS", 6);
    let mut hall = Hall::open(Sampling::Greedy).await;
    let mut chance = Chance(8);
    let mut done = [0_u64; 3];
    let (mut delays, mut others, mut covered) = (Vec::new(), 0, 0);
    for n in 0..kills {
        let blow = BLOWS[usize::try_from(n).unwrap() % BLOWS.len()];
        let case = Case { blow, after: 4 + chance.of(OUTPUT / 4), late: chance.of(2) == 0 };
        let what = format!("kill {n} of {kills}, {blow:?} after token {}", case.after);
        let outcome = hall.strike(&mut chance, &case, &what).await;
        others += outcome.checked.others;
        covered += u64::from(outcome.checked.covered);
        if outcome.struck {
            let kind = match blow.0 {
                Victim::Controller => 0,
                Victim::Leader => 1,
                _ => 2,
            };
            done[kind] += 1;
            delays.push(outcome.longer);
        }
    }
    delays.sort();
    let all: u64 = done.iter().sum();
    println!(
        "{all} of {kills} changes of a map were struck ({} by the death of the controller, {} of the leader, {} of another \
         member); no range lost ({covered} times every position was asked for at its owner), the text unchanged but for {others} tokens where two lay too close; such an answer took {:?} \
         longer (median), at most {:?}",
        done[0],
        done[1],
        done[2],
        delays.get(delays.len() / 2).unwrap_or(&Duration::ZERO),
        delays.last().unwrap_or(&Duration::ZERO),
    );
    assert!(all * 4 >= kills * 3, "{all} of {kills} changes were struck");
}
