//! What is done to a template's text before it is compiled.
//!
//! - `{% generation %}` blocks (they mark the assistant's words for training) are passed over.
//! - Every value put into a namespace goes through the filter `_kept` (see python.rs): only there can a loop build a value of unbounded
//!   depth, or one that contains itself, and the engine walks values by recursion.
//! - `'..'|safe + ..` becomes `'..'|safe|_markup(..)`: Jinja2's safe strings escape what is added to them, the engine's do not.

/// One tag or the text between two.
enum Part<'a> {
    Text(&'a str),
    Block(&'a str), // with its delimiters
    Expression(&'a str),
}

/// Where the tag ends that begins at 0 and closes with `close`; strings inside may contain the closer.
fn tag_end(source: &str, close: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            _ if source.as_bytes()[at..].starts_with(close.as_bytes()) => {
                return Some(at + close.len())
            }
            _ => at += 1,
        }
    }
    None
}

/// Calls `visit` on every part, in order. An unfinished tag is text; the compiler will complain about it.
fn scan<'a>(source: &'a str, mut visit: impl FnMut(Part<'a>)) {
    let mut rest = source;
    let mut text_from = source;
    let mut in_raw = false;
    while let Some(open) = rest.find('{') {
        let tag = &rest[open..];
        let (end, close) = match tag.as_bytes().get(1) {
            Some(b'%') => (tag_end(tag, "%}"), '%'),
            Some(b'{') if !in_raw => (tag_end(tag, "}}"), '}'),
            Some(b'#') if !in_raw => (tag.find("#}").map(|at| at + 2), '#'),
            _ => (None, ' '),
        };
        let Some(end) = end else {
            rest = &tag[1..];
            continue;
        };
        let word = inner(&tag[..end]).trim();
        if in_raw && word != "endraw" {
            rest = &tag[1..];
            continue;
        }
        in_raw = close == '%' && word == "raw";
        let before = &text_from[..text_from.len() - tag.len()];
        visit(Part::Text(before));
        match close {
            '%' => visit(Part::Block(&tag[..end])),
            '}' => visit(Part::Expression(&tag[..end])),
            _ => visit(Part::Text(&tag[..end])),
        }
        rest = &tag[end..];
        text_from = rest;
    }
    visit(Part::Text(text_from));
}

/// The text of a tag without delimiters and white-space marks.
fn inner(tag: &str) -> &str {
    let body = &tag[2..tag.len() - 2];
    let body = body.strip_prefix(['-', '+']).unwrap_or(body);
    body.strip_suffix(['-', '+']).unwrap_or(body)
}

/// The tag with another inner text.
fn with_inner(tag: &str, text: &str) -> String {
    let old = inner(tag);
    let start = old.as_ptr() as usize - tag.as_ptr() as usize;
    format!("{}{}{}", &tag[..start], text, &tag[start + old.len()..])
}

/// Positions of the single character `wanted` outside quotes and brackets.
fn top_level(text: &str, wanted: u8) -> Vec<usize> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut depth, mut at) = (0i32, 0);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            c if c == wanted && depth == 0 => found.push(at),
            _ => {}
        }
        at += 1;
    }
    found
}

fn block(tag: &str) -> Option<String> {
    let text = inner(tag);
    match text.trim() {
        "generation" => return Some(with_inner(tag, " if true ")),
        "endgeneration" => return Some(with_inner(tag, " endif ")),
        _ => {}
    }
    let body = text.trim_start().strip_prefix("set")?;
    if !body.starts_with(char::is_whitespace) {
        return None;
    }
    let equals = body.find('=')?;
    let (target, value) = (&body[..equals], &body[equals + 1..]);
    let is_target = target
        .chars()
        .all(|c| c.is_alphanumeric() || c.is_whitespace() || "_.,()".contains(c));
    if !target.contains('.') || !is_target || value.starts_with('=') {
        return None;
    }
    Some(with_inner(tag, &format!(" set {target}= ({value})|_kept ")))
}

/// The operands of a chain of additions whose first is made safe, as one call.
fn expression(tag: &str) -> Option<String> {
    let text = inner(tag);
    let plus = top_level(text, b'+');
    let first = text[..*plus.first()?].trim_end();
    let filter = first.rfind('|')?;
    if first[filter + 1..].trim() != "safe"
        || [b'~', b'*', b'/', b'%', b'=', b'<', b'>']
            .iter()
            .any(|op| !top_level(text, *op).is_empty())
    {
        return None;
    }
    if text
        .split_whitespace()
        .any(|word| matches!(word, "if" | "and" | "or" | "not" | "in" | "is"))
    {
        return None;
    }
    let mut operands = Vec::new();
    for (i, from) in plus.iter().enumerate() {
        operands.push(text[from + 1..plus.get(i + 1).copied().unwrap_or(text.len())].trim());
    }
    Some(with_inner(
        tag,
        &format!("{first}|_markup({}) ", operands.join(", ")),
    ))
}

pub fn prepare(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 64);
    scan(source, |part| match part {
        Part::Text(text) => out.push_str(text),
        Part::Block(tag) => match block(tag) {
            Some(text) => out.push_str(&text),
            None => out.push_str(tag),
        },
        Part::Expression(tag) => match expression(tag) {
            Some(text) => out.push_str(&text),
            None => out.push_str(tag),
        },
    });
    out
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn leaves_ordinary_text_alone() {
        for text in [
            "",
            "a { b } {{ x }} {% if a %}{% endif %}",
            "{# {% set ns.x = 1 %} #}",
            "{% raw %}{% set ns.x = 1 %}{% endraw %}",
            "{{ '}}' }}",
            "{% set x = 1 %}",
            "{{ a + b }}",
            "{% broken",
            "{{ unfinished",
            "{% set ns.x == 1 %}",
            "{%",
            "{",
            "{%%}",
            "{{}}",
            "é{é",
        ] {
            assert_eq!(prepare(text), text);
        }
    }

    #[test]
    fn rewrites_what_it_should() {
        assert_eq!(
            prepare("a{%- set ns.x = [ns.x, '%}'] -%}b"),
            "a{%- set  ns.x = ( [ns.x, '%}'] )|_kept -%}b"
        );
        assert_eq!(
            prepare("{%- generation -%}x{% endgeneration %}"),
            "{%- if true -%}x{% endif %}"
        );
        assert_eq!(
            prepare("{{ 'a'|safe + b + c|tojson }}"),
            "{{ 'a'|safe|_markup(b, c|tojson) }}"
        );
    }
}
