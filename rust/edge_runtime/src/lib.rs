//! Gathers the C faces that afm-runtime needs, because a program may link only one Rust static library.

pub use edge_grammar as grammar;
