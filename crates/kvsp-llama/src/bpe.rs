//! A byte-level BPE tokenizer from a vocabulary and merges, as GGUF files carry them.

use std::str::FromStr;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, Tokenizer};

use crate::error::LoadError;

/// How text is cut before merging. The names are those of `tokenizer.ggml.pre`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// GPT-2's words.
    Gpt2,
    /// Every digit on its own, then GPT-2's words.
    SmolLm,
    /// Llama 3: up to three digits together, contractions in any case.
    LlamaBpe,
}

impl FromStr for PreTokenizer {
    type Err = LoadError;

    fn from_str(name: &str) -> Result<Self, LoadError> {
        match name {
            "gpt-2" => Ok(Self::Gpt2),
            "smollm" => Ok(Self::SmolLm),
            "llama-bpe" => Ok(Self::LlamaBpe),
            _ => Err(LoadError::Unsupported(format!(
                "the pre-tokenizer {:?} (gpt-2, smollm and llama-bpe are known; a tokenizer.json beside the file \
                 would be used instead)",
                name.chars().take(64).collect::<String>()
            ))),
        }
    }
}

impl PreTokenizer {
    /// Words of Llama 3.
    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn build(self) -> Result<PreTokenizerWrapper, LoadError> {
        let words = ByteLevel::new(false, true, true);
        let octets = ByteLevel::new(false, true, false);
        Ok(match self {
            Self::Gpt2 => words.into(),
            Self::SmolLm => Sequence::new(vec![Digits::new(true).into(), words.into()]).into(),
            Self::LlamaBpe => {
                let pattern = SplitPattern::Regex(Self::LLAMA3.into());
                let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(|e| tokenizer(&e))?;
                Sequence::new(vec![split.into(), octets.into()]).into()
            }
        })
    }
}

/// What a byte-level BPE tokenizer is made of.
pub(crate) struct Bpe {
    /// The tokens by identifier, in byte-level form.
    pub(crate) tokens: Vec<String>,
    pub(crate) merges: Vec<(String, String)>,
    pub(crate) pre: PreTokenizer,
    /// Identifiers matched whole in text and left out of decoded text.
    pub(crate) control: Vec<u32>,
    /// Identifiers matched whole in text.
    pub(crate) user_defined: Vec<u32>,
    /// Put before every text.
    pub(crate) bos: Option<u32>,
}

impl Bpe {
    pub(crate) fn build(self) -> Result<Tokenizer, LoadError> {
        let vocab: Vocab = self.tokens.iter().cloned().zip(0u32..).collect();
        if vocab.len() != self.tokens.len() {
            return Err(LoadError::Tokenizer("the vocabulary has a token twice".into()));
        }
        let model = BPE::builder()
            .vocab_and_merges(vocab, self.merges)
            // Llama 3 takes a whole word that is in the vocabulary though no merges lead to it.
            .ignore_merges(self.pre == PreTokenizer::LlamaBpe)
            .build()
            .map_err(|e| tokenizer(&e))?;
        let mut out = Tokenizer::new(model);
        out.with_pre_tokenizer(Some(self.pre.build()?));
        out.with_decoder(Some(ByteLevel::default()));
        let named = |id: &u32| {
            let token = self.tokens.get(*id as usize);
            token.cloned().ok_or_else(|| LoadError::Tokenizer(format!("there is no token {id}")))
        };
        if let Some(bos) = self.bos {
            let token = named(&bos)?;
            let processor = TemplateProcessing::builder()
                .try_single(vec![token.clone(), "$A".into()])
                .map_err(LoadError::Tokenizer)?
                .special_tokens(vec![(token, bos)])
                .build()
                .map_err(|e| LoadError::Tokenizer(e.to_string()))?;
            out.with_post_processor(Some(processor));
        }
        let added = |ids: &[u32], special| {
            let tokens: Result<Vec<AddedToken>, LoadError> =
                ids.iter().map(|id| Ok(AddedToken::from(named(id)?, special).normalized(false))).collect();
            tokens
        };
        out.add_special_tokens(added(&self.control, true)?).map_err(|e| tokenizer(&e))?;
        out.add_tokens(added(&self.user_defined, false)?).map_err(|e| tokenizer(&e))?;
        Ok(out)
    }
}

/// The character that stands for an octet in byte-level tokens: itself where it is printable, else the next
/// free character from U+0100 on.
pub(crate) fn octet_char(octet: u8) -> char {
    let printable = |o: u8| matches!(o, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(octet) {
        return char::from(octet);
    }
    let before = (0..octet).filter(|&o| !printable(o)).count();
    // At most 68 octets are not printable, so this is a character.
    char::from_u32(0x100 + before as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

pub(crate) fn tokenizer(error: &tokenizers::Error) -> LoadError {
    LoadError::Tokenizer(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn octet_characters_are_those_of_the_byte_level_alphabet() {
        let ours: BTreeSet<char> = (0..=255).map(octet_char).collect();
        assert_eq!(ours, ByteLevel::alphabet().into_iter().collect());
        assert_eq!(octet_char(b' '), 'Ġ');
        assert_eq!(octet_char(b'\n'), 'Ċ');
        assert_eq!(octet_char(b'a'), 'a');
    }

    fn words(pre: PreTokenizer, text: &str) -> Vec<String> {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};
        let mut cut = PreTokenizedString::from(text);
        pre.build().unwrap().pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, _, _)| word.replace('Ġ', " ").replace('Ċ', "\n")).collect()
    }

    #[test]
    fn words_are_cut_as_each_kind_says() {
        let text = "I'LL pay 1234  now\n\nok";
        assert_eq!(
            words(PreTokenizer::Gpt2, text),
            ["I", "'", "LL", " pay", " 1234", " ", " now", "\n", "\n", "ok"]
        );
        assert_eq!(
            words(PreTokenizer::SmolLm, text),
            ["I", "'", "LL", " pay", " ", "1", "2", "3", "4", " ", " now", "\n", "\n", "ok"]
        );
        assert_eq!(
            words(PreTokenizer::LlamaBpe, text),
            ["I", "'LL", " pay", " ", "123", "4", " ", " now", "\n\n", "ok"]
        );
        assert!("qwen2".parse::<PreTokenizer>().is_err());
    }
}
