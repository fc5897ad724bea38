//! How long a holder with many blocks on disk takes to answer.

use std::time::Instant;

use crate::support::{Process, block_path, container, count, eventually};

#[test]
fn a_holder_with_many_blocks_answers_soon_after_its_start() {
    let dir = tempfile::TempDir::new().unwrap();
    let tier = dir.path().join("tier");
    let args = ["holder", "--disk-dir", tier.to_str().unwrap(), "--disk-octets", "4GiB"];
    let blocks = count("KVSP_CRASH_BLOCKS", 200);
    let mut holder = Process::serve(dir.path(), &args);
    std::thread::scope(|scope| {
        for part in 0..8 {
            let mut connection = holder.connect();
            scope.spawn(move || {
                for block in (part..blocks).step_by(8) {
                    let headers = [("content-type", "application/kvsp-block"), ("if-none-match", "*")];
                    let octets = container(0, 32, 64, block);
                    let answer = connection.send("PUT", &block_path(block), &headers, &octets).unwrap();
                    assert_eq!(answer.status, 201, "{answer:?}");
                }
            });
        }
    });
    holder.kill();
    let begin = Instant::now();
    let holder = Process::serve(dir.path(), &args);
    let answer = holder.get(&block_path(blocks - 1));
    let took = begin.elapsed().as_secs_f64();
    assert_eq!(answer.body, container(0, 32, 64, blocks - 1));
    println!(
        "{blocks} blocks on disk: {:.3} s to the ready line, {took:.3} s to the first GET",
        holder.took.as_secs_f64()
    );
    let known = eventually("all blocks are taken up", || {
        let held = holder.metric("kvsp_holder_blocks");
        (held == blocks).then_some(held)
    });
    assert_eq!(known, blocks);
}
