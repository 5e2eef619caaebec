//! What grammars accept and refuse, over a vocabulary of single bytes.

use edge_grammar::{State, Token, Vocabulary};

const END: u32 = 256;
const WORDS: usize = 9; // 258 tokens

fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<Token> = (0..=255u8)
        .map(|b| Token {
            text: vec![b],
            control: false,
        })
        .collect();
    tokens.push(Token {
        text: b"<|end|>".to_vec(),
        control: true,
    });
    tokens.push(Token {
        text: b"<|call|>".to_vec(),
        control: true,
    });
    Vocabulary::new(&tokens, &[END]).unwrap()
}

fn allows(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// Pushes the text through the masks, as a decoder would.
fn accepts(vocabulary: &Vocabulary, grammar: &str, text: &str) -> bool {
    let mut g = vocabulary.compile(grammar).unwrap();
    let mut mask = vec![0; WORDS];
    for byte in text.bytes() {
        if g.fill_mask(&mut mask).unwrap() == State::Complete || !allows(&mask, byte as u32) {
            return false;
        }
        g.accept(byte as u32).unwrap();
    }
    let complete = g.fill_mask(&mut mask).unwrap() == State::Complete || allows(&mask, END);
    assert_eq!(complete, g.is_complete());
    complete
}

fn schema(text: &str) -> String {
    format!(r#"{{"grammars":[{{"json_schema":{text}}}]}}"#)
}

#[test]
fn a_schema_is_enforced() {
    let v = vocabulary();
    let s = schema(
        r#"{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"],"additionalProperties":false}"#,
    );
    assert!(accepts(&v, &s, r#"{"a":7}"#));
    assert!(!accepts(&v, &s, r#"{"a":2}"#));
    assert!(!accepts(&v, &s, r#"{}"#));
    assert!(!accepts(&v, &s, r#"{"a":7"#));
}

#[test]
fn lark_and_classes_inside_schemas_work() {
    let v = vocabulary();
    assert!(accepts(&v, "start: /[0-9]{3}/ \"x\"?", "123"));
    assert!(accepts(&v, "start: /[0-9]{3}/ \"x\"?", "123x"));
    assert!(!accepts(&v, "start: /[0-9]{3}/", "12"));
    let s = schema(r#"{"type":"string","pattern":"^\\d\\w\\s$"}"#);
    assert!(accepts(&v, &s, "\"1a \""));
    assert!(!accepts(&v, &s, "\"aa \""));
}

#[test]
fn a_control_token_is_named_not_spelled() {
    let v = vocabulary();
    let mut g = v.compile("start: <|call|> \"f\"").unwrap();
    let mut mask = vec![0; WORDS];
    g.fill_mask(&mut mask).unwrap();
    assert!(allows(&mask, 257));
    assert!(!allows(&mask, b'<' as u32));
    let mut text = v.compile("start: \"<|call|>\"").unwrap();
    text.fill_mask(&mut mask).unwrap();
    assert!(!allows(&mask, 257));
    assert!(allows(&mask, b'<' as u32));
}

#[test]
fn failure_is_closed() {
    let v = vocabulary();
    for (grammar, what) in [
        (
            schema(r#"{"type":"object","nonsenseKeyword":1,"unevaluatedProperties":false}"#),
            "keyword",
        ),
        (
            schema(r#"{"type":"string","format":"no-such-format"}"#),
            "format",
        ),
        (schema(r#"{"type":"string","pattern":"(("}"#), "regex"),
        (schema(r#"{"not":{}}"#), "not"),
        (schema(r#"{"$ref":"http://example.com/x"}"#), "ref"),
        ("start: /((/".into(), "regex"),
        ("start: missing".into(), "rule"),
        (format!("start: {}", "(".repeat(60_000)), "depth"),
        (
            format!("start: /{}a{}/", "(".repeat(60_000), ")".repeat(60_000)),
            "depth",
        ),
        ("{".into(), "json"),
        ("".into(), "empty"),
    ] {
        let error = v.compile(&grammar).err();
        assert!(
            error.is_some_and(|e| !e.is_empty() && e.len() < 500),
            "{what}"
        );
    }
    assert!(v.compile("start: \"a\"").is_ok());
}

#[test]
fn forks_go_their_own_ways() {
    let v = vocabulary();
    let mut a = v.compile("start: \"ab\" | \"ac\"").unwrap();
    a.accept(b'a' as u32).unwrap();
    let mut b = a.fork();
    a.accept(b'b' as u32).unwrap();
    b.accept(b'c' as u32).unwrap();
    assert!(a.is_complete() && b.is_complete());
    let mut mask = vec![0; WORDS];
    assert_eq!(a.fill_mask(&mut mask), Ok(State::Complete));
    assert!(a.accept(END).is_ok());
    assert!(b.accept(b'x' as u32).is_err());
}
