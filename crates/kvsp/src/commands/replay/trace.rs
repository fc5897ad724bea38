//! Traces of prompts: JSON Lines with `input_length` and `hash_ids`.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Longest line, in octets: the blocks of some hundred million tokens.
const MAX_LINE: u64 = 4 << 20;

/// The complete blocks of each request, from head to tail.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) requests: Vec<Vec<u64>>,
}

/// A trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: line {line} has more than {MAX_LINE} octets", path.display())]
    TooLong { path: PathBuf, line: usize },
    #[error("{}: line {line} is not a request: {source}", path.display())]
    Request { path: PathBuf, line: usize, source: serde_json::Error },
    #[error("{}: line {line} has {ids} hash_ids where {tokens} tokens make {blocks} blocks", path.display())]
    Length { path: PathBuf, line: usize, ids: usize, tokens: u64, blocks: u64 },
}

#[derive(Debug, Deserialize)]
struct Request {
    input_length: u64,
    hash_ids: Vec<u64>,
}

impl Trace {
    /// Reads a trace of blocks of `block_tokens` tokens; empty lines are passed over.
    pub(super) fn read(path: &Path, block_tokens: u64) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Read { path: path.into(), source };
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut requests = Vec::new();
        let mut text = Vec::new();
        for line in 1_usize.. {
            text.clear();
            let read = file.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut text).map_err(failed)?;
            if read == 0 {
                break;
            }
            if super::count(read) > MAX_LINE {
                return Err(TraceError::TooLong { path: path.into(), line });
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let request: Request = serde_json::from_slice(&text).map_err(|source| TraceError::Request {
                path: path.into(),
                line,
                source,
            })?;
            let (tokens, ids) = (request.input_length, request.hash_ids.len());
            let blocks = tokens.div_ceil(block_tokens);
            if super::count(ids) != blocks {
                return Err(TraceError::Length { path: path.into(), line, ids, tokens, blocks });
            }
            let mut complete = request.hash_ids;
            if tokens % block_tokens != 0 {
                complete.pop();
            }
            requests.push(complete);
        }
        Ok(Self { requests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Vec<u64>>, TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl");
        std::fs::write(&path, text).unwrap();
        Trace::read(&path, 512).map(|trace| trace.requests)
    }

    #[test]
    fn a_partial_block_is_left_out() {
        let text = "{\"timestamp\": 0, \"input_length\": 1024, \"hash_ids\": [7, 8]}\n\n\
                    {\"input_length\": 1025, \"hash_ids\": [7, 8, 9]}\n{\"input_length\": 5, \"hash_ids\": [1]}";
        assert_eq!(read(text).unwrap(), [vec![7, 8], vec![7, 8], vec![]]);
    }

    #[test]
    fn a_line_that_is_no_request_is_named() {
        let good = "{\"input_length\": 512, \"hash_ids\": [1]}\n";
        for bad in ["nonsense", "{\"hash_ids\": [1]}", "{\"input_length\": 512, \"hash_ids\": [-1]}"] {
            let error = read(&format!("{good}{bad}\n")).unwrap_err();
            assert!(matches!(error, TraceError::Request { line: 2, .. }), "{error}");
        }
        let error = read("{\"input_length\": 513, \"hash_ids\": [1]}").unwrap_err();
        assert!(matches!(error, TraceError::Length { line: 1, ids: 1, tokens: 513, blocks: 2, .. }));
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let text = " ".repeat(usize::try_from(MAX_LINE).unwrap() + 1);
        assert!(matches!(read(&text), Err(TraceError::TooLong { line: 1, .. })));
    }
}
