//! Refuses texts that could exhaust the stack of a recursive parser before any parser sees them.

const MAX_BYTES: usize = 1 << 20;
const MAX_DEPTH: usize = 200;

/// Counts brackets without regard to quotes: a deep nest inside a string is a deep nest of a regular expression.
pub fn check(text: &str) -> Result<(), String> {
    if text.len() > MAX_BYTES {
        return Err(format!("the grammar is over {MAX_BYTES} bytes"));
    }
    let mut depth = [0i64; 3];
    for byte in text.bytes() {
        let (kind, step) = match byte {
            b'(' => (0, 1),
            b')' => (0, -1),
            b'[' => (1, 1),
            b']' => (1, -1),
            b'{' => (2, 1),
            b'}' => (2, -1),
            _ => continue,
        };
        depth[kind] = (depth[kind] + step).max(0);
        if depth[kind] as usize > MAX_DEPTH {
            return Err(format!(
                "the grammar nests brackets deeper than {MAX_DEPTH}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn deep_nests_are_refused() {
        assert!(check(&"(".repeat(60_000)).is_err());
        assert!(check(&"[".repeat(60_000)).is_err());
        assert!(check(&"()".repeat(60_000)).is_ok());
        assert!(check(&"a".repeat(2 << 20)).is_err());
    }
}
