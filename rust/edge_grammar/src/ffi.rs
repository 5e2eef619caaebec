//! The C face (include/edge_grammar.h). Every entry point checks its pointers and catches panics.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use crate::{Grammar, State, Token, Vocabulary};

const OK: i32 = 0;
const REFUSED: i32 = 1;
const INTERNAL: i32 = 2;

#[repr(C)]
pub struct EdgeGrammarError {
    text: [u8; 512],
}

/// A panic's message could hold user text: nothing is printed.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

fn write_error(out: *mut EdgeGrammarError, message: &str) {
    if out.is_null() {
        return;
    }
    let mut end = message.len().min(511);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: non-null, and the header demands a writable edge_grammar_error there.
    unsafe {
        (&mut (*out).text)[..end].copy_from_slice(&message.as_bytes()[..end]);
        (*out).text[end] = 0;
    }
}

fn guarded(error: *mut EdgeGrammarError, work: impl FnOnce() -> Result<(), String>) -> i32 {
    silence_panics();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => OK,
        Ok(Err(message)) => {
            write_error(error, &message);
            REFUSED
        }
        Err(_) => {
            write_error(error, "the grammar engine failed");
            INTERNAL
        }
    }
}

/// # Safety
/// As edge_grammar.h says: `bytes` readable up to offsets[n_tokens], `control` n_tokens bytes, `end_ids` n_end integers, `out` writable.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_vocabulary_new(
    bytes: *const u8,
    offsets: *const u32,
    control: *const u8,
    n_tokens: usize,
    end_ids: *const u32,
    n_end: usize,
    out: *mut *mut Vocabulary,
    error: *mut EdgeGrammarError,
) -> i32 {
    guarded(error, || {
        if bytes.is_null()
            || offsets.is_null()
            || control.is_null()
            || end_ids.is_null()
            || out.is_null()
            || n_tokens > 1 << 22
        {
            return Err("the vocabulary is incomplete".into());
        }
        let offsets = unsafe { std::slice::from_raw_parts(offsets, n_tokens + 1) };
        if offsets.windows(2).any(|w| w[0] > w[1]) {
            return Err("the vocabulary's offsets are out of order".into());
        }
        let bytes = unsafe { std::slice::from_raw_parts(bytes, offsets[n_tokens] as usize) };
        let control = unsafe { std::slice::from_raw_parts(control, n_tokens) };
        let tokens: Vec<Token> = (0..n_tokens)
            .map(|i| Token {
                text: bytes[offsets[i] as usize..offsets[i + 1] as usize].to_vec(),
                control: control[i] != 0,
            })
            .collect();
        let vocabulary = Vocabulary::new(&tokens, unsafe {
            std::slice::from_raw_parts(end_ids, n_end)
        })?;
        unsafe { out.write(Box::into_raw(Box::new(vocabulary))) };
        Ok(())
    })
}

/// # Safety
/// `vocabulary` is from edge_grammar_vocabulary_new, freed once; null is allowed.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        guarded(std::ptr::null_mut(), || {
            drop(unsafe { Box::from_raw(vocabulary) });
            Ok(())
        });
    }
}

/// # Safety
/// As edge_grammar.h says.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_compile(
    vocabulary: *const Vocabulary,
    text: *const u8,
    size: usize,
    out: *mut *mut Grammar,
    error: *mut EdgeGrammarError,
) -> i32 {
    guarded(error, || {
        if vocabulary.is_null() || out.is_null() || (text.is_null() && size > 0) {
            return Err("no grammar was given".into());
        }
        let bytes = if size == 0 {
            &[][..]
        } else {
            unsafe { std::slice::from_raw_parts(text, size) }
        };
        let text =
            std::str::from_utf8(bytes).map_err(|_| "the grammar is not valid UTF-8".to_string())?;
        let grammar = unsafe { &*vocabulary }.compile(text)?;
        unsafe { out.write(Box::into_raw(Box::new(grammar))) };
        Ok(())
    })
}

/// # Safety
/// As edge_grammar.h says.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_fork(grammar: *const Grammar, out: *mut *mut Grammar) -> i32 {
    guarded(std::ptr::null_mut(), || {
        if grammar.is_null() || out.is_null() {
            return Err("no grammar was given".into());
        }
        let copy = unsafe { &*grammar }.fork();
        unsafe { out.write(Box::into_raw(Box::new(copy))) };
        Ok(())
    })
}

/// # Safety
/// As edge_grammar.h says.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_accept(
    grammar: *mut Grammar,
    token: u32,
    error: *mut EdgeGrammarError,
) -> i32 {
    guarded(error, || match unsafe { grammar.as_mut() } {
        Some(grammar) => grammar.accept(token),
        None => Err("no grammar was given".into()),
    })
}

/// # Safety
/// As edge_grammar.h says.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_fill_mask(
    grammar: *mut Grammar,
    mask: *mut u32,
    words: usize,
    complete: *mut u8,
    error: *mut EdgeGrammarError,
) -> i32 {
    guarded(error, || {
        if mask.is_null() || complete.is_null() {
            return Err("no mask was given".into());
        }
        let grammar = unsafe { grammar.as_mut() }.ok_or("no grammar was given")?;
        let state = grammar.fill_mask(unsafe { std::slice::from_raw_parts_mut(mask, words) })?;
        unsafe { complete.write((state == State::Complete) as u8) };
        Ok(())
    })
}

/// # Safety
/// As edge_grammar.h says.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_may_end(grammar: *mut Grammar) -> u8 {
    let mut may_end = 0;
    guarded(std::ptr::null_mut(), || {
        may_end = unsafe { grammar.as_mut() }.is_some_and(|g| g.is_complete()) as u8;
        Ok(())
    });
    may_end
}

/// # Safety
/// `grammar` is from this library, freed once; null is allowed.
#[no_mangle]
pub unsafe extern "C" fn edge_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        guarded(std::ptr::null_mut(), || {
            drop(unsafe { Box::from_raw(grammar) });
            Ok(())
        });
    }
}
