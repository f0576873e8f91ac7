//! In which shape a client wants to see objects: plain, as a table, or the metadata alone.
//!
//! Chosen by the Accept header (Kubernetes API concepts, "Receiving resources as Tables").

use axum::http::{HeaderMap, header};
use serde_json::{Value, json};

use super::query::Query;
use super::resource::Resource;
use super::status::Failure;
use super::table;
use crate::api::Time;

/// The wanted shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The objects themselves.
    Plain,
    /// A `Table`; each row carries this much of its object.
    Table(Include),
    /// `PartialObjectMetadata`, or a list of such.
    Partial,
}

/// How much of its object a table's row carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    /// The metadata, as `PartialObjectMetadata`.
    Metadata,
    /// All of it.
    Object,
    /// Nothing.
    None,
}

/// What a list says about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct ListMeta {
    /// The revision that it is a picture of.
    pub(super) resource_version: String,
    /// Where the next page begins.
    pub(super) next: Option<String>,
}

impl View {
    /// Reads Accept and `includeObject`. The first type that is served wins.
    ///
    /// # Errors
    ///
    /// 406 if none is served, 400 for an unknown `includeObject`.
    pub(super) fn of(headers: &HeaderMap, query: &Query) -> Result<Self, Failure> {
        let include = match query.get("includeObject") {
            None | Some("Metadata") => Include::Metadata,
            Some("Object") => Include::Object,
            Some("None") => Include::None,
            Some(other) => {
                return Err(Failure::bad_request(format!(
                    "query includeObject={other}: expected Metadata, Object or None"
                )));
            }
        };
        let accept = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect::<Vec<_>>()
            .join(",");
        if accept.trim().is_empty() {
            return Ok(Self::Plain);
        }
        accept
            .split(',')
            .find_map(|media| Self::of_media(media, include))
            .ok_or_else(Failure::not_acceptable)
    }

    fn of_media(media: &str, include: Include) -> Option<Self> {
        let mut parts = media.split(';').map(str::trim);
        let name = parts.next()?.to_ascii_lowercase();
        if !matches!(name.as_str(), "application/json" | "application/*" | "*/*") {
            return None;
        }
        let (mut shape, mut version) = (None, None);
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "as" => shape = Some(value.trim()),
                "v" => version = Some(value.trim()),
                "stream" => return None,
                _ => {}
            }
        }
        match (shape, version) {
            (None, _) => Some(Self::Plain),
            (Some("Table"), Some("v1") | None) => Some(Self::Table(include)),
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("v1") | None) => {
                Some(Self::Partial)
            }
            (Some(_), _) => None,
        }
    }

    /// One object in this shape.
    #[must_use]
    pub(super) fn one(self, resource: Resource, mut object: Value, now: Time) -> Value {
        without_hashes(&mut object);
        match self {
            Self::Plain => object,
            Self::Partial => partial(&object),
            Self::Table(include) => {
                let meta = json!({
                    "resourceVersion": object
                        .pointer("/metadata/resourceVersion")
                        .cloned()
                        .unwrap_or_default(),
                });
                table::of(resource, &[object], &meta, include, now)
            }
        }
    }

    /// A list in this shape.
    #[must_use]
    pub(super) fn list(
        self,
        resource: Resource,
        mut objects: Vec<Value>,
        meta: &ListMeta,
        now: Time,
    ) -> Value {
        objects.iter_mut().for_each(without_hashes);
        let mut metadata = json!({"resourceVersion": meta.resource_version});
        if let (Some(next), Some(map)) = (&meta.next, metadata.as_object_mut()) {
            map.insert("continue".to_owned(), json!(next));
        }
        match self {
            Self::Plain => json!({
                "kind": format!("{}List", resource.kind()),
                "apiVersion": resource.api_version(),
                "metadata": metadata,
                "items": objects,
            }),
            Self::Partial => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": objects.iter().map(partial).collect::<Vec<_>>(),
            }),
            Self::Table(include) => table::of(resource, &objects, &metadata, include, now),
        }
    }
}

/// An object's metadata under its own kind.
#[must_use]
pub(super) fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// Takes the hashes of a session's tokens away: they are the daemon's to compare, and noise to
/// everybody else.
fn without_hashes(object: &mut Value) {
    let tokens = object.pointer_mut("/status/tokens").and_then(Value::as_array_mut);
    for token in tokens.into_iter().flatten() {
        if let Some(token) = token.as_object_mut() {
            token.remove("sha256");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(accept: Option<&str>) -> Result<View, u16> {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(header::ACCEPT, accept.parse().unwrap());
        }
        View::of(&headers, &Query::default()).map_err(|failure| failure.code().as_u16())
    }

    #[test]
    fn the_first_served_media_type_wins() {
        let table = Ok(View::Table(Include::Metadata));
        assert_eq!(view(None), Ok(View::Plain));
        assert_eq!(view(Some("*/*")), Ok(View::Plain));
        assert_eq!(
            view(Some(
                "application/json;as=Table;v=v1;g=meta.k8s.io,\
                 application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            )),
            table
        );
        assert_eq!(
            view(Some("application/vnd.kubernetes.protobuf,application/json")),
            Ok(View::Plain)
        );
        assert_eq!(
            view(Some("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")),
            Ok(View::Partial)
        );
        assert_eq!(view(Some("application/yaml")), Err(406));
    }
}
