//! Cursors: a place in a response, as a text that only the daemon can make.
//!
//! A cursor is the place and a mark over place and response, in lower-case hex digits. It is never
//! authority: whoever shows one must own the session all the same. The key outlives a restart, so
//! a cursor does too.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::api::{Uid, hex};

/// Bytes of the place.
const OFFSET_BYTES: usize = 8;
/// Bytes of the mark: 128 bits, more than anybody can guess.
const MARK_BYTES: usize = 16;
/// Characters of every cursor.
pub const CURSOR_CHARS: usize = 2 * (OFFSET_BYTES + MARK_BYTES);

/// What makes cursors and tells its own.
#[derive(Clone)]
pub struct Cursors {
    key: [u8; 32],
}

impl fmt::Debug for Cursors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cursors")
    }
}

impl Cursors {
    /// From what only this daemon knows, and knows again after a restart.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        // Its own use of the secret: no mark tells anything of another use.
        Self {
            key: Sha256::new_with_prefix(b"spawnlet-cursor-1:")
                .chain_update(secret)
                .finalize()
                .into(),
        }
    }

    /// The cursor of a place in a response.
    #[must_use]
    pub fn make(&self, response: &Uid, offset: u64) -> String {
        let mut bytes = [0_u8; OFFSET_BYTES + MARK_BYTES];
        bytes[..OFFSET_BYTES].copy_from_slice(&offset.to_be_bytes());
        bytes[OFFSET_BYTES..].copy_from_slice(&self.mark(response, offset));
        hex(&bytes)
    }

    /// The place that a cursor names; none if it is not, letter for letter, one that was made for
    /// this response.
    #[must_use]
    pub fn read(&self, response: &Uid, cursor: &str) -> Option<u64> {
        let digits = cursor.get(..2 * OFFSET_BYTES)?;
        let offset = u64::from_str_radix(digits, 16).ok()?;
        // Compared as a whole: another way to write the same is another cursor.
        let made = self.make(response, offset);
        let difference = made.bytes().zip(cursor.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        (made.len() == cursor.len() && std::hint::black_box(difference) == 0).then_some(offset)
    }

    /// Key and place have a fixed length and the response comes last, so the mark of one input is
    /// never the beginning of another's.
    fn mark(&self, response: &Uid, offset: u64) -> [u8; MARK_BYTES] {
        let digest = Sha256::new_with_prefix(self.key)
            .chain_update(offset.to_be_bytes())
            .chain_update(response.as_str().as_bytes())
            .finalize();
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(&digest[..MARK_BYTES]);
        mark
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    fn response() -> Uid {
        Uid::from("01890a5d-ac96-774b-bcce-b302099a8057")
    }

    #[test]
    fn a_cursor_names_its_place_also_to_the_next_daemon() {
        for offset in [0, 1, 24_576, u64::MAX] {
            let cursor = Cursors::new(b"secret").make(&response(), offset);
            assert_eq!(cursor.len(), CURSOR_CHARS);
            assert_eq!(Cursors::new(b"secret").read(&response(), &cursor), Some(offset));
            assert_eq!(Cursors::new(b"other").read(&response(), &cursor), None);
        }
    }

    #[test]
    fn a_cursor_is_bound_to_its_response_and_to_its_letters() {
        let cursors = Cursors::new(b"secret");
        let cursor = cursors.make(&response(), 4096);
        let other = Uid::from("01890a5d-ac96-774b-bcce-b302099a8058");
        assert_eq!(cursors.read(&other, &cursor), None);
        let upper = cursor.to_uppercase();
        assert!(upper != cursor);
        for changed in [
            upper.as_str(),
            "",
            &cursor[1..],
            &cursor[..CURSOR_CHARS - 1],
            &format!("{cursor}0"),
            &format!(" {cursor}"),
            &format!("{cursor}\n"),
            &format!("+{}", &cursor[1..]),
            "äöüäöüäöüäöüäöüäöüäöüäöü",
        ] {
            assert_eq!(cursors.read(&response(), changed), None, "{changed:?}");
        }
    }

    #[test]
    fn no_forged_cursor_is_taken() {
        let seed = 0x5eed_0000_0003;
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let cursors = Cursors::new(b"secret");
        let real = cursors.make(&response(), 24_576);
        let foreign = cursors.make(&Uid::from("01890a5d-ac96-774b-bcce-b302099a8058"), 24_576);
        let mut taken = 0;
        for round in 0..100_000 {
            let forged = match round % 4 {
                0 => hex(&std::array::from_fn::<u8, { OFFSET_BYTES + MARK_BYTES }, _>(|_| {
                    random.random()
                })),
                // One digit of a real one is another.
                1 => {
                    let at = random.random_range(0..CURSOR_CHARS);
                    let digit = char::from(b"0123456789abcdef"[random.random_range(0..16)]);
                    let mut changed = real.clone();
                    changed.replace_range(at..=at, &digit.to_string());
                    if changed == real { continue } else { changed }
                }
                // The place of one, the mark of another.
                2 => format!("{:016x}{}", random.random::<u64>(), &real[2 * OFFSET_BYTES..]),
                _ => format!("{}{}", &real[..2 * OFFSET_BYTES], &foreign[2 * OFFSET_BYTES..]),
            };
            taken += usize::from(cursors.read(&response(), &forged).is_some());
        }
        assert_eq!(taken, 0, "seed {seed}");
    }
}
