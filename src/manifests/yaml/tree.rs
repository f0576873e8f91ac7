//! From the parser's events to documents, within the bounds, one event at a time.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::{Map, Value};

use super::{
    ALIASES_MAX, DEPTH_MAX, Document, EXPANDED_BYTES_MAX, Error, NODES_MAX, Place, Places, scalar,
};

/// Reads every document that is not empty.
#[expect(clippy::disallowed_methods, reason = "this is the one place that parses YAML")]
pub(super) fn parse(text: &str) -> Result<Vec<Document>, Error> {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| builder.syntax(&error))?;
        builder.take(event, span)?;
    }
    Ok(builder.documents)
}

/// A finished value, and what it counts for where an alias repeats it.
#[derive(Clone)]
struct Node {
    value: Value,
    nodes: usize,
    depth: usize,
    bytes: usize,
}

enum Content {
    Sequence(Vec<Value>),
    Mapping { map: Map<String, Value>, key: Option<(String, Place)> },
}

/// A collection that is being read.
struct Frame {
    content: Content,
    places: Places,
    anchor: usize,
    nodes: usize,
    depth: usize,
    bytes: usize,
}

impl Frame {
    fn new(content: Content, places: Places, anchor: usize) -> Self {
        Self { content, places, anchor, nodes: 1, depth: 1, bytes: 0 }
    }

    fn awaits_key(&self) -> bool {
        matches!(self.content, Content::Mapping { key: None, .. })
    }

    /// The field that the next value belongs to, and where its name stands.
    fn slot(&self) -> (String, Option<Place>) {
        match &self.content {
            Content::Sequence(items) => (format!("[{}]", items.len()), None),
            Content::Mapping { key: Some((key, place)), .. } => (key.clone(), Some(*place)),
            Content::Mapping { key: None, .. } => (String::new(), None),
        }
    }

    fn insert(&mut self, node: Node, mut places: Places) {
        let (name, key_place) = self.slot();
        if let Some(place) = key_place {
            places.key = place;
        }
        self.places.children.insert(name, places);
        self.nodes += node.nodes;
        self.depth = self.depth.max(node.depth + 1);
        self.bytes += node.bytes;
        match &mut self.content {
            Content::Sequence(items) => items.push(node.value),
            Content::Mapping { map, key } => {
                if let Some((key, _)) = key.take() {
                    map.insert(key, node.value);
                }
            }
        }
    }
}

#[derive(Default)]
struct Builder {
    documents: Vec<Document>,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    bytes: usize,
    aliases: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Error> {
        let place = place(&span.start);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                // An anchor holds in its own document only.
                self.anchors.clear();
                Ok(())
            }
            Event::Alias(anchor) => self.alias(anchor, place),
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(&text, style, anchor, tag.as_deref(), place)
            }
            Event::SequenceStart(anchor, tag) => {
                self.open(Content::Sequence(Vec::new()), anchor, tag.as_deref(), "seq", place)
            }
            Event::MappingStart(anchor, tag) => {
                let content = Content::Mapping { map: Map::new(), key: None };
                self.open(content, anchor, tag.as_deref(), "map", place)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        place: Place,
    ) -> Result<(), Error> {
        self.count(1, text.len(), place)?;
        if let Some(frame) = self.stack.last_mut()
            && frame.awaits_key()
        {
            frame.nodes += 1;
            frame.bytes += text.len();
            return self.key(text, place);
        }
        let value =
            scalar::resolve(text, style, tag).map_err(|message| self.fault(place, message))?;
        let node = Node { value, nodes: 1, depth: 0, bytes: text.len() };
        self.finish(node, Places::at(place, place), anchor);
        Ok(())
    }

    fn key(&mut self, text: &str, place: Place) -> Result<(), Error> {
        let Some(Frame { content: Content::Mapping { map, key }, places, .. }) =
            self.stack.last_mut()
        else {
            return Ok(());
        };
        let Some(first) = places.children.get(text).filter(|_| map.contains_key(text)) else {
            *key = Some((text.to_owned(), place));
            return Ok(());
        };
        let first = first.key;
        let mut fault = self.fault(place, format!("stands twice, first at {first}, expected once"));
        fault.field = if fault.field.is_empty() {
            text.to_owned()
        } else {
            format!("{}.{text}", fault.field)
        };
        Err(fault)
    }

    fn alias(&mut self, anchor: usize, place: Place) -> Result<(), Error> {
        self.aliases += 1;
        if self.aliases > ALIASES_MAX {
            return Err(self.fault(place, format!("more than {ALIASES_MAX} aliases in the file")));
        }
        if self.stack.last().is_some_and(Frame::awaits_key) {
            return Err(self.fault(place, "an alias stands for a key, expected the key itself"));
        }
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(self.fault(place, "an alias of an anchor that is not complete here"));
        };
        let (nodes, bytes, depth) = (node.nodes, node.bytes, node.depth);
        self.count(nodes, bytes, place)?;
        self.check_depth(depth, place)?;
        // Cloned only after the bounds were held.
        if let Some(node) = self.anchors.get(&anchor).cloned() {
            self.finish(node, Places::at(place, place), 0);
        }
        Ok(())
    }

    fn open(
        &mut self,
        content: Content,
        anchor: usize,
        tag: Option<&Tag>,
        core_tag: &str,
        place: Place,
    ) -> Result<(), Error> {
        self.count(1, 0, place)?;
        self.check_depth(1, place)?;
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && tag.suffix == core_tag)
        {
            return Err(self.fault(place, format!("the tag {tag} is unknown, expected no tag")));
        }
        if self.stack.last().is_some_and(Frame::awaits_key) {
            return Err(self.fault(place, "a list or a mapping stands for a key, expected text"));
        }
        self.stack.push(Frame::new(content, Places::at(place, place), anchor));
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some(frame) = self.stack.pop() else { return Ok(()) };
        let Frame { content, places, anchor, nodes, depth, bytes } = frame;
        let value = match content {
            Content::Sequence(items) => Value::Array(items),
            Content::Mapping { map, .. } => Value::Object(map),
        };
        self.finish(Node { value, nodes, depth, bytes }, places, anchor);
        Ok(())
    }

    fn finish(&mut self, node: Node, places: Places, anchor: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.stack.last_mut() {
            Some(frame) => frame.insert(node, places),
            None if node.value.is_null() => {}
            None => self.documents.push(Document { value: node.value, places }),
        }
    }

    fn count(&mut self, nodes: usize, bytes: usize, place: Place) -> Result<(), Error> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            return Err(self.fault(place, format!("more than {NODES_MAX} values in the file")));
        }
        self.bytes += bytes;
        if self.bytes > EXPANDED_BYTES_MAX {
            let message = format!("aliases make more than {EXPANDED_BYTES_MAX} bytes of text");
            return Err(self.fault(place, message));
        }
        Ok(())
    }

    fn check_depth(&self, more: usize, place: Place) -> Result<(), Error> {
        if self.stack.len() + more > DEPTH_MAX {
            return Err(self.fault(place, format!("nested more than {DEPTH_MAX} levels deep")));
        }
        Ok(())
    }

    fn syntax(&self, error: &ScanError) -> Error {
        self.fault(place(error.marker()), format!("{}, expected valid YAML", error.info()))
    }

    /// A fault in the field that is being read.
    fn fault(&self, place: Place, message: impl Into<String>) -> Error {
        let names: Vec<String> = self.stack.iter().map(|frame| frame.slot().0).collect();
        let field = super::join(names.iter().map(String::as_str));
        Error { place, field, message: message.into() }
    }
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}
