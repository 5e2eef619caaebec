//! Masks while an answer is free text in which a tool call may begin: the grammar that tie-cloud-app writes for "the model may call a tool".
//!
//! There the lexer is in a lazy expression, so that every mask would look at the whole vocabulary. But what may follow depends only on how much of
//! the marker has been written, except for tokens that finish the marker: one mask for each such progress is kept with the vocabulary, and the few
//! finishing tokens are asked of the grammar. Only the markers below are kept, so what is in here tells of nobody's request.

use std::sync::{Arc, Mutex};

const MARKERS: [&str; 2] = ["<tool_call>", "[TOOL_CALLS]"];
/// More finishing tokens than this (those that begin with a marker's last byte may be many) and the whole mask is computed.
const MOST_FINISHING: usize = 256;

/// What is known of one progress of one marker.
pub struct Known {
    pub allowed: Vec<u32>, // without the finishing tokens
    pub finishing: Vec<u32>,
}

/// One slot for each marker and progress, filled when first needed.
#[derive(Default)]
pub struct Cache {
    slots: [Vec<Mutex<Option<Arc<Known>>>>; MARKERS.len()],
}

impl Cache {
    pub fn new() -> Self {
        Cache {
            slots: MARKERS.map(|m| m.bytes().map(|_| Mutex::default()).collect()),
        }
    }

    pub fn get(&self, at: &FreeText) -> Option<Arc<Known>> {
        self.slots[at.marker][at.progress].lock().ok()?.clone()
    }

    /// Keeps a mask that the grammar computed at this place. `texts` yields each token's bytes.
    pub fn put<'a>(&self, at: &FreeText, mask: &[u32], texts: impl Iterator<Item = &'a [u8]>) {
        let mut allowed = mask.to_vec();
        let mut finishing = Vec::new();
        for (token, text) in texts.enumerate() {
            let mut walk = at.clone();
            if walk.push(text) {
                continue;
            }
            finishing.push(token as u32);
            allowed[token / 32] &= !(1 << (token % 32));
        }
        if finishing.len() > MOST_FINISHING {
            return;
        }
        if let Ok(mut slot) = self.slots[at.marker][at.progress].lock() {
            *slot = Some(Arc::new(Known { allowed, finishing }));
        }
    }
}

/// Where a text is that has not finished the marker.
#[derive(Clone)]
pub struct FreeText {
    marker: usize,
    progress: usize,     // bytes of the marker that the text ends with
    continuation: usize, // bytes that an unfinished character still needs
}

impl FreeText {
    /// For the one grammar this is about; none for any other.
    pub fn of(grammar: &str) -> Option<FreeText> {
        let marker = MARKERS.iter().position(|m| grammar.starts_with(&head(m)))?;
        let rest = &grammar[head(MARKERS[marker]).len()..];
        // A directive or another rule of these names would change what the head means.
        let other = rest.contains("%ignore")
            || rest.contains("%import")
            || rest.lines().any(|line| {
                let line = line.trim_start_matches([' ', '\t', '?', '!']);
                line.starts_with("start")
                    || line.starts_with("text_open")
                    || line.starts_with("TEXT")
            });
        (!other).then_some(FreeText {
            marker,
            progress: 0,
            continuation: 0,
        })
    }

    /// Between characters, where a kept mask holds.
    pub fn between_characters(&self) -> bool {
        self.continuation == 0
    }

    /// False when the text has finished the marker.
    pub fn push(&mut self, text: &[u8]) -> bool {
        let marker = MARKERS[self.marker].as_bytes();
        for &byte in text {
            // No marker here has its first byte twice, so a byte that does not go on with it can only begin it anew.
            self.progress = if byte == marker[self.progress] {
                self.progress + 1
            } else {
                (byte == marker[0]) as usize
            };
            if self.progress == marker.len() {
                return false;
            }
            self.continuation = match byte {
                0x80..=0xbf => self.continuation.saturating_sub(1),
                0xc0..=0xdf => 1,
                0xe0..=0xef => 2,
                0xf0.. => 3,
                _ => 0,
            };
        }
        true
    }
}

/// The first rules of that grammar (constraints.cc, free_start).
fn head(marker: &str) -> String {
    let escaped = marker.replace('[', "\\[").replace(']', "\\]");
    format!(
        "start: TEXT? | text_open calls_after_open\n\
         text_open[lazy]: /(.|\\n)*{escaped}/\n\
         TEXT: /(.|\\n)+/ & ~/(.|\\n)*{escaped}(.|\\n)*/\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(marker: &str, text: &str) -> Option<usize> {
        let mut at = FreeText::of(&(head(marker) + "calls_after_open: \"x\"\n")).unwrap();
        at.push(text.as_bytes()).then_some(at.progress)
    }

    #[test]
    fn progress_is_the_longest_part_of_the_marker_at_the_end() {
        for marker in MARKERS {
            for text in [
                "",
                "a",
                "a <",
                "<<",
                "<tool_<",
                "<tool_call",
                "<<tool",
                "[TOOL",
                "[[TOOL_[",
                "[TOOL_CALLS",
                "<tool_call >",
            ] {
                let longest = (0..marker.len())
                    .rev()
                    .find(|&n| text.ends_with(&marker[..n]));
                assert_eq!(progress(marker, text), longest, "{marker} {text}");
            }
            assert_eq!(progress(marker, &format!("a<[{marker}")), None);
        }
    }

    #[test]
    fn no_other_grammar_is_taken_for_it() {
        let whole = head("<tool_call>") + "calls_after_open: \"x\"\n";
        assert!(FreeText::of(&whole).is_some());
        for other in [
            head("<other>") + "calls_after_open: \"x\"\n",
            whole.replacen("TEXT?", "TEXT", 1),
            whole.replacen("(.|\\n)+", ".+", 1),
            whole.clone() + "%ignore / /\n",
            whole.clone() + "TEXT: \"y\"\n",
            " ".to_string() + &whole,
        ] {
            assert!(FreeText::of(&other).is_none(), "{other}");
        }
    }
}
