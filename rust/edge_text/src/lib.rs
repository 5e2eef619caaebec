//! Chat templates with a C face.
