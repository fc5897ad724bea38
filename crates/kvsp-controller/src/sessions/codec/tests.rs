use kvsp_core::session::{Change, CheckpointHead, Head, Progress, SEGMENT_TOKENS};
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::SessionState;
use kvsp_proto::record::SamplerState;
use kvsp_proto::registry::SamplerMethod;
use kvsp_store::state::{MemoryState, RowChange, StateStore};
use serde_json::json;
use uuid::Uuid;

use super::*;

fn head(session: u128, keys: usize) -> Head {
    Head {
        session: Uuid::from_u128(session),
        epoch: 3,
        instance: "https://i1.example/kvsp/".parse().unwrap(),
        instance_epoch: 12,
        instance_ttl_ms: 3_000,
        owner: "https://c1.example/".to_owned(),
        scope_id: "5c".repeat(16).parse().unwrap(),
        compat_id: "2c".repeat(32).parse().unwrap(),
        state: SessionState::Running,
        reason: None,
        tokens: 34,
        block_keys: vec![BlockKey([7; 32]); keys],
        continuation: Some(json!({"max_tokens": 9})),
        checkpoint: Some(CheckpointHead {
            prompt_blocks: vec![BlockKey([8; 32])],
            prompt_tail: vec![374, 264],
        }),
        final_offset: 0,
    }
}

fn progress(output_offset: u64) -> Progress {
    let params = json!({"p": 0.9}).as_object().cloned().unwrap();
    let sampler = SamplerState {
        method: SamplerMethod::TopP,
        params,
        seed: 7,
        step: output_offset,
        deterministic: false,
    };
    Progress { epoch: 2, output_offset, sampler }
}

fn tokens(session: u128, segment: u32, count: usize) -> Change {
    let first = segment * SEGMENT_TOKENS as u32;
    let tokens = (first..first + count as u32).collect();
    Change::Tokens { session: Uuid::from_u128(session), segment, tokens }
}

/// Commits changes as the driver does.
struct Writer {
    store: MemoryState,
    heads: std::collections::BTreeMap<Uuid, u32>,
}

impl Writer {
    fn new() -> Self {
        Self { store: MemoryState::new(), heads: std::collections::BTreeMap::new() }
    }

    fn commit(&mut self, changes: &[Change]) {
        let mut heads = HeadRows::of(changes, |session| self.heads.get(&session).copied().unwrap_or(0));
        self.store.commit(&rows(changes, &mut heads).unwrap()).unwrap();
        self.heads.extend(heads.iter());
    }

    fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut each = |key: &[u8], _: &[u8]| {
            keys.push(key.to_vec());
            Ok(())
        };
        self.store.scan(&[], &mut each).unwrap();
        keys
    }
}

#[test]
fn what_was_written_is_read_again() {
    let mut writer = Writer::new();
    let progressed =
        |session, offset| Change::Progress { session: Uuid::from_u128(session), progress: progress(offset) };
    writer.commit(&[Change::Head(Box::new(head(2, 3)))]);
    writer.commit(&[Change::Head(Box::new(head(1, 0)))]);
    writer.commit(&[progressed(1, 70), tokens(1, 0, 64), tokens(1, 1, 6)]);
    writer.commit(&[progressed(1, 72), tokens(1, 1, 8)]);
    let restored = restore(&writer.store).unwrap();
    assert_eq!(restored.len(), 2);
    assert_eq!(restored[0].stored.head, head(1, 0));
    assert_eq!(restored[0].stored.progress, Some(progress(72)));
    assert_eq!(restored[0].stored.tokens, (0..72).collect::<Vec<_>>());
    assert_eq!((&restored[1].stored.head, restored[1].stored.progress.as_ref()), (&head(2, 3), None));
    assert_eq!((restored[0].head_rows, restored[1].head_rows), (1, 1));
}

#[test]
fn a_long_head_takes_several_rows_and_a_shorter_one_leaves_none_over() {
    let mut writer = Writer::new();
    writer.commit(&[Change::Head(Box::new(head(1, 20_000)))]);
    let restored = restore(&writer.store).unwrap().remove(0);
    assert_eq!(restored.stored.head, head(1, 20_000));
    assert!(restored.head_rows > 3, "{}", restored.head_rows);
    writer.commit(&[Change::Head(Box::new(head(1, 5)))]);
    let restored = restore(&writer.store).unwrap().remove(0);
    assert_eq!((restored.stored.head, restored.head_rows), (head(1, 5), 1));
}

#[test]
fn what_is_erased_leaves_the_tombstone_or_nothing() {
    let mut writer = Writer::new();
    let session = Uuid::from_u128(1);
    writer.commit(&[Change::Head(Box::new(head(1, 20_000)))]);
    writer.commit(&[Change::Progress { session, progress: progress(70) }, tokens(1, 0, 64), tokens(1, 1, 6)]);
    let tombstone = Head {
        state: SessionState::Done,
        checkpoint: None,
        continuation: None,
        final_offset: 70,
        ..head(1, 0)
    };
    let erase = |tombstone: Option<&Head>, segments| Change::Erase {
        session,
        segments,
        tombstone: tombstone.cloned().map(Box::new),
    };
    writer.commit(&[erase(Some(&tombstone), 2)]);
    let restored = restore(&writer.store).unwrap().remove(0).stored;
    assert_eq!((restored.head, restored.progress, restored.tokens), (tombstone, None, vec![]));
    assert_eq!(writer.keys().len(), 1);
    // A new session takes the place of one that was done, in one write.
    writer.commit(&[erase(None, 0), Change::Head(Box::new(head(2, 1)))]);
    let restored = restore(&writer.store).unwrap();
    assert_eq!(restored.len(), 1);
    assert_eq!(restored[0].stored.head, head(2, 1));
    assert_eq!(writer.keys().len(), 1);
}

#[test]
fn the_rows_have_a_form_that_stays() {
    let session = Uuid::from_u128(0x0102);
    let changes = [
        Change::Progress { session, progress: progress(2) },
        Change::Tokens { session, segment: 1, tokens: vec![1, 0xaabb_ccdd] },
    ];
    let got = rows(&changes, &mut HeadRows::default()).unwrap();
    let key = |table: u8, row: [u8; 4]| [&[table][..], session.as_bytes(), &row].concat();
    let progress = "\u{1}{\"epoch\":2,\"output_offset\":2,\"sampler\":{\"method\":\"top-p\",\"params\":{\"p\":0.9},\
                    \"seed\":7,\"step\":2,\"deterministic\":false}}";
    assert_eq!(got[0], RowChange::set(key(2, [0; 4]), progress.as_bytes().to_vec()));
    let tokens = vec![1, 0, 0, 0, 1, 0xaa, 0xbb, 0xcc, 0xdd];
    assert_eq!(got[1], RowChange::set(key(3, [0, 0, 0, 1]), tokens));
    let mut heads = HeadRows::of(&[Change::Head(Box::new(head(1, 1)))], |_| 0);
    let got = rows(&[Change::Head(Box::new(head(1, 1)))], &mut heads).unwrap();
    let text = String::from_utf8(got[0].value.clone().unwrap().to_vec()).unwrap();
    let want = format!(
        "\u{1}{{\"session\":\"00000000-0000-0000-0000-000000000001\",\"epoch\":3,\
         \"instance\":\"https://i1.example/kvsp/\",\"instance_epoch\":12,\"instance_ttl_ms\":3000,\
         \"owner\":\"https://c1.example/\",\"scope_id\":\"{}\",\"compat_id\":\"{}\",\"state\":\"running\",\
         \"tokens\":34,\"block_keys\":[\"{}\"],\"continuation\":{{\"max_tokens\":9}},\
         \"checkpoint\":{{\"prompt_blocks\":[\"{}\"],\"prompt_tail\":[374,264]}},\"final_offset\":0}}",
        "5c".repeat(16),
        "2c".repeat(32),
        "07".repeat(32),
        "08".repeat(32)
    );
    assert_eq!(text, want);
}

#[test]
fn what_is_not_of_its_form_is_refused() {
    let key = |table: u8, rest: &[u8]| [&[table][..], rest].concat();
    let id = *Uuid::from_u128(1).as_bytes();
    let row = |number: u32| [&id[..], &number.to_be_bytes()].concat();
    let good = || {
        let mut writer = Writer::new();
        writer.commit(&[Change::Head(Box::new(head(1, 1)))]);
        let progress = Change::Progress { session: Uuid::from_u128(1), progress: progress(2) };
        writer.commit(&[progress, tokens(1, 0, 2)]);
        writer.store
    };
    assert!(restore(&good()).is_ok());
    let cases = [
        ("form 2", RowChange::set(key(1, &row(0)), vec![2, b'{', b'}'])),
        ("form 0", RowChange::set(key(3, &row(0)), vec![0])),
        ("table 9", RowChange::set(key(9, &row(0)), vec![1])),
        ("too short", RowChange::set(key(1, &id[..9]), vec![1])),
        ("key is not", RowChange::set(key(1, &[&row(1)[..], &[0]].concat()), vec![1])),
        ("a row is missing", RowChange::set(key(3, &row(2)), vec![1])),
        ("is empty", RowChange::set(key(2, &row(0)), vec![])),
        ("its head", RowChange::set(key(1, &row(0)), b"\x01{}".to_vec())),
        ("its head", RowChange::remove(key(1, &row(0)))),
        ("its progress", RowChange::set(key(2, &row(0)), b"\x01{}".to_vec())),
        ("not whole", RowChange::set(key(3, &row(0)), vec![1, 0, 0, 0])),
    ];
    for (why, change) in cases {
        let store = good();
        store.commit(&[change]).unwrap();
        let error = restore(&store).expect_err(why).to_string();
        assert!(error.contains(why), "{error} for {why}");
    }
}

#[test]
fn a_head_belongs_to_its_key() {
    let mut writer = Writer::new();
    writer.commit(&[Change::Head(Box::new(head(1, 1)))]);
    let value = [&[1][..], &serde_json::to_vec(&head(2, 1)).unwrap()].concat();
    writer.store.commit(&[RowChange::set(Table::Head.key(Uuid::from_u128(1), 0), value)]).unwrap();
    assert!(restore(&writer.store).unwrap_err().to_string().contains("another session"));
}

#[test]
fn more_or_fewer_tokens_than_the_progress_tells_are_for_the_machine_to_judge() {
    let mut writer = Writer::new();
    writer.commit(&[Change::Head(Box::new(head(1, 1)))]);
    writer
        .commit(&[Change::Progress { session: Uuid::from_u128(1), progress: progress(3) }, tokens(1, 0, 9)]);
    assert_eq!(restore(&writer.store).unwrap()[0].stored.tokens.len(), 9);
    writer.commit(&[tokens(1, 0, 1)]);
    assert_eq!(restore(&writer.store).unwrap()[0].stored.tokens.len(), 1);
}
