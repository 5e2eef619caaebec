//! One compiled template and its environment.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior};

use crate::{json, python, source, time};

/// Budgets of a template; see edge_template_limits.
#[derive(Clone, Copy)]
pub struct Limits {
    pub fuel: u64,
    pub max_output_bytes: usize,
    pub max_source_bytes: usize,
    pub trim_blocks: bool,
    pub lstrip_blocks: bool,
}

/// Why a template could not be compiled or rendered, with a sentence for the person.
#[derive(Debug)]
pub enum Failure {
    BadInput(String),
    TooLarge(String),
    Refused(String),
}

const NAME: &str = "chat_template";
/// Marks the error of raise_exception, so that its words can be told from an engine error.
const REFUSAL_MARK: &str = "\u{1}refused:";
const RECURSION_LIMIT: usize = 120;
const MAX_CONTEXT_BYTES: usize = 64 << 20;

pub struct Template {
    environment: Environment<'static>,
    now: Arc<AtomicI64>,
    max_output_bytes: usize,
}

/// Takes at most `left` bytes, then fails.
struct Bounded {
    text: Vec<u8>,
    left: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            self.left = 0;
            return Err(io::Error::other("output limit"));
        }
        self.left -= bytes.len();
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn root_cause(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

fn failure_of(error: &Error) -> Failure {
    let text = root_cause(error);
    if let Some(at) = text.find(REFUSAL_MARK) {
        let words = &text[at + REFUSAL_MARK.len()..];
        let end = words.find('\u{2}').unwrap_or(words.len());
        return Failure::Refused(words[..end].to_string());
    }
    if error.kind() == ErrorKind::OutOfFuel || text.contains("out of fuel") {
        return Failure::TooLarge("the template passed its work budget".into());
    }
    Failure::BadInput(format!("chat template: {text}"))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{REFUSAL_MARK}{message}\u{2}"),
    ))
}

fn tojson(state: &State, value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let style = json::Style::from_arguments(&args, &kwargs)?;
    let text = json::dump(state, value, &style)?;
    Ok(Value::from(text))
}

fn environment(limits: &Limits, now: Arc<AtomicI64>) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(limits.trim_blocks)
            .lstrip_blocks(limits.lstrip_blocks)
            .keep_trailing_newline(false)
            .build()?,
    );
    env.set_debug(false);
    env.set_fuel(Some(limits.fuel));
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(python::unknown_method);
    env.remove_global("debug");
    env.add_filter("tojson", tojson);
    env.add_filter("_kept", python::kept);
    env.add_filter("_markup", python::markup);
    env.add_filter("sort", python::sort);
    env.add_filter("indent", python::indent);
    env.add_filter("int", python::int);
    env.add_filter("float", python::float);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", move |format: &str| {
        time::format_utc(now.load(Ordering::Relaxed), format)
    });
    Ok(env)
}

impl Template {
    pub fn compile(source: &str, limits: &Limits) -> Result<Template, Failure> {
        if source.len() > limits.max_source_bytes {
            return Err(Failure::TooLarge(format!(
                "chat template of {} bytes, the limit is {}",
                source.len(),
                limits.max_source_bytes
            )));
        }
        let now = Arc::new(AtomicI64::new(0));
        let mut env = environment(limits, now.clone()).map_err(|e| failure_of(&e))?;
        env.add_template_owned(NAME, source::prepare(source))
            .map_err(|e| failure_of(&e))?;
        Ok(Template {
            environment: env,
            now,
            max_output_bytes: limits.max_output_bytes,
        })
    }

    pub fn render(&self, context_json: &str, now_unix_s: i64) -> Result<String, Failure> {
        if context_json.len() > MAX_CONTEXT_BYTES {
            return Err(Failure::TooLarge(
                "the conversation is too large for a template".into(),
            ));
        }
        self.now.store(now_unix_s, Ordering::Relaxed);
        let context: Value = serde_json::from_str(context_json)
            .map_err(|e| Failure::BadInput(format!("template variables: {e}")))?;
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|e| failure_of(&e))?;
        let mut out = Bounded {
            text: Vec::with_capacity(context_json.len().min(self.max_output_bytes)),
            left: self.max_output_bytes,
        };
        let result = template.render_captured_to(context, &mut out).map(drop);
        if out.left == 0 && result.is_err() {
            return Err(Failure::TooLarge(
                "the template wrote more than its output limit".into(),
            ));
        }
        result.map_err(|e| failure_of(&e))?;
        String::from_utf8(out.text)
            .map_err(|_| Failure::BadInput("the template wrote invalid text".into()))
    }
}
