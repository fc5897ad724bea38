use proptest::prelude::*;

use super::*;

const HEADS: usize = 3;
const HEAD_DIM: usize = 4;

/// Numbers that look random in −1..1.
fn number(i: usize) -> f64 {
    ((i.wrapping_mul(2_654_435_761) >> 7) % 2001) as f64 / 1000.0 - 1.0
}

fn queries(position: usize, rows: usize) -> Queries {
    let values = (0..rows * HEADS * HEAD_DIM).map(|i| 4.0 * number(i) as f32).collect();
    Queries { position, rows, heads: HEADS, head_dim: HEAD_DIM, values }
}

/// Attention over keys and values that are a function of their position, in double precision.
fn attend(queries: &Queries, keys: Range<usize>) -> Partial {
    let (mut out, mut all_lse) = (Vec::new(), Vec::new());
    for line in 0..queries.rows * HEADS {
        let last = queries.position + line / HEADS;
        let seen = keys.start..keys.end.min(last + 1);
        let q = &queries.values[line * HEAD_DIM..][..HEAD_DIM];
        let key = |p: usize, d: usize| number(p * 131 + d * 17 + line % HEADS + 5);
        let value = |p: usize, d: usize| number(p * 37 + d * 1009 + line % HEADS + 11);
        let score = |p: usize| {
            (0..HEAD_DIM).map(|d| f64::from(q[d]) * key(p, d)).sum::<f64>() / (HEAD_DIM as f64).sqrt()
        };
        let total: f64 = seen.clone().map(|p| score(p).exp()).sum();
        all_lse.push(total.ln() as f32);
        for d in 0..HEAD_DIM {
            let sum: f64 = seen.clone().map(|p| score(p).exp() * value(p, d)).sum();
            out.push(if seen.is_empty() { 0.0 } else { (sum / total) as f32 });
        }
    }
    Partial { rows: queries.rows, heads: HEADS, head_dim: HEAD_DIM, out, lse: all_lse }
}

/// A log-sum-exp of up to 8 in f32 is off by 2^-22 at most, which moves weights by as much; values lie in −1..1.
const TOLERANCE: f32 = 2e-6;

proptest! {
    #[test]
    fn any_partition_in_any_order_gives_the_whole(
        position in 0usize..60,
        rows in 1usize..6,
        beyond in 0usize..9,
        cuts in proptest::collection::vec(0usize..70, 0..5),
        seed in 0usize..120,
    ) {
        let queries = queries(position, rows);
        let end = position + rows + beyond;
        let mut borders: Vec<usize> = cuts.into_iter().map(|cut| cut.min(end)).chain([0, end]).collect();
        borders.sort_unstable();
        let mut ranges: Vec<Range<usize>> = borders.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let merged = |ranges: &[Range<usize>]| {
            let mut merge = Merge::new(&queries);
            for range in ranges {
                merge.add(range.clone(), attend(&queries, range.clone())).unwrap();
            }
            merge.finish().unwrap()
        };
        let ascending = merged(&ranges);
        for i in (1..ranges.len()).rev() {
            ranges.swap(i, seed % (i + 1));
        }
        prop_assert_eq!(&merged(&ranges), &ascending);
        let whole = attend(&queries, 0..end);
        for (got, want) in ascending.iter().zip(&whole.out) {
            prop_assert!((got - want).abs() <= TOLERANCE, "{got} for {want}");
        }
    }
}

fn add(merge: &mut Merge, queries: &Queries, keys: Range<usize>) -> Result<(), MergeError> {
    merge.add(keys.clone(), attend(queries, keys))
}

#[test]
fn one_part_is_given_back_as_it_is() {
    let queries = queries(20, 3);
    let part = attend(&queries, 0..23);
    let mut merge = Merge::new(&queries);
    merge.add(0..23, part.clone()).unwrap();
    assert_eq!(merge.finish().unwrap(), part.out);
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant")]
fn a_gap_an_overlap_and_a_missing_own_position_are_refused() {
    let queries = queries(9, 2);
    let finish = |ranges: &[Range<usize>]| {
        let mut merge = Merge::new(&queries);
        for range in ranges {
            add(&mut merge, &queries, range.clone())?;
        }
        merge.finish()
    };
    assert_eq!(finish(&[]), Err(MergeError::Gap(0)));
    assert_eq!(finish(&[1..11]), Err(MergeError::Gap(0)));
    assert_eq!(finish(&[6..11, 0..5]), Err(MergeError::Gap(5)));
    assert_eq!(finish(&[0..10]), Err(MergeError::Gap(10)));
    assert_eq!(finish(&[0..5, 5..11, 4..6]), Err(MergeError::Overlap(0..5, 4..6)));
    assert_eq!(finish(&[3..5, 0..11]), Err(MergeError::Overlap(3..5, 0..11)));
    assert_eq!(finish(&[0..11, 3..5]), Err(MergeError::Overlap(0..11, 3..5)));
    assert_eq!(finish(&[0..5, 0..5]), Err(MergeError::Overlap(0..5, 0..5)));
    // No row sees what lies beyond the last one.
    assert!(finish(&[0..7, 7..40, 11..30, 35..36]).is_ok());
}

#[test]
fn a_refused_part_leaves_the_merge_as_it_was() {
    let queries = queries(9, 2);
    let mut merge = Merge::new(&queries);
    add(&mut merge, &queries, 0..6).unwrap();
    assert_eq!(add(&mut merge, &queries, 5..11), Err(MergeError::Overlap(0..6, 5..11)));
    add(&mut merge, &queries, 6..11).unwrap();
    assert!(merge.finish().is_ok());
}

#[test]
fn values_that_no_attention_gives_are_refused() {
    let queries = queries(9, 2);
    let spoil = |keys: Range<usize>, spoil: &dyn Fn(&mut Partial)| {
        let mut part = attend(&queries, keys.clone());
        spoil(&mut part);
        Merge::new(&queries).add(keys, part)
    };
    let value = Err(MergeError::Value(3..8));
    assert_eq!(spoil(3..8, &|part| part.out[5] = f32::NAN), value);
    assert_eq!(spoil(3..8, &|part| part.lse[5] = f32::NAN), value);
    assert_eq!(spoil(3..8, &|part| part.lse[0] = f32::INFINITY), value);
    assert_eq!(spoil(3..8, &|part| part.lse[0] = f32::NEG_INFINITY), value);
    // The first row does not see position 10.
    assert_eq!(spoil(10..11, &|_| ()), Ok(()));
    assert_eq!(spoil(10..11, &|part| part.lse[0] = 0.0), Err(MergeError::Value(10..11)));
    assert_eq!(spoil(4..4, &|part| part.lse[0] = 0.0), Err(MergeError::Value(4..4)));
    assert_eq!(spoil(3..8, &|part| part.rows = 1), Err(MergeError::Shape));
    assert_eq!(spoil(3..8, &|part| part.out.truncate(7)), Err(MergeError::Shape));
    assert_eq!(spoil(3..8, &|part| part.lse.push(0.0)), Err(MergeError::Shape));
    let (start, end) = (5, 4);
    let inverted = start..end;
    let part = attend(&queries, 4..4);
    assert_eq!(Merge::new(&queries).add(inverted.clone(), part), Err(MergeError::Inverted(inverted)));
}
