//! Where to cut a text so that no character is cut in two.

/// The largest number of bytes that UTF-8 takes for one character (RFC 3629, section 3): a bound
/// below it could cut nothing off.
pub const CHARACTER_BYTES_MAX: usize = 4;

/// How many of the first `max` bytes end between two characters. Text that is no UTF-8 is cut at
/// `max`: there is no character to spare.
#[must_use]
pub fn boundary(bytes: &[u8], max: usize) -> usize {
    if bytes.len() <= max {
        return bytes.len();
    }
    // A byte 10xxxxxx goes on with a character that began before it.
    let begins = |at: usize| bytes.get(at).is_none_or(|byte| byte & 0b1100_0000 != 0b1000_0000);
    (max.saturating_sub(CHARACTER_BYTES_MAX - 1)..=max).rev().find(|at| begins(*at)).unwrap_or(max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cut_never_goes_through_a_character() {
        let text = "aé€😀";
        for (max, kept) in [(0, ""), (1, "a"), (2, "a"), (3, "aé"), (4, "aé"), (5, "aé")] {
            assert_eq!(&text[..boundary(text.as_bytes(), max)], kept, "{max}");
        }
        assert_eq!(boundary(text.as_bytes(), 6), 6);
        assert_eq!(boundary(text.as_bytes(), 9), 6, "four bytes are one character");
        assert_eq!(boundary(text.as_bytes(), 10), 10);
        assert_eq!(boundary(text.as_bytes(), 99), 10);
    }

    #[test]
    fn what_is_no_text_is_cut_where_it_was_asked_to_be() {
        assert_eq!(boundary(&[0x80; 9], 5), 5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]
        #[test]
        fn pieces_of_any_size_join_to_the_text(text in "\\PC{0,200}", max in 4_usize..70) {
            let mut rest = text.as_bytes();
            let mut joined = String::new();
            while !rest.is_empty() {
                let end = boundary(rest, max);
                prop_assert!(end > 0 && end <= max);
                joined.push_str(std::str::from_utf8(&rest[..end]).unwrap());
                rest = &rest[end..];
            }
            prop_assert_eq!(joined, text);
        }
    }
}
