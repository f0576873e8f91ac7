//! JSON files, strictly: what `serde_json` takes, with places and the bounds of YAML.
//!
//! Each level is read as raw slices of the text, whose addresses are the places. A level is read
//! once more by each level above it: at most [`DEPTH_MAX`] times the largest file.

use std::fmt;

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{DEPTH_MAX, Document, Error, NODES_MAX, Place, Places};

/// Reads every document; several may follow each other.
pub(super) fn parse(text: &str) -> Result<Vec<Document>, Error> {
    let mut reader = Reader { text, nodes: 0, path: Vec::new(), counted: 0, place: Place::START };
    let mut documents = Vec::new();
    for raw in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let raw = raw.map_err(|error| Error {
            place: Place { line: error.line().max(1), column: error.column().max(1) },
            field: String::new(),
            message: format!("{}, expected valid JSON", without_place(&error)),
        })?;
        let (value, places) = reader.read(raw)?;
        if !value.is_null() {
            documents.push(Document { value, places });
        }
    }
    Ok(documents)
}

struct Reader<'a> {
    text: &'a str,
    nodes: usize,
    /// Names of the fields above the value that is being read.
    path: Vec<String>,
    /// How far places have been counted. Values are read in the order of the text, so that each
    /// character is counted once.
    counted: usize,
    place: Place,
}

impl<'a> Reader<'a> {
    fn read(&mut self, raw: &'a RawValue) -> Result<(Value, Places), Error> {
        let place = self.place(raw.get());
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(self.fault(place, format!("more than {NODES_MAX} values in the file")));
        }
        let mut places = Places::at(place, place);
        let value = match raw.get().as_bytes().first() {
            Some(b'{' | b'[') if self.path.len() >= DEPTH_MAX => {
                return Err(self.fault(place, format!("nested more than {DEPTH_MAX} levels deep")));
            }
            Some(b'{') => self.object(raw, &mut places)?,
            Some(b'[') => self.list(raw, &mut places)?,
            _ => serde_json::from_str(raw.get()).map_err(|error| self.broken(place, &error))?,
        };
        if value.is_f64() && !raw.get().contains(['.', 'e', 'E']) {
            let message =
                format!("{} does not fit in 64 bits, quote it to have it as text", raw.get());
            return Err(self.fault(place, message));
        }
        Ok((value, places))
    }

    fn object(&mut self, raw: &'a RawValue, places: &mut Places) -> Result<Value, Error> {
        let mut json = serde_json::Deserializer::from_str(raw.get());
        let entries =
            json.deserialize_map(Entries).map_err(|error| self.broken(places.value, &error))?;
        let mut map = serde_json::Map::new();
        for (key, raw) in entries {
            self.nodes += 1;
            self.path.push(key.clone());
            if let Some(first) = places.children.get(&key) {
                let (first, place) = (first.key, self.place(raw.get()));
                let message = format!("stands twice, first at {first}, expected once");
                return Err(self.fault(place, message));
            }
            let (value, below) = self.read(raw)?;
            self.path.pop();
            places.children.insert(key.clone(), below);
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }

    fn list(&mut self, raw: &'a RawValue, places: &mut Places) -> Result<Value, Error> {
        let mut json = serde_json::Deserializer::from_str(raw.get());
        let raws =
            json.deserialize_seq(Items).map_err(|error| self.broken(places.value, &error))?;
        let mut items = Vec::new();
        for raw in raws {
            let name = format!("[{}]", items.len());
            self.path.push(name.clone());
            let (value, below) = self.read(raw)?;
            self.path.pop();
            places.children.insert(name, below);
            items.push(value);
        }
        Ok(Value::Array(items))
    }

    /// Where a slice of the text begins.
    fn place(&mut self, slice: &str) -> Place {
        let index = (slice.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        for character in self.text.get(self.counted..index).unwrap_or_default().chars() {
            if character == '\n' {
                self.place = Place { line: self.place.line + 1, column: 1 };
            } else {
                self.place.column += 1;
            }
        }
        self.counted = self.counted.max(index);
        self.place
    }

    fn broken(&self, place: Place, error: &serde_json::Error) -> Error {
        self.fault(place, format!("{}, expected valid JSON", without_place(error)))
    }

    fn fault(&self, place: Place, message: String) -> Error {
        Error { place, field: super::join(self.path.iter().map(String::as_str)), message }
    }
}

/// serde_json ends its messages with a place that is relative to the slice.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
            // What is more is refused by the count of values; nothing is gained by keeping it.
            if entries.len() > NODES_MAX {
                while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
            }
        }
        Ok(entries)
    }
}

struct Items;

impl<'de> Visitor<'de> for Items {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
            if items.len() > NODES_MAX {
                while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
            }
        }
        Ok(items)
    }
}
