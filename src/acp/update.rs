//! Reads `session/update`: what we need of it, whatever else it holds.
//!
//! Invariant: an update is never lost because of what is in it; a field that cannot be understood
//! is as if it were absent, and the update's text stays as it came.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::event::{ToolUpdate, UpdateKind};

/// An update without its place in the order of things.
#[derive(Debug)]
pub(super) struct Reported {
    pub(super) session: String,
    pub(super) kind: UpdateKind,
    pub(super) raw: Box<RawValue>,
    pub(super) text: Option<String>,
    /// What is needed of a tool call's update or of an option's change.
    pub(super) details: Option<Value>,
    pub(super) tool: Option<ToolUpdate>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    update: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tag<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
}

/// The update in a notification's parameters; `None` if it names no session or no sort.
pub(super) fn read(params: &RawValue) -> Option<Reported> {
    let params: Params<'_> = serde_json::from_str(params.get()).ok()?;
    let tag: Tag<'_> = serde_json::from_str(params.update.get()).ok()?;
    let kind = UpdateKind::parse(&tag.session_update);
    let text = match kind {
        UpdateKind::AgentMessageChunk => tag.content.and_then(text_of),
        _ => None,
    };
    let details: Option<Value> = match kind {
        UpdateKind::ToolCall
        | UpdateKind::ToolCallUpdate
        | UpdateKind::CurrentModeUpdate
        | UpdateKind::ConfigOptionUpdate => details(params.update),
        _ => None,
    };
    let tool = match kind {
        UpdateKind::ToolCall | UpdateKind::ToolCallUpdate => details.as_ref().and_then(tool_update),
        _ => None,
    };
    let (session, raw) = (params.session_id.into_owned(), params.update.to_owned());
    Some(Reported { session, kind, raw, text, details, tool })
}

/// The fields that are read, each by itself: one that cannot be parsed (a tool's raw input may nest
/// deeper than the parser goes) must not hide the others. Targets that cannot be read count as
/// ones outside: they are named, but not known.
pub(super) fn details(update: &RawValue) -> Option<Value> {
    const TEXTS: &[&str] =
        &["toolCallId", "title", "kind", "status", "currentModeId", "configOptions"];
    let fields: HashMap<String, &RawValue> = serde_json::from_str(update.get()).ok()?;
    let read = |name: &str| serde_json::from_str::<Value>(fields.get(name)?.get()).ok();
    let mut found = serde_json::Map::new();
    for name in TEXTS {
        if let Some(value) = read(name) {
            found.insert((*name).to_owned(), value);
        }
    }
    for name in ["locations", "content"].into_iter().filter(|name| fields.contains_key(*name)) {
        let unknown = || serde_json::json!([{"type": "diff"}]);
        found.insert(name.to_owned(), read(name).unwrap_or_else(unknown));
    }
    Some(Value::Object(found))
}

/// What is said of a tool call; `None` without an id.
fn tool_update(said: &Value) -> Option<ToolUpdate> {
    let text = |name: &str| said.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(ToolUpdate {
        id: text("toolCallId")?,
        title: text("title"),
        status: text("status"),
        kind: text("kind"),
    })
}

fn text_of(content: &RawValue) -> Option<String> {
    let content: Content<'_> = serde_json::from_str(content.get()).ok()?;
    let text = content.text.filter(|_| content.kind == "text")?.get();
    serde_json::from_str(text).ok().or_else(|| serde_json::from_str(&without_halves(text)).ok())
}

/// Puts the replacement character for each escaped half of a surrogate pair that stands alone:
/// agents in JavaScript write such halves when they cut text between them.
fn without_halves(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match surrogate(rest) {
            Some(high) if high < 0xdc00 => match surrogate(&rest[6..]) {
                Some(low) if low >= 0xdc00 => 12,
                Some(_) | None => 0,
            },
            Some(_) => 0,
            None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        if length == 0 {
            out.push('\u{fffd}');
            rest = &rest[6..];
        } else {
            out.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    out.push_str(rest);
    out
}

/// The surrogate that an escape at the beginning of `text` stands for, if it is one.
fn surrogate(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let unit = u32::from_str_radix(digits, 16).ok()?;
    (0xd800..0xe000).contains(&unit).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(update: &str) -> Option<Reported> {
        let params = format!(r#"{{"sessionId":"s","update":{update}}}"#);
        read(&RawValue::from_string(params).unwrap())
    }

    #[test]
    fn an_update_with_odd_parts_is_read_all_the_same() {
        let update = r#"{"sessionUpdate":"tool_call","toolCallId":"1","title":7,"kind":"new"}"#;
        let found = reported(update).unwrap();
        assert_eq!(found.raw.get(), update);
        let tool = found.tool.unwrap();
        assert_eq!((tool.title, tool.kind.as_deref()), (None, Some("new")));

        let found = reported(r#"{"sessionUpdate":"never_heard_of","x":[1]}"#).unwrap();
        assert_eq!(found.kind, UpdateKind::Unknown("never_heard_of".into()));
        let found = reported(r#"{"sessionUpdate":"agent_message_chunk","content":[1]}"#).unwrap();
        assert_eq!(found.text, None);
        assert!(reported(r#"{"sessionUpdate":7}"#).is_none());
        assert!(reported("{}").is_none());
    }

    #[test]
    fn what_cannot_be_parsed_hides_nothing_else() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        let update = |field: &str| {
            let update = format!(
                r#"{{"sessionUpdate":"tool_call","toolCallId":"1","title":"T","{field}":{deep}}}"#
            );
            reported(&update).unwrap()
        };
        assert_eq!(update("rawInput").tool.unwrap().title.as_deref(), Some("T"));
        let roots = crate::acp::roots::Roots::new(vec!["/".into()]);
        for (field, inside) in [("rawInput", true), ("locations", false), ("content", false)] {
            let mut calls = crate::acp::permission::ToolCalls::default();
            calls.learn("1", &update(field).details.unwrap());
            assert_eq!(calls.is_inside("1", &roots), inside, "{field}");
        }
    }

    #[test]
    fn halves_of_surrogate_pairs_do_not_lose_the_text_around_them() {
        let chunk = |text: &str| {
            let content = format!(r#"{{"type":"text","text":"{text}"}}"#);
            let update =
                format!(r#"{{"sessionUpdate":"agent_message_chunk","content":{content}}}"#);
            reported(&update).unwrap().text
        };
        assert_eq!(chunk(r"a\ud83d").as_deref(), Some("a\u{fffd}"));
        assert_eq!(chunk(r"\ude00b\n\\ud83d").as_deref(), Some("\u{fffd}b\n\\ud83d"));
        assert_eq!(chunk(r"\ud83d\ude00\ud83dx").as_deref(), Some("😀\u{fffd}x"));
        assert_eq!(chunk(r"\ud83d\ud83d\ude00").as_deref(), Some("\u{fffd}😀"));
        assert_eq!(chunk(r"\u00e9\ud800\u0041").as_deref(), Some("é\u{fffd}A"));
    }
}
