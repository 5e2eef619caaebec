//! Chat templates with a C face (see include/edge_text.h): minijinja set up the way transformers sets up Jinja2, under budgets.

mod ffi;
mod json;
mod python;
mod source;
mod template;
mod time;

pub use template::{Failure, Limits, Template};
