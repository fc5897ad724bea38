//! Measures how many rows a sealed state store makes durable, beside what the device syncs at all.
//!
//! `cargo run --release -p kvsp-store --example commits -- DIR [SECONDS]` uses a new directory in DIR and leaves it.

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvsp_store::state::{
    GroupBounds, GroupCommit, MemoryState, RedbConfig, RowChange, StateStore, open_sealed,
};
use tokio::task::JoinSet;

/// Octets of a value, as of a session's segment of tokens.
const VALUE_OCTETS: usize = 200;
/// Sessions that have rows, of which those of the waiters change.
const SESSIONS: u64 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: commits DIR [SECONDS]")?);
    let time = Duration::from_secs(arguments.next().map_or(Ok(2), |text| text.parse())?);
    let dir = dir.join(format!("commits-{}", std::process::id()));
    fs::create_dir(&dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let memory: Arc<dyn StateStore> = Arc::new(MemoryState::new());
    runtime.block_on(measure("memory", memory, 64, 1, time))?;
    let store: Arc<dyn StateStore> = Arc::new(open_sealed(&dir.join("state"), None, RedbConfig::default())?);
    let all: Vec<_> = (0..SESSIONS).flat_map(|session| [row(1, session, 0), row(2, session, 0)]).collect();
    store.commit(&all)?;
    for (waiters, rows) in [(1, 1), (64, 1), (64, 2), (256, 1)] {
        sync_bare(&dir, time / 4)?;
        runtime.block_on(measure("sealed", store.clone(), waiters, rows, time))?;
    }
    let before = Instant::now();
    let session: Vec<_> = (0..2048_u64).map(|at| row(3, at, 0)).collect();
    store.commit(&session)?;
    println!("2048 rows set in {:.1} ms", before.elapsed().as_secs_f64() * 1e3);
    let before = Instant::now();
    store.commit(&session.into_iter().map(|row| RowChange::remove(row.key)).collect::<Vec<_>>())?;
    println!("2048 rows removed in {:.1} ms", before.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

/// Identifiers are as far apart as drawn ones.
fn row(table: u8, session: u64, filled: u8) -> RowChange {
    let id = u128::from(session).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    RowChange::set([&[table][..], &id.to_be_bytes()].concat(), vec![filled; VALUE_OCTETS])
}

/// One page overwritten and synced at a time.
fn sync_bare(dir: &Path, time: Duration) -> Result<(), Box<dyn Error>> {
    let file = File::create(dir.join("bare"))?;
    file.write_all_at(&[1; 4096], 0)?;
    file.sync_all()?;
    let (begin, mut syncs) = (Instant::now(), 0_u32);
    while begin.elapsed() < time {
        file.write_all_at(&[syncs as u8; 4096], 0)?;
        file.sync_data()?;
        syncs += 1;
    }
    println!("bare: {:.0} syncs/s", f64::from(syncs) / begin.elapsed().as_secs_f64());
    Ok(())
}

async fn measure(
    name: &str,
    store: Arc<dyn StateStore>,
    waiters: u64,
    rows: u8,
    time: Duration,
) -> Result<(), Box<dyn Error>> {
    let (commit, thread) = GroupCommit::start(store, GroupBounds::default())?;
    let (begin, processor) = (Instant::now(), processor_time()?);
    let mut tasks = JoinSet::new();
    for session in 0..waiters {
        let commit = commit.clone();
        tasks.spawn(async move {
            let mut filled = 0_u8;
            while begin.elapsed() < time {
                filled = filled.wrapping_add(1);
                commit.commit((1..=rows).map(|table| row(table, session, filled)).collect()).await?;
            }
            Ok::<_, kvsp_store::state::StateError>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let (took, counts) = (begin.elapsed().as_secs_f64(), commit.counts());
    let processor = processor_time()?.saturating_sub(processor).as_secs_f64();
    println!(
        "{name}: {waiters} waiters, {rows} rows each: {:.0} rows/s in {:.0} transactions/s, {:.1} us of processor a row",
        counts.rows as f64 / took,
        counts.transactions as f64 / took,
        processor * 1e6 / counts.rows as f64,
    );
    drop(commit);
    thread.join();
    Ok(())
}

/// Of all threads that there are.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    let mut nanoseconds = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
