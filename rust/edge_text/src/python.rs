//! Filters and methods where Jinja2 or Python differ from minijinja, written to behave as Python does.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

const MAX_INDENT: usize = 1024;
const BYTES_PER_FUEL: usize = 64;

fn bad(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}

/// The argument called `name`, given by keyword or at `position`.
fn argument(
    args: &[Value],
    kwargs: &Kwargs,
    name: &str,
    position: usize,
) -> Result<Option<Value>, Error> {
    if kwargs.has(name) {
        return kwargs.get::<Value>(name).map(Some);
    }
    Ok(args.get(position).cloned())
}

/// sort(reverse=False, case_sensitive=False, attribute=None)
pub fn sort(
    state: &State,
    value: Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let mut named = Vec::new();
    for (position, name) in ["reverse", "case_sensitive", "attribute"]
        .into_iter()
        .enumerate()
    {
        if let Some(given) = argument(&args, &kwargs, name, position)? {
            named.push((name, given));
        }
    }
    kwargs.assert_all_used()?;
    minijinja::filters::sort(state, value, named.into_iter().collect())
}

/// indent(width=4, first=False, blank=False), with Jinja2's treatment of a final new line.
pub fn indent(
    state: &State,
    value: Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let text = value.to_string();
    let width = match argument(&args, &kwargs, "width", 0)? {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_i64()) {
            (Some(prefix), _) if prefix.len() <= MAX_INDENT => prefix.to_string(),
            (None, Some(n)) if n <= MAX_INDENT as i64 => " ".repeat(n.max(0) as usize),
            _ => {
                return Err(bad(
                    "indent: width must be a small number or a short string",
                ))
            }
        },
    };
    let first = argument(&args, &kwargs, "first", 1)?.is_some_and(|v| v.is_true());
    let blank = argument(&args, &kwargs, "blank", 2)?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let lines: Vec<&str> = text.split('\n').collect();
    state.consume_fuel(((lines.len() * width.len()) / BYTES_PER_FUEL) as u64)?;
    let mut out = String::with_capacity(text.len());
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let wanted = if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if wanted {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// float(default=0.0)
pub fn float(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = argument(&args, &kwargs, "default", 0)?.unwrap_or_else(|| Value::from(0.0));
    kwargs.assert_all_used()?;
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(if value.is_true() { 1.0 } else { 0.0 }),
        ValueKind::Number => f64::try_from(value).map(Value::from).unwrap_or(default),
        ValueKind::String => value
            .as_str()
            .and_then(|s| s.trim().parse::<f64>().ok())
            .map(Value::from)
            .unwrap_or(default),
        _ => default,
    })
}

/// int(default=0, base=10)
pub fn int(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = argument(&args, &kwargs, "default", 0)?.unwrap_or_else(|| Value::from(0));
    let base = argument(&args, &kwargs, "base", 1)?
        .and_then(|v| v.as_i64())
        .unwrap_or(10);
    kwargs.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return Err(bad("int: base must lie between 2 and 36"));
    }
    let of_float = |x: f64| {
        if x.is_finite() && x.abs() < 9e18 {
            Some(Value::from(x.trunc() as i64))
        } else {
            None
        }
    };
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value,
        ValueKind::Number => f64::try_from(value)
            .ok()
            .and_then(of_float)
            .unwrap_or(default),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim().replace('_', "");
            i64::from_str_radix(&text, base as u32)
                .ok()
                .map(Value::from)
                .or_else(|| text.parse::<f64>().ok().and_then(of_float))
                .unwrap_or(default)
        }
        _ => default,
    })
}

/// Python's methods of strings, lists and mappings.
pub fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    // str.replace takes its count by keyword too.
    if method == "replace"
        && value.kind() == ValueKind::String
        && args.last().is_some_and(|a| a.is_kwargs())
    {
        let kwargs = Kwargs::try_from(args[args.len() - 1].clone())?;
        let mut plain = args[..args.len() - 1].to_vec();
        plain.push(kwargs.get::<Value>("count")?);
        kwargs.assert_all_used()?;
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, method, &plain);
    }
    if method == "format" {
        check_format(value.as_str().unwrap_or_default())?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// str.format pads to any width it is told, before anything is charged: widths of over four digits, and widths taken from arguments, are refused.
fn check_format(format: &str) -> Result<(), Error> {
    let mut digits = 0;
    for c in format.chars() {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return Err(bad("format: a width is too large"));
        }
    }
    if format
        .split('{')
        .skip(1)
        .any(|field| !field.is_empty() && !field.contains('}'))
    {
        return Err(bad("format: nested fields are not supported"));
    }
    Ok(())
}

const MAX_KEPT_DEPTH: usize = 64;
const ITEMS_PER_FUEL: usize = 16;

/// The filter that every value passes on its way into a namespace: bounds its depth, and unrolls lazy values, so that nothing a loop builds
/// up is deep or contains itself.
pub fn kept(state: &State, value: Value) -> Result<Value, Error> {
    let mut items = 0;
    let value = match value.kind() {
        ValueKind::Iterable => value
            .try_iter()?
            .checked()
            .collect::<Result<Vec<Value>, Error>>()
            .map(Value::from)?,
        _ => value,
    };
    check_depth(&value, 0, &mut items)?;
    state.consume_fuel((items / ITEMS_PER_FUEL) as u64)?;
    Ok(value)
}

fn check_depth(value: &Value, depth: usize, items: &mut usize) -> Result<(), Error> {
    *items += 1;
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    if depth > MAX_KEPT_DEPTH {
        return Err(bad("a value in a namespace is nested too deeply"));
    }
    if object.type_name().ends_with("::Namespace") {
        return Err(bad("a namespace cannot be kept in a namespace"));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()?.checked() {
                check_depth(&item?, depth + 1, items)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()?.checked() {
                check_depth(&value.get_item(&key?)?, depth + 1, items)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A safe string plus others, as Jinja2's Markup adds: what is not safe itself is escaped.
pub fn markup(state: &State, value: Value, more: Rest<Value>) -> Result<Value, Error> {
    let mut out = value.to_string();
    for operand in more.iter() {
        let Some(text) = operand.as_str() else {
            return Err(bad("only text can be added to text"));
        };
        state.consume_fuel((text.len() / BYTES_PER_FUEL) as u64)?;
        if operand.is_safe() {
            out.push_str(text);
            continue;
        }
        for c in text.chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '\'' => out.push_str("&#39;"),
                '"' => out.push_str("&#34;"),
                c => out.push(c),
            }
        }
    }
    Ok(Value::from_safe_string(out))
}
