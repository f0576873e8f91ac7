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
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom as _;
    use rand::{RngExt as _, SeedableRng as _};

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

    /// G2: 20,000 texts, cut into pieces of any sizes.
    #[test]
    fn pieces_of_any_sizes_join_to_the_text() {
        let mut random = StdRng::seed_from_u64(0x5eed_0000_0002);
        let characters = ['a', '\n', '&', 'é', 'ß', '€', '\u{202e}', '😀', '\u{10ffff}'];
        for round in 0..20_000 {
            let length = if round % 100 == 0 { 40_000 } else { random.random_range(0..200) };
            let text: String =
                (0..length).map(|_| *characters.choose(&mut random).unwrap()).collect();
            let longest = if length > 200 { 64 * 1024 } else { 70 };
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let max = random.random_range(CHARACTER_BYTES_MAX..=longest);
                let end = boundary(rest.as_bytes(), max);
                assert!(end > 0 && end <= max, "round {round}: {end} of {max}");
                // It panics if a character is cut.
                rest = &rest[end..];
            }
        }
    }

    /// G2: every bound from 1 byte to 64 KiB.
    #[test]
    fn no_bound_cuts_a_character() {
        let text = "aé€😀".repeat(7_000);
        for max in 1..=64 * 1024 {
            let end = boundary(text.as_bytes(), max);
            // Where not even one character fits, it is no place between two.
            let is_whole = max < CHARACTER_BYTES_MAX || text.is_char_boundary(end);
            assert!(is_whole && end <= max && end + CHARACTER_BYTES_MAX > max, "{max}: {end}");
        }
    }
}
