//! Names that the daemon makes. They are made from the record, so that making one twice makes the
//! same name, and a second pass makes no second record.

use super::{Name, Uid};

/// The longest DNS label (RFC 1123).
pub const LABEL_CHARS_MAX: usize = 63;
/// Characters of the agent's name in a session's: with the hyphen and 12 digits at most 53.
const AGENT_CHARS_MAX: usize = 40;
/// Hex digits of the uid in a session's name: the random tail of a UUID v7.
const UID_DIGITS: usize = 12;
/// Characters of the session's name in a turn's: leaves 12 digits of the 63 of a DNS label.
const SESSION_CHARS_MAX: usize = 50;
/// Characters of a long turn's name in a request's: leaves 12 digits of its uid and 12 of a number.
const TURN_CHARS_MAX: usize = 36;

/// `<agent, 40>-<12 hex of the uid>`; `session-<12 hex>` if the agent's name makes no DNS label.
#[must_use]
pub fn session_name(agent: &str, uid: &Uid) -> Name {
    let agent = stem(agent, AGENT_CHARS_MAX);
    let agent = if agent.is_empty() { "session" } else { agent.as_str() };
    Name::new(format!("{agent}-{}", uid_tail(uid)))
}

/// `<session, 50>-<n>`, `n` from 1.
#[must_use]
pub fn turn_name(session: &Name, number: u64) -> Name {
    Name::new(format!("{}-{number}", stem(session.as_str(), SESSION_CHARS_MAX)))
}

/// `<turn>-p<n>`, `n` the number of the request in its process; a turn's name that leaves no room for
/// that is cut to 36 characters and told apart by 12 hex of the turn's uid.
#[must_use]
pub fn permission_name(turn: &Name, uid: &Uid, number: u64) -> Name {
    if turn.as_str().len() <= SESSION_CHARS_MAX {
        return Name::new(format!("{turn}-p{number}"));
    }
    Name::new(format!("{}-{}-p{number}", stem(turn.as_str(), TURN_CHARS_MAX), uid_tail(uid)))
}

/// `<prefix><12 hex of the uid>` for `metadata.generateName`, the prefix cut so that it stays a
/// DNS label.
#[must_use]
pub fn generated_name(prefix: &str, uid: &Uid) -> Name {
    let prefix: String = prefix.chars().take(LABEL_CHARS_MAX - UID_DIGITS).collect();
    Name::new(format!("{prefix}{}", uid_tail(uid)))
}

fn uid_tail(uid: &Uid) -> String {
    let hex: Vec<char> = uid.as_str().chars().filter(char::is_ascii_hexdigit).collect();
    hex[hex.len().saturating_sub(UID_DIGITS)..].iter().collect()
}

/// What a DNS label may begin with: lower case, cut, without hyphens at its ends.
fn stem(text: &str, chars_max: usize) -> String {
    let label: String = text
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(chars_max)
        .collect();
    label.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid() -> Uid {
        Uid::from("01936f3e-7c00-7abc-8def-0123456789ab")
    }

    #[test]
    fn a_session_is_named_after_its_agent_and_the_tail_of_its_uid() {
        assert_eq!(session_name("codexz", &uid()).as_str(), "codexz-0123456789ab");
    }

    #[test]
    fn a_long_agent_name_is_cut_to_forty_characters() {
        let name = session_name(&"a".repeat(63), &uid());
        assert_eq!(name.as_str(), format!("{}-0123456789ab", "a".repeat(40)));
    }

    #[test]
    fn a_turn_is_named_after_its_session_and_its_number() {
        assert_eq!(turn_name(&Name::from("review"), 3).as_str(), "review-3");
        let long = turn_name(&Name::from("b".repeat(63)), u64::from(u32::MAX));
        assert_eq!(long.as_str(), format!("{}-4294967295", "b".repeat(50)));
    }

    #[test]
    fn a_cut_that_ends_in_a_hyphen_does_not_double_it() {
        let session = Name::from(format!("{}-x", "c".repeat(49)));
        assert_eq!(turn_name(&session, 1).as_str(), format!("{}-1", "c".repeat(49)));
    }

    #[test]
    fn a_request_is_named_after_its_turn_and_its_number() {
        let name = |turn: &str, number| permission_name(&Name::from(turn), &uid(), number);
        assert_eq!(name("review-1", 2).as_str(), "review-1-p2");
        let long = name(&"d".repeat(63), 999_999_999_999);
        assert_eq!(long.as_str(), format!("{}-0123456789ab-p999999999999", "d".repeat(36)));
        assert_eq!(long.as_str().len(), LABEL_CHARS_MAX);
    }

    #[test]
    fn a_generated_name_keeps_its_prefix() {
        assert_eq!(generated_name("try-", &uid()).as_str(), "try-0123456789ab");
        assert!(generated_name(&"d".repeat(80), &uid()).as_str().len() <= 63);
    }
}
