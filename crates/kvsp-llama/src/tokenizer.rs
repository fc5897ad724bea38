//! The tokenizer of a model.

use kvsp_engine::{ChatMessage, Tokenizer, TokenizerError};

use crate::bpe::Bpe;
use crate::chat::ChatTemplate;
use crate::error::LoadError;

/// A model's tokenizer and chat template.
pub struct LlamaTokenizer {
    inner: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
    /// Put before a chat prompt whose template does not write it.
    bos: Option<u32>,
}

impl LlamaTokenizer {
    /// A tokenizer from vocabulary and merges.
    pub(crate) fn from_bpe(bpe: Bpe, template: Option<ChatTemplate>) -> Result<Self, LoadError> {
        let bos = bpe.bos;
        Ok(Self { inner: bpe.build()?, template, bos })
    }

    /// A tokenizer from the octets of a tokenizer.json.
    pub(crate) fn from_json(json: &[u8], template: Option<ChatTemplate>) -> Result<Self, LoadError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| crate::bpe::tokenizer(&e))?;
        // A definition may carry settings for training batches; a prompt is taken whole.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| crate::bpe::tokenizer(&e))?;
        Ok(Self { inner, template, bos: None })
    }

    /// Whether the model has a chat template.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// Whether a text can be one of the model's tokens, and which.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    fn tokens(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| convert(&e))?;
        Ok(encoding.get_ids().to_vec())
    }
}

impl Tokenizer for LlamaTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.tokens(text, true)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        if let Some(token) = tokens.iter().find(|&&token| self.inner.id_to_token(token).is_none()) {
            return Err(TokenizerError::Convert(format!("token {token} is outside the vocabulary")));
        }
        self.inner.decode(tokens, true).map_err(|e| convert(&e))
    }

    fn chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TokenizerError> {
        let Some(template) = &self.template else {
            return Err(TokenizerError::Template("the model has none".into()));
        };
        // The template writes the special tokens itself.
        let mut tokens = self.tokens(&template.render(messages)?, false)?;
        if let Some(bos) = self.bos.filter(|bos| tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }
}

fn convert(error: &tokenizers::Error) -> TokenizerError {
    TokenizerError::Convert(error.to_string())
}
