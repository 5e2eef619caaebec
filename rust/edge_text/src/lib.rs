//! Chat templates with a C face (see include/edge_text.h): minijinja set up the way transformers sets up Jinja2, under budgets.

mod ffi;
mod json;
mod python;
mod source;
mod template;
mod time;

/// A program may link only one Rust static library: tie-cloud-app finds the grammar compiler in this one.
pub use edge_grammar as grammar;
pub use template::{Failure, Limits, Template};
