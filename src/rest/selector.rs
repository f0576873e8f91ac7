//! Label and field selectors.
//!
//! Labels: Kubernetes' equality and set forms (API concepts, "Labels and Selectors"). Fields: a
//! closed list per kind, each a path into the object; an absent field is the empty string.

use serde_json::Value;

use super::query::Query;
use super::resource::Resource;
use super::status::Failure;
use crate::api::Kind;

/// What a list or watch is narrowed to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

/// One demand on the labels.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

/// One demand on a field.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    is_equal: bool,
}

impl Filter {
    /// Reads `labelSelector` and `fieldSelector`.
    ///
    /// # Errors
    ///
    /// 400 for what is malformed, for a field that the resource cannot be selected by, and for
    /// labels where the resource has none.
    pub(super) fn of(resource: Resource, query: &Query) -> Result<Self, Failure> {
        let labels = match query.get("labelSelector") {
            Some(_) if !has_labels(resource) => {
                return Err(Failure::bad_request(format!(
                    "labelSelector: {} have no labels",
                    resource.plural()
                )));
            }
            Some(text) => parse_labels(text).map_err(|why| {
                Failure::bad_request(format!(
                    "labelSelector {text:?}: {why}; expected such as a=b, a!=b, a in (b,c), \
                     a notin (b), a, !a"
                ))
            })?,
            None => Vec::new(),
        };
        let fields = match query.get("fieldSelector") {
            Some(text) => parse_fields(text)?,
            None => Vec::new(),
        };
        for requirement in &fields {
            if !is_selectable(resource, &requirement.field) {
                return Err(Failure::bad_request(format!(
                    "field label not supported: {}",
                    requirement.field
                )));
            }
        }
        Ok(Self { labels, fields })
    }

    /// Whether an object is wanted.
    #[must_use]
    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
        self.labels.iter().all(|requirement| match requirement {
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
            Requirement::In(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|one| one == value))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|value| values.iter().all(|one| one != value))
            }
        }) && self.fields.iter().all(|requirement| {
            let value = field_of(object, &requirement.field);
            (value == requirement.value) == requirement.is_equal
        })
    }

    /// Whether an object may start or cease to match in its life.
    #[must_use]
    pub(super) fn is_mutable(&self) -> bool {
        !self.labels.is_empty()
            || self.fields.iter().any(|requirement| !is_immutable(&requirement.field))
    }

    /// The value that this field must have, if one is demanded.
    #[must_use]
    pub(super) fn field(&self, field: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|requirement| requirement.is_equal && requirement.field == field)
            .map(|requirement| requirement.value.as_str())
    }
}

/// The fields that each kind can be selected by, beside name and namespace.
const fn selectable(resource: Resource) -> &'static [&'static str] {
    match resource {
        Resource::Records(Kind::Session) => &["status.phase", "spec.agent"],
        Resource::Records(Kind::Turn) => &["status.phase", "spec.session"],
        Resource::Records(Kind::PermissionRequest) => {
            &["status.phase", "spec.session", "spec.turn"]
        }
        Resource::Records(Kind::Namespace) => &["status.phase"],
        Resource::Records(Kind::Event) => &[
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "reason",
            "source",
            "type",
        ],
        Resource::Reports => &["object.kind", "object.name", "object.namespace", "outcome"],
        Resource::Records(Kind::Agent | Kind::Workspace | Kind::Role) | Resource::Manifests => &[],
    }
}

const fn has_labels(resource: Resource) -> bool {
    matches!(resource, Resource::Records(_))
}

fn is_selectable(resource: Resource, field: &str) -> bool {
    matches!(field, "metadata.name" | "metadata.namespace") || selectable(resource).contains(&field)
}

fn is_immutable(field: &str) -> bool {
    field.starts_with("metadata.")
        || field.starts_with("involvedObject.")
        || matches!(field, "spec.agent" | "spec.session" | "reason" | "source" | "type")
}

fn field_of<'a>(object: &'a Value, field: &str) -> &'a str {
    let field = if field == "source" { "source.component" } else { field };
    field
        .split('.')
        .try_fold(object, |value, name| value.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, Failure> {
    split_unescaped(text)
        .into_iter()
        .filter(|part| !part.trim().is_empty())
        .map(|part| {
            let (field, rest) = part.split_once('=').ok_or_else(|| {
                Failure::bad_request(format!(
                    "fieldSelector {part:?}: expected such as metadata.name=x or status.phase!=y"
                ))
            })?;
            let (field, is_equal) = match field.strip_suffix('!') {
                Some(field) => (field, false),
                None => (field, true),
            };
            let value = if is_equal { rest.strip_prefix('=').unwrap_or(rest) } else { rest };
            Ok(FieldRequirement {
                field: field.trim().to_owned(),
                value: unescape(value.trim()),
                is_equal,
            })
        })
        .collect()
}

/// Splits at commas that no backslash stands before (fields.ParseSelector's escapes).
fn split_unescaped(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_escaped = false;
    for character in text.chars() {
        if character == ',' && !is_escaped {
            parts.push(String::new());
            continue;
        }
        is_escaped = character == '\\' && !is_escaped;
        if let Some(last) = parts.last_mut() {
            last.push(character);
        }
    }
    parts
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        out.push(if character == '\\' { characters.next().unwrap_or('\\') } else { character });
    }
    out
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (requirement, tail) = parse_requirement(rest)?;
        requirements.push(requirement);
        let tail = tail.trim_start();
        rest = match tail.strip_prefix(',') {
            Some(next) if next.trim().is_empty() => return Err("it ends in a comma".to_owned()),
            Some(next) => next.trim_start(),
            None if tail.is_empty() => tail,
            None => return Err(format!("unexpected {tail:?}")),
        };
    }
    Ok(requirements)
}

fn parse_requirement(text: &str) -> Result<(Requirement, &str), String> {
    if let Some(rest) = text.strip_prefix('!') {
        let (key, rest) = take_word(rest.trim_start())?;
        return Ok((Requirement::Absent(key), rest));
    }
    let (key, rest) = take_word(text)?;
    let rest = rest.trim_start();
    if let Some(rest) = rest.strip_prefix("!=") {
        let (value, rest) = take_value(rest);
        return Ok((Requirement::NotIn(key, vec![value]), rest));
    }
    if let Some(rest) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
        let (value, rest) = take_value(rest);
        return Ok((Requirement::In(key, vec![value]), rest));
    }
    let set = |rest: &str| rest.starts_with(char::is_whitespace) || rest.starts_with('(');
    if let Some(rest) = rest.strip_prefix("in").filter(|rest| set(rest)) {
        let (values, rest) = take_set(rest)?;
        return Ok((Requirement::In(key, values), rest));
    }
    if let Some(rest) = rest.strip_prefix("notin").filter(|rest| set(rest)) {
        let (values, rest) = take_set(rest)?;
        return Ok((Requirement::NotIn(key, values), rest));
    }
    Ok((Requirement::Exists(key), rest))
}

fn word_end(text: &str) -> usize {
    text.find(|character: char| {
        !(character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_' | '/'))
    })
    .unwrap_or(text.len())
}

fn take_word(text: &str) -> Result<(String, &str), String> {
    let (word, rest) = text.split_at(word_end(text));
    if word.is_empty() {
        return Err(format!("expected a label's name at {text:?}"));
    }
    Ok((word.to_owned(), rest))
}

fn take_value(text: &str) -> (String, &str) {
    let text = text.trim_start();
    let (word, rest) = text.split_at(word_end(text));
    (word.to_owned(), rest)
}

fn take_set(text: &str) -> Result<(Vec<String>, &str), String> {
    let body = text.trim_start().strip_prefix('(').ok_or("expected ( after in or notin")?;
    let (inside, rest) = body.split_once(')').ok_or("a ( is not closed")?;
    let values = inside
        .split(',')
        .map(|value| {
            let (word, rest) = take_value(value);
            if rest.trim().is_empty() { Ok(word) } else { Err(format!("unexpected {rest:?}")) }
        })
        .collect::<Result<_, String>>()?;
    Ok((values, rest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filter(key: &str, text: &str) -> Result<Filter, Failure> {
        let pairs: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let query = Query::of(&format!("/?{key}={pairs}").parse().unwrap()).unwrap();
        Filter::of(Resource::Records(Kind::Session), &query)
    }

    #[test]
    fn label_selectors_hold_in_every_form() {
        let object = json!({"metadata": {"labels": {"a": "1", "x.io/b": "two", "e": ""}}});
        for (text, is_match) in [
            ("a=1", true),
            ("a==1,x.io/b=two", true),
            ("a!=1", false),
            ("c!=1", true),
            ("a in (0, 1)", true),
            ("a in(2)", false),
            ("a notin (2,3),c notin (1)", true),
            ("a", true),
            ("c", false),
            ("!c", true),
            ("! a", false),
            ("e=", true),
            ("in in (in)", false),
            ("notin", false),
            ("a , x.io/b", true),
        ] {
            let filter = filter("labelSelector", text).unwrap();
            assert_eq!(filter.matches(&object), is_match, "{text}");
            assert!(filter.is_mutable());
        }
        for text in ["a in 1", "a in (1", "=1", "a=1,", "a=1 b", "a>1"] {
            let failure = filter("labelSelector", text).unwrap_err();
            assert_eq!(failure.code().as_u16(), 400, "{text}");
        }
    }

    #[test]
    fn field_selectors_know_a_closed_list() {
        let object = json!({"metadata": {"name": "n,1"}, "status": {"phase": "Idle"}});
        for (text, is_match) in [
            ("status.phase=Idle", true),
            ("status.phase!=Idle", false),
            ("metadata.name==n\\,1,metadata.namespace=", true),
        ] {
            assert_eq!(filter("fieldSelector", text).unwrap().matches(&object), is_match, "{text}");
        }
        assert!(!filter("fieldSelector", "metadata.name=x").unwrap().is_mutable());
        assert_eq!(
            filter("fieldSelector", "spec.color=red").unwrap_err().message(),
            "field label not supported: spec.color"
        );
        assert!(filter("fieldSelector", "nonsense").is_err());
    }
}
