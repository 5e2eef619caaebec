//! Grammars for constrained decoding: compiles canonical grammar text under limits and tells, token by token, what may follow.
//!
//! Canonical text is what llguidance reads: a Lark grammar, or (when it begins with `{`) a list `{"grammars": [{"json_schema": …}, {"lark_grammar": …}]}`.
//! Failure is closed: an unknown keyword, a warning, a limit or a caught panic is an error with a sentence, never an ignored rule.

mod ffi;
mod free_text;
mod guard;

use std::sync::Arc;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

const MAX_ERROR_CHARS: usize = 400;

/// What may follow the tokens so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The mask says it; end tokens are in it when the text is complete.
    Open,
    /// The text is complete and nothing may follow.
    Complete,
}

pub struct Token {
    pub text: Vec<u8>,
    /// Control tokens match no text, only their name in angle brackets inside a Lark grammar.
    pub control: bool,
}

/// A vocabulary prepared for masks. Immutable; shared by all grammars of a model.
pub struct Vocabulary {
    factory: ParserFactory,
    env: TokEnv,
    free_texts: Arc<free_text::Cache>,
}

impl Vocabulary {
    /// Cost: tens of milliseconds for a vocabulary of 50,000.
    pub fn new(tokens: &[Token], end_ids: &[u32]) -> Result<Self, String> {
        let first_end = *end_ids.first().ok_or("the vocabulary names no end token")?;
        if tokens.is_empty() || end_ids.iter().any(|&id| id as usize >= tokens.len()) {
            return Err("an end token is outside the vocabulary".into());
        }
        let words: Vec<Vec<u8>> = tokens
            .iter()
            .map(|t| {
                if t.control {
                    [&[TokTrie::SPECIAL_TOKEN_MARKER], t.text.as_slice()].concat()
                } else {
                    t.text.clone()
                }
            })
            .collect();
        let info = TokRxInfo::new(words.len() as u32, first_end);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(end_ids);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let capabilities = InferenceCapabilities {
            ff_tokens: false,
            conditional_ff_tokens: false,
            backtrack: false,
            fork: false,
        };
        let mut factory = ParserFactory::new(&env, capabilities, &slices).map_err(sentence)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false; // they would repeat the user's grammar
        limits.max_lexer_states = 60_000;
        limits.max_grammar_size = 200_000;
        Ok(Vocabulary {
            factory,
            env,
            free_texts: Arc::new(free_text::Cache::new()),
        })
    }

    pub fn compile(&self, text: &str) -> Result<Grammar, String> {
        guard::check(text)?;
        let grammar = TopLevelGrammar::from_lark_or_grammar_list(text).map_err(sentence)?;
        let parser = self
            .factory
            .create_parser_from_init(GrammarInit::Serialized(grammar), 0, 0);
        let mut matcher = Matcher::new(parser);
        if let Some(error) = matcher.get_error() {
            return Err(shorten(&error));
        }
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(shorten(warning));
        }
        let trie = self.env.tok_trie();
        Ok(Grammar {
            matcher,
            env: self.env.clone(),
            free_text: free_text::FreeText::of(text),
            free_texts: self.free_texts.clone(),
            end_ids: trie.eos_tokens().to_vec(),
            n_tokens: trie.vocab_size(),
        })
    }

    /// The text as tokens of this vocabulary, longest match first; for checking texts against grammars.
    pub fn tokenize(&self, text: &[u8]) -> Vec<u32> {
        self.env.tok_trie().greedy_tokenize(text)
    }
}

/// One text's way through a grammar.
pub struct Grammar {
    matcher: Matcher,
    env: TokEnv,
    free_text: Option<free_text::FreeText>, // none once a call has begun
    free_texts: Arc<free_text::Cache>,
    end_ids: Vec<u32>,
    n_tokens: usize,
}

impl Grammar {
    pub fn fork(&self) -> Grammar {
        Grammar {
            matcher: self.matcher.deep_clone(),
            env: self.env.clone(),
            free_text: self.free_text.clone(),
            free_texts: self.free_texts.clone(),
            end_ids: self.end_ids.clone(),
            n_tokens: self.n_tokens,
        }
    }

    pub fn accept(&mut self, token: u32) -> Result<(), String> {
        if self.end_ids.contains(&token) && self.matcher.is_stopped() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(sentence)?;
        let text = self.env.tok_trie().token(token);
        if self.free_text.as_mut().is_some_and(|at| !at.push(text)) {
            self.free_text = None;
        }
        Ok(())
    }

    /// Writes one bit per token, lowest first; bits beyond the vocabulary stay 0.
    pub fn fill_mask(&mut self, mask: &mut [u32]) -> Result<State, String> {
        mask.fill(0);
        if let Some(error) = self.matcher.get_error() {
            return Err(shorten(&error));
        }
        if self.matcher.is_stopped() {
            if !self.matcher.stop_reason().is_ok() {
                return Err("the grammar's budget for one token was passed".into());
            }
            return Ok(State::Complete);
        }
        if mask.len() * 32 < self.n_tokens {
            return Err("the mask is smaller than the vocabulary".into());
        }
        let at = self.free_text.clone().filter(|at| at.between_characters());
        if let Some(known) = at.as_ref().and_then(|at| self.free_texts.get(at)) {
            mask[..known.allowed.len()].copy_from_slice(&known.allowed);
            for &token in &known.finishing {
                if self.matcher.validate_tokens(&[token]).map_err(sentence)? == 1 {
                    mask[token as usize / 32] |= 1 << (token % 32);
                }
            }
            return Ok(State::Open);
        }
        let allowed = self.matcher.compute_mask().map_err(sentence)?;
        let words = allowed.as_slice(); // may be longer by a word of zeros
        let n = words.len().min(mask.len());
        mask[..n].copy_from_slice(&words[..n]);
        if let Some(at) = at {
            let trie = self.env.tok_trie();
            let texts = (0..self.n_tokens as u32).map(|token| trie.token(token));
            let words = self.n_tokens.div_ceil(32);
            self.free_texts.put(&at, &mask[..words], texts);
        }
        Ok(State::Open)
    }

    pub fn is_complete(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }
}

fn shorten(text: &str) -> String {
    let line = text.lines().next().unwrap_or("").trim();
    line.chars().take(MAX_ERROR_CHARS).collect()
}

fn sentence(error: impl std::fmt::Display) -> String {
    shorten(&format!("{error:#}"))
}
