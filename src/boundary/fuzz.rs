//! Fuzz targets of the boundary: `cursor_handle` (nobody makes a cursor up), `page_rejoin` (pieces of
//! any size are the text) and `escape_roundtrip` (escaped text is harmless, bounded, and can be read
//! back).

use super::cursor::Cursors;
use super::cut::boundary;
use super::escape::{corpus, escape, is_raw, unescape};
use crate::api::Uid;
use crate::fuzz::{drive, shape};

#[test]
fn fuzz_cursor_handle() {
    let cursors = Cursors::new(b"fuzz");
    let response = Uid::from("0190a5c0-0000-7000-8000-000000000001");
    let other = Uid::from("0190a5c0-0000-7000-8000-000000000002");
    let made: Vec<(u64, String)> = [0, 1, 65_536, u64::MAX]
        .into_iter()
        .map(|offset| (offset, cursors.make(&response, offset)))
        .collect();
    let seeds: Vec<Vec<u8>> = made.iter().map(|(_, text)| text.clone().into_bytes()).collect();
    drive("cursor_handle", &seeds, [50_000, 100_000, 2_000_000], &|input| {
        let Ok(text) = std::str::from_utf8(input) else { return 0 };
        let read = cursors.read(&response, text);
        let known = made.iter().find(|(_, made)| made == text).map(|(offset, _)| *offset);
        assert_eq!(read, known, "{text:?}");
        assert_eq!(cursors.read(&other, text), None, "{text:?}");
        shape((read, text.len().min(80)))
    });
}

#[test]
fn fuzz_page_rejoin() {
    let seeds = [b"\x07a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 and more".to_vec(), vec![4; 64]];
    drive("page_rejoin", &seeds, [20_000, 100_000, 2_000_000], &|input| {
        let Some((first, text)) = input.split_first() else { return 0 };
        let max = usize::from(*first).max(4);
        let is_text = std::str::from_utf8(text).is_ok();
        let (mut rest, mut joined, mut pieces) = (text, Vec::new(), 0_usize);
        while !rest.is_empty() {
            let end = boundary(rest, max);
            assert!(end > 0 && end <= max, "{end} of {max}");
            assert!(!is_text || std::str::from_utf8(&rest[..end]).is_ok(), "a character was cut");
            joined.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
            pieces += 1;
        }
        assert_eq!(joined, text);
        shape((is_text, pieces.min(20), max.min(32)))
    });
}

#[test]
fn fuzz_escape_roundtrip() {
    let seeds: Vec<Vec<u8>> = corpus::strings().into_iter().map(String::into_bytes).collect();
    drive("escape_roundtrip", &seeds, [20_000, 100_000, 2_000_000], &|input| {
        let Some((first, text)) = input.split_first() else { return 0 };
        let text = String::from_utf8_lossy(text);
        let whole = escape(&text, usize::MAX);
        assert_eq!(corpus::fault(&whole), None);
        assert_eq!(unescape(&whole).as_deref(), Some(text.as_ref()));
        let max = usize::from(*first);
        let cut = escape(&text, max);
        assert!(cut.len() <= max, "{} of {max}", cut.len());
        let kept = if cut == whole { &cut } else { cut.strip_suffix('…').unwrap_or(&cut) };
        assert!(text.starts_with(&unescape(kept).unwrap()), "{cut:?} is no beginning");
        let read_back = unescape(&text);
        if let Some(meant) = &read_back {
            assert_eq!(escape(meant, usize::MAX), text);
        }
        let raw = text.chars().filter(|character| is_raw(*character)).count();
        shape((raw.min(20), whole.len().min(300) / 10, cut == whole, read_back.is_some()))
    });
}
