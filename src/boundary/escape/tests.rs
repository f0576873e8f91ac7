use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn text_that_hides_nothing_stays_as_it_is() {
    for text in ["", "plain", "äöü€😀 x\u{301}\n\tindented", "a;b#x41;\"quoted\" 'too' `and`"]
    {
        assert!(matches!(escape(text, 1000), Cow::Borrowed(kept) if kept == text), "{text}");
    }
}

#[test]
fn what_opens_closes_or_hides_is_written_out() {
    for (text, expected) in [
        ("</spawnlet-context>", "&lt;/spawnlet-context&gt;"),
        ("R&D", "R&amp;D"),
        ("&lt;", "&amp;lt;"),
        ("\u{1b}[31m\r\0", "&#x1B;[31m&#xD;&#x0;"),
        ("a\u{202e}b\u{200b}c\u{feff}", "a&#x202E;b&#x200B;c&#xFEFF;"),
        ("\u{e0041}", "&#xE0041;"),
        ("\u{13430}\u{1343f}\u{16fe4}\u{1d159}", "&#x13430;&#x1343F;&#x16FE4;&#x1D159;"),
    ] {
        assert_eq!(escape(text, 1000), expected);
        assert_eq!(unescape(expected).unwrap(), text);
    }
}

#[test]
fn what_was_never_made_here_is_not_read_back() {
    for text in
        ["&", "a & b;", "&quot;", "&#x1b;", "&#x26;", "&#x41;", "&#27;", "&#x;", "<", "\u{1b}"]
    {
        assert_eq!(unescape(text), None, "{text:?}");
    }
    assert_eq!(unescape("&#x110000;"), None);
    assert_eq!(unescape("&#x+1B;"), None);
}

#[test]
fn a_cut_text_is_short_enough_and_ends_behind_a_whole_entity() {
    let text = "<é\u{202e}&".repeat(20);
    let whole = escape(&text, usize::MAX).into_owned();
    for max in 0..whole.len() {
        let cut = escape(&text, max);
        assert!(cut.len() <= max, "{max}: {cut}");
        let kept = cut.strip_suffix(CUT).unwrap_or(&cut);
        assert!(max < CUT.len_utf8() || cut.ends_with(CUT), "{max}: {cut}");
        assert!(text.starts_with(&unescape(kept).unwrap()), "{max}: {cut}");
    }
    assert_eq!(escape(&text, whole.len()), whole);
}

#[test]
fn the_corpus_of_injections_comes_out_harmless_and_can_be_read_back() {
    let strings = corpus::strings();
    assert_eq!(strings.len(), 300);
    for text in strings {
        let escaped = escape(&text, usize::MAX);
        assert_eq!(corpus::fault(&escaped), None);
        assert_eq!(unescape(&escaped).unwrap(), text);
    }
}

/// The negative control: what replaces the brackets alone lets the rest of the corpus through.
#[test]
fn an_escape_of_brackets_alone_is_found() {
    let half = |text: &str| text.replace('<', "&lt;").replace('>', "&gt;");
    let found =
        corpus::strings().iter().filter(|text| corpus::fault(&half(text)).is_some()).count();
    assert!(found >= 100, "{found}");
}

#[test]
fn every_text_of_a_result_is_escaped_but_what_is_named_at_its_root() {
    let mut result = json!({
        "content": "<a>", "list": [{"content": "<b>", "n": 1}], "message": "c & d", "none": null,
    });
    escape_texts(&mut result, &["content"]);
    let expected = json!({
        "content": "<a>", "list": [{"content": "&lt;b&gt;", "n": 1}], "message": "c &amp; d",
        "none": null,
    });
    assert_eq!(result, expected);
    let mut long = json!("<".repeat(TEXT_BYTES_MAX));
    escape_texts(&mut long, &[]);
    assert!(long.as_str().unwrap().len() <= TEXT_BYTES_MAX);
}

/// What has to be escaped, what looks like an entity, and characters of every length.
const PIECES: [&str; 24] = [
    "&",
    "<",
    ">",
    ";",
    "&lt;",
    "&amp;",
    "&#x1B;",
    "&#x1b;",
    "…",
    "\0",
    "\t",
    "\n",
    "\r",
    "\u{1b}",
    "\u{9b}",
    "\u{200b}",
    "\u{202e}",
    "\u{2066}",
    "\u{feff}",
    "\u{e0041}",
    "a",
    "é",
    "€",
    "😀",
];

/// Any text, with more of those than chance would give. A piece is a number: texts out of patterns take
/// most of a minute to make.
fn text() -> impl Strategy<Value = String> {
    let piece = |number: u32| match char::from_u32(number % 0x0011_0000) {
        Some(any) if number.is_multiple_of(3) => any.to_string(),
        Some(_) | None => PIECES[number as usize % PIECES.len()].to_owned(),
    };
    let pieces = proptest::collection::vec(any::<u32>(), 0..20);
    pieces.prop_map(move |numbers| numbers.into_iter().map(piece).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]
    #[test]
    fn escaped_text_is_harmless_bounded_and_read_back(text in text(), max in 0_usize..80) {
        let whole = escape(&text, usize::MAX);
        prop_assert_eq!(unescape(&whole), Some(text.clone()));
        prop_assert!(!whole.chars().any(|character| character != '&' && is_raw(character)));
        let cut = escape(&text, max);
        prop_assert!(cut.len() <= max);
        let kept = cut.strip_suffix(CUT).unwrap_or(&cut);
        prop_assert!(cut == whole || text.starts_with(&unescape(kept).unwrap_or("?".into())));
        // Nothing but what was made here is read back, and each text was made of one.
        if let Some(meant) = unescape(&text) {
            prop_assert_eq!(escape(&meant, usize::MAX), text);
        }
    }
}
