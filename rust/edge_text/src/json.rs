//! `tojson` as Python's json.dumps(value, ensure_ascii=False, ...) writes it.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

const MAX_DEPTH: usize = 200;
const MAX_INDENT: usize = 64;
const BYTES_PER_FUEL: usize = 64;

pub struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// indent: a number of spaces, a string, or none.
fn indent_of(value: &Value) -> Result<Option<String>, Error> {
    if value.is_none() || value.is_undefined() {
        return Ok(None);
    }
    if let Some(text) = value.as_str() {
        return if text.len() <= MAX_INDENT {
            Ok(Some(text.into()))
        } else {
            Err(bad("tojson: indent is too wide"))
        };
    }
    match value.as_i64() {
        Some(n) if n <= MAX_INDENT as i64 => Ok(Some(" ".repeat(n.max(0) as usize))),
        Some(_) => Err(bad("tojson: indent is too wide")),
        None => Err(bad("tojson: indent must be a number or a string")),
    }
}

impl Style {
    /// Arguments in the order of transformers' own filter: ensure_ascii, indent, separators, sort_keys. A lone number is an indent, as in Jinja.
    pub fn from_arguments(args: &[Value], kwargs: &Kwargs) -> Result<Style, Error> {
        let lone_indent = args.len() == 1 && args[0].kind() == ValueKind::Number;
        let named = |name: &str, position: usize| -> Result<Value, Error> {
            if kwargs.has(name) {
                return kwargs.get::<Value>(name);
            }
            if lone_indent {
                return Ok(if name == "indent" {
                    args[0].clone()
                } else {
                    Value::UNDEFINED
                });
            }
            Ok(args.get(position).cloned().unwrap_or(Value::UNDEFINED))
        };
        let indent = indent_of(&named("indent", 1)?)?;
        let separators = named("separators", 2)?;
        let (item, key) = if separators.is_none() || separators.is_undefined() {
            (
                if indent.is_some() { "," } else { ", " }.to_string(),
                ": ".to_string(),
            )
        } else {
            let part = |i: usize| -> Result<String, Error> {
                let text = separators.get_item(&Value::from(i))?;
                match text.as_str() {
                    Some(text) if text.len() <= MAX_INDENT => Ok(text.to_string()),
                    _ => Err(bad("tojson: separators must be two short strings")),
                }
            };
            (part(0)?, part(1)?)
        };
        let style = Style {
            indent,
            item_separator: item,
            key_separator: key,
            sort_keys: named("sort_keys", 3)?.is_true(),
            ensure_ascii: named("ensure_ascii", 0)?.is_true(),
        };
        kwargs.assert_all_used()?;
        Ok(style)
    }
}

pub fn dump(state: &State, value: &Value, style: &Style) -> Result<String, Error> {
    let mut writer = Writer {
        state,
        style,
        out: String::new(),
        charged: 0,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    style: &'a Style,
    out: String,
    charged: usize,
}

impl Writer<'_, '_, '_> {
    fn charge(&mut self) -> Result<(), Error> {
        let grown = self.out.len() - self.charged;
        self.charged = self.out.len();
        self.state.consume_fuel((1 + grown / BYTES_PER_FUEL) as u64)
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(bad("tojson: value is nested too deeply"));
        }
        self.charge()?;
        match value.kind() {
            // Python refuses an undefined value here; other engines that models were tuned with write null, and so does this one.
            ValueKind::None | ValueKind::Undefined => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(bad(format!(
                    "tojson: a value of type {kind} is not JSON serializable"
                )))
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return;
        }
        match f64::try_from(value.clone()) {
            Ok(x) => self.out.push_str(&python_float(x)),
            Err(_) => self.out.push_str(&value.to_string()),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                // The noncharacters that mark user text (src/text/user_text_marker.h) must stay what they are.
                c if self.style.ensure_ascii
                    && !c.is_ascii()
                    && !('\u{fdd0}'..='\u{fdef}').contains(&c) =>
                {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            if !empty {
                self.out.push_str(&self.style.item_separator);
            }
            empty = false;
            self.new_line(depth + 1);
            self.value(&item?, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        if self.style.sort_keys {
            keys.sort_by_key(|key| key.to_string());
        }
        self.out.push('{');
        let empty = keys.is_empty();
        for (i, key) in keys.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.new_line(depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.string("null"),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                _ => self.string(&key.to_string()),
            }
            self.out.push_str(&self.style.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push('}');
        Ok(())
    }
}

/// Python's repr of a float: shortest digits, exponent form below 1e-4 and from 1e16 on.
pub fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let magnitude = x.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        return format!(
            "{digits}e{}{:02}",
            if exponent < 0 { '-' } else { '+' },
            exponent.abs()
        );
    }
    let text = format!("{x}");
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_print_as_python_prints_them() {
        for (x, text) in [
            (1.0, "1.0"),
            (0.5, "0.5"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (123456.789, "123456.789"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(python_float(x), text);
        }
    }
}
