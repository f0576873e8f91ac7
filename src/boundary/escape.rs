//! Escaping: text of a child that becomes part of what a model or a person reads.
//!
//! `&`, `<` and `>` become the ordinary entities, so nothing in the text opens or closes a section of
//! what is around it. What is not seen, or makes text look like other text, becomes `&#xNNNN;`: control
//! characters but line feed and tab (ESC first of all), what turns the direction of writing around, and
//! characters without a width, among them the tags and variation selectors in which whole sentences
//! can be hidden.
//!
//! Invariants: nothing that [`is_raw`] is left; text without any of it stays as it is, byte for byte;
//! the result is never longer than was asked for and ends behind a whole character or entity; what was
//! not cut is read back by [`unescape`], which takes nothing that [`escape`] does not make.
//!
//! Absent on purpose: any judgement of what the text says. Words that ask for something look like
//! words.

use std::borrow::Cow;

use serde_json::Value;

/// The most bytes of one escaped text in a result. A sentence of a record has 4 KiB at most; twice that
/// holds it whole unless it is made of what has to be escaped.
pub const TEXT_BYTES_MAX: usize = 8 * 1024;
/// Shows that a text was cut.
const CUT: char = '…';

/// Whether a character may not stand in an escaped text (`&` only as the beginning of an entity).
#[must_use]
pub const fn is_raw(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '&' | '<' | '>' => true,
        // C0, DEL and C1: terminals act on them.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => true,
        // What turns the direction of writing around (UAX 9), and its isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' => true,
        '\u{2066}'..='\u{2069}' => true,
        // Line and paragraph separators: a line of ours could be forged with them.
        '\u{2028}' | '\u{2029}' => true,
        // Without a width: soft hyphen, joiners, fillers, the byte order mark, annotations, and the
        // controls of hieroglyphs, shorthand and musical notation.
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' => true,
        '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' => true,
        '\u{fff0}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}' | '\u{16fe4}' | '\u{1d159}' => true,
        '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        // Variation selectors and tags: invisible, and enough of them for any text.
        '\u{fe00}'..='\u{fe0f}' | '\u{e0000}'..='\u{e0fff}' => true,
        _ => false,
    }
}

/// What stands for a character.
fn escaped(character: char) -> Cow<'static, str> {
    match character {
        '&' => "&amp;".into(),
        '<' => "&lt;".into(),
        '>' => "&gt;".into(),
        other => format!("&#x{:X};", u32::from(other)).into(),
    }
}

/// A text of a child's as it may stand among other text: at most `bytes_max` bytes, cut where it is
/// longer, and then ending in `…`.
#[must_use]
pub fn escape(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max && !text.contains(is_raw) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len().min(bytes_max));
    // The last place at which there is room for the mark of a cut.
    let mut room = 0;
    for character in text.chars() {
        if out.len() + CUT.len_utf8() <= bytes_max {
            room = out.len();
        }
        if is_raw(character) {
            out.push_str(&escaped(character));
        } else {
            out.push(character);
        }
        if out.len() > bytes_max {
            out.truncate(room);
            if room + CUT.len_utf8() <= bytes_max {
                out.push(CUT);
            }
            return Cow::Owned(out);
        }
    }
    Cow::Owned(out)
}

/// The text that [`escape`] made this of; none if it made no such text.
#[must_use]
pub fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if character == '&' {
            let (entity, behind) = rest.split_at(rest.find(';')? + 1);
            let meant = match entity {
                "&amp;" => '&',
                "&lt;" => '<',
                "&gt;" => '>',
                other => {
                    let digits = other.strip_prefix("&#x")?.strip_suffix(';')?;
                    char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
                }
            };
            // One way to write each: `&#x1b;` or `&#x26;` is nothing that was made here.
            if !is_raw(meant) || escaped(meant) != entity {
                return None;
            }
            out.push(meant);
            rest = behind;
        } else if is_raw(character) {
            return None;
        } else {
            out.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    Some(out)
}

/// Escapes every text in a result, however deep, but the fields of its root that are named.
pub fn escape_texts(result: &mut Value, verbatim: &[&str]) {
    match result {
        Value::String(text) => {
            if let Cow::Owned(escaped) = escape(text, TEXT_BYTES_MAX) {
                *text = escaped;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| escape_texts(item, &[])),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                if !verbatim.contains(&name.as_str()) {
                    escape_texts(value, &[]);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
pub(crate) mod corpus;

#[cfg(test)]
mod tests;
