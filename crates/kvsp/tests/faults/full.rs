//! A device that fills up under a holder.

use std::io::Write as _;

use crate::filesystem::on_small_filesystem;
use crate::support::{Process, block_path, container, files};

fn contents(n: u64) -> Vec<u8> {
    container(0, 4, 32 << 10, n)
}

#[test]
fn a_full_device_refuses_puts_and_nothing_else() {
    on_small_filesystem("full::a_full_device_refuses_puts_and_nothing_else", 16, |place, own| {
        if !own {
            eprintln!("a device cannot be filled without a file system of its own: not tried");
            return;
        }
        let logs = tempfile::TempDir::new().unwrap();
        let tier = place.join("tier");
        // The cap is beyond what the device has, and host memory does not hide the disk.
        let args =
            ["holder", "--disk-dir", tier.to_str().unwrap(), "--disk-octets", "64MiB", "--host-octets", "0"];
        let mut holder = Process::serve(logs.path(), &args);
        for n in 0..8 {
            assert_eq!(holder.put_block(&block_path(n), &contents(n)).status, 201);
        }
        let filler = place.join("filler");
        fill(&filler);
        for n in 8..12 {
            let answer = holder.put_block(&block_path(n), &contents(n));
            assert_eq!((answer.status, answer.problem().as_str()), (507, "kvsp-storage-full"));
            assert_eq!(holder.get(&block_path(n)).status, 404, "what was refused is not there");
        }
        let left = files(&tier.join("tmp"));
        assert!(left.is_empty(), "temporary files stay: {left:?}");
        for n in 0..8 {
            assert_eq!(holder.get(&block_path(n)).body, contents(n), "reads go on");
        }
        // Deletes go on, also of what would free room.
        assert_eq!(holder.send("DELETE", &block_path(7), &[], b"").status, 204);
        assert_eq!(holder.put_block(&block_path(7), &contents(70)).status, 201, "a freed block's room");
        std::fs::remove_file(&filler).unwrap();
        for n in 8..12 {
            assert_eq!(holder.put_block(&block_path(n), &contents(n)).status, 201);
        }
        holder.kill();
        let holder = Process::serve(logs.path(), &args);
        for n in (0..7).chain(8..12) {
            assert_eq!(holder.get(&block_path(n)).body, contents(n));
        }
        assert_eq!(holder.get(&block_path(7)).body, contents(70));
    });
}

/// Writes until the device is full.
fn fill(path: &std::path::Path) {
    let mut file = std::fs::File::create(path).unwrap();
    for size in [1 << 20, 4096] {
        while file.write_all(&vec![0xAB; size]).is_ok() {}
    }
}
