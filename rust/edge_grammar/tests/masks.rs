//! Masks of answers in which a tool call may begin at any time, over a vocabulary as large as the largest models' (260,000): right for every token
//! looked at, whatever part of the marker has been written, and how long they take.

use edge_grammar::{Grammar, State, Token, Vocabulary};
use std::collections::HashSet;
use std::time::Instant;

const TOKENS: usize = 260_000;
const END: u32 = 0;

/// The grammar that tie-cloud-app writes for `marker` when the model may call a tool (constraints.cc, free_start).
fn auto_mode(marker: &str) -> String {
    let escaped = marker.replace('[', "\\[").replace(']', "\\]");
    format!(
        "start: TEXT? | text_open calls_after_open\n\
         text_open[lazy]: /(.|\\n)*{escaped}/\n\
         TEXT: /(.|\\n)+/ & ~/(.|\\n)*{escaped}(.|\\n)*/\n\
         calls_after_open: \"\\n\" \"{{}}\" \"\\n\"\n"
    )
}

/// Every byte, pieces around the markers, and words as tokenizers have them: some after a space, a tenth with punctuation.
fn words() -> Vec<String> {
    let mut state = 1u64;
    let mut next = move |bound: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % bound
    };
    let mut out: Vec<String> = [
        "tool",
        "tool_call",
        "tool_call>",
        "_call",
        "call>",
        "call>\n",
        "call>x",
        "tool_call>\n{}",
        "tool_call>{",
        "TOOL",
        "TOOL_CALLS]",
        "_CALLS]",
        "CALLS]",
        "CALLS] x",
        ">",
        ">\n",
        "]",
        "] x",
        "<tool",
        " <",
        "a<",
        "[TOOL",
        ">>>",
        "</",
        "\n\n",
        "é",
        "日本",
    ]
    .map(String::from)
    .to_vec();
    let mut seen: HashSet<String> = out.iter().cloned().collect();
    while out.len() < TOKENS - 257 {
        let mut word = String::new();
        if next(2) == 0 {
            word.push(' ');
        }
        for _ in 0..2 + next(9) {
            word.push((b'a' + next(26) as u8) as char);
        }
        if next(10) == 0 {
            word.push(b"<>[]{}().,:;=\"\n_"[next(16) as usize] as char);
        }
        if seen.insert(word.clone()) {
            out.push(word);
        }
    }
    out
}

fn vocabulary() -> (Vocabulary, Vec<Vec<u8>>) {
    let mut texts = vec![b"<|end|>".to_vec()];
    texts.extend((0..=255u8).map(|b| vec![b]));
    texts.extend(words().into_iter().map(String::into_bytes));
    let tokens: Vec<Token> = texts
        .iter()
        .enumerate()
        .map(|(i, text)| Token {
            text: text.clone(),
            control: i == END as usize,
        })
        .collect();
    (Vocabulary::new(&tokens, &[END]).unwrap(), texts)
}

fn allows(mask: &[u32], token: usize) -> bool {
    mask[token / 32] >> (token % 32) & 1 == 1
}

/// The mask says of a token what taking it says: of all around the markers and of every 997th.
fn check_mask(grammar: &Grammar, mask: &[u32], texts: &[Vec<u8>], after: &str) {
    for token in (1..400).chain((400..texts.len()).step_by(997)) {
        let taken = grammar.fork().accept(token as u32).is_ok();
        assert_eq!(
            allows(mask, token),
            taken,
            "{:?} after {after:?}",
            String::from_utf8_lossy(&texts[token])
        );
    }
}

#[test]
fn masks_where_a_call_may_begin_are_right_and_quick() {
    let (vocabulary, texts) = vocabulary();
    for (marker, text) in [
        (
            "<tool_call>",
            "If a < b, then <tool is <tool_cal or <<tool_call, é <\n<tool_call>\n{}",
        ),
        (
            "[TOOL_CALLS]",
            "See a[1], [TOOL] and [TOOL_CALLS or [[TOOL_, é [\n[TOOL_CALLS]\n{}",
        ),
    ] {
        let start = Instant::now();
        let whole = vocabulary.compile(&auto_mode(marker)).unwrap();
        let compile_ms = start.elapsed().as_secs_f64() * 1e3;
        let (mut first, mut micros) = (0f64, Vec::new());
        for round in 0..5 {
            let mut grammar = whole.fork();
            let mut mask = vec![0; TOKENS.div_ceil(32)];
            for (at, byte) in text.bytes().enumerate() {
                let start = Instant::now();
                assert_eq!(grammar.fill_mask(&mut mask), Ok(State::Open));
                let taken = start.elapsed().as_secs_f64() * 1e6;
                match round {
                    0 => first = first.max(taken), // what is kept with the vocabulary is made here
                    _ => micros.push(taken),
                }
                if round == 0 {
                    check_mask(
                        &grammar,
                        &mask,
                        &texts,
                        &String::from_utf8_lossy(&text.as_bytes()[..at]),
                    );
                }
                assert!(allows(&mask, byte as usize + 1));
                grammar.accept(byte as u32 + 1).unwrap();
            }
        }
        micros.sort_by(f64::total_cmp);
        println!(
            "{marker}: {TOKENS} tokens, compiled in {compile_ms:.1} ms; {} masks, p50 {:.0} us, p99 {:.0} us, most {:.0} us; once in a process {first:.0} us",
            micros.len(),
            micros[micros.len() / 2],
            micros[micros.len() * 99 / 100],
            micros.last().unwrap()
        );
    }
}
