//! Patterns of keys, as in KEYS and SCAN.

/// Whether all of `text` matches: `*` stands for any bytes, `?` for one, `[a-z]` for one of these, `[^a-z]`
/// for one of the others, `\` escapes the next byte. Takes at most as many steps as both lengths multiplied.
pub fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // The place to continue from if the bytes after the last star do not match.
    let mut star = None;
    loop {
        let (one, behind) = match pattern {
            [b'*', behind @ ..] => {
                (star, pattern) = (Some((behind, text)), behind);
                continue;
            }
            [] => (text.is_empty(), None),
            _ => one(pattern, text.first().copied()),
        };
        match behind {
            None if one => return true,
            Some(behind) if one => (pattern, text) = (behind, &text[1..]),
            _ => match star {
                Some((behind, [_, rest @ ..])) => {
                    (star, pattern, text) = (Some((behind, rest)), behind, rest)
                }
                _ => return false,
            },
        }
    }
}

/// Whether the first element of the pattern, which is no star, matches this byte, and the rest of the
/// pattern.
fn one(pattern: &[u8], byte: Option<u8>) -> (bool, Option<&[u8]>) {
    let (matches, behind): (fn(u8, u8) -> bool, _) = match pattern {
        [b'?', behind @ ..] => (|_, _| true, behind),
        [b'[', class @ ..] => {
            let (negated, class) = class.strip_prefix(b"^").map_or((false, class), |class| (true, class));
            let (found, behind) = in_class(class, byte.unwrap_or_default());
            return (byte.is_some() && found != negated, Some(behind));
        }
        [b'\\', _, behind @ ..] => (|wanted, byte| wanted == byte, behind),
        _ => (|wanted, byte| wanted == byte, pattern.get(1..).unwrap_or_default()),
    };
    let wanted = pattern[pattern.len() - behind.len() - 1];
    (byte.is_some_and(|byte| matches(wanted, byte)), Some(behind))
}

/// Whether the byte is in the class, and the pattern after the class. The class may have no end.
fn in_class(mut class: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut found = false;
    loop {
        let (range, behind) = match class {
            [] => return (found, class),
            [b']', behind @ ..] => return (found, behind),
            [b'\\', one, behind @ ..] => (*one..=*one, behind),
            [from, b'-', to, behind @ ..] => (*from.min(to)..=*from.max(to), behind),
            [one, behind @ ..] => (*one..=*one, behind),
        };
        found |= range.contains(&byte);
        class = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn names_match_as_in_redis() {
        for (pattern, text, matched) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("?", "", false),
            ("[a]", "", false),
            ("job:*", "job:", true),
            ("job:*", "jobs", false),
            ("*:1", "a:1:1", true),
            ("*a*b", "xaxbxaxb", true),
            ("*a*b", "xaxbxaxbc", false),
            ("a**c", "abc", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hbllo", true),
            ("h[b-a]", "ha", true),
            ("h[a-", "ha", true),
            ("h[a", "ha", true),
            ("h[\\]]", "h]", true),
            ("h[]", "h]", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a\\", "a\\", true),
            ("\\?", "?", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), matched, "{pattern} {text}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_more_steps_than_both_lengths_multiplied() {
        let pattern = b"*a".repeat(500);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &b"a".repeat(10_000)));
    }
}
