//! Gathers the C faces that the `tie` program needs, because a program may link only one Rust static library.

pub use edge_grammar as grammar;
pub use edge_kem as kem;
pub use edge_text as text;
