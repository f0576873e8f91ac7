//! File and `--set` over the defaults, and where each value came from.

use serde_json::{Map, Value};

use super::{Config, Form, KEYS, Key};
use crate::api::field::FieldErrorReason::{FieldValueForbidden, FieldValueInvalid};
use crate::api::validate::shown;
use crate::api::{FieldErrors, FieldPath};

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File,
    /// `--set`.
    #[serde(rename = "--set")]
    Set,
}

impl Source {
    /// The word that is shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Set => "--set",
        }
    }
}

/// One key as it stands.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The dotted path.
    pub key: &'static str,
    /// The value; null where the default is found at the start.
    pub value: Value,
    /// Where it came from.
    pub source: Source,
    /// Whether a change takes effect only after a restart.
    pub needs_restart: bool,
}

/// A configuration, and what was set by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    file: Value,
    set: Value,
}

impl Loaded {
    /// Every key with its value and source, in the order of [`KEYS`].
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        // Plain data with string keys: it always has a JSON form.
        let values = serde_json::to_value(&self.config).unwrap_or_default();
        let entry = |key: &Key| {
            let source = match (at(&self.set, key.path), at(&self.file, key.path)) {
                (Some(_), _) => Source::Set,
                (None, Some(_)) => Source::File,
                (None, None) => Source::Default,
            };
            let value = at(&values, key.path).cloned().unwrap_or_default();
            Entry { key: key.path, value, source, needs_restart: key.needs_restart }
        };
        KEYS.iter().map(entry).collect()
    }

    /// The keys whose values differ between this and `other`, those that need a restart last.
    #[must_use]
    pub fn changes(&self, other: &Self) -> Vec<Key> {
        let (ours, theirs) = (self.entries(), other.entries());
        let differ = ours.iter().zip(&theirs).map(|(ours, theirs)| ours.value != theirs.value);
        let mut keys: Vec<Key> =
            KEYS.iter().zip(differ).filter_map(|(key, differs)| differs.then_some(*key)).collect();
        keys.sort_by_key(|key| key.needs_restart);
        keys
    }
}

/// The defaults, over them the file's values, over them those of `--set key=value`.
///
/// # Errors
///
/// Every fault found: unknown keys, a value of the wrong type, a value outside of its range; each
/// with its key.
pub fn load(file: Option<&Value>, sets: &[String]) -> Result<Loaded, FieldErrors> {
    let mut errors = FieldErrors::default();
    let file = match file {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(value) => value.clone(),
    };
    if !file.is_object() {
        let message = "expected keys and values at the top of the configuration";
        errors.push(FieldPath::new(""), FieldValueInvalid, message);
        return Err(errors);
    }
    let mut set = Value::Object(Map::new());
    for text in sets {
        if let Err((key, message)) = read_set(text, &mut set) {
            errors.push(FieldPath::new(key), FieldValueInvalid, message);
        }
    }
    let mut merged = file.clone();
    merge(&mut merged, &set);
    let config = decode(&merged, &mut errors);
    match config {
        Some(config) if errors.0.is_empty() => {
            config.validate()?;
            Ok(Loaded { config, file, set })
        }
        Some(_) | None => Err(errors),
    }
}

fn decode(merged: &Value, errors: &mut FieldErrors) -> Option<Config> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(merged, &mut track);
    let result = serde_ignored::deserialize(deserializer, |path| unknown.push(path.to_string()));
    for path in unknown {
        let message = "is not a key of the configuration; `spawnlet config` lists all";
        errors.push(FieldPath::new(path), FieldValueForbidden, message);
    }
    match result {
        Ok(config) => Some(config),
        Err(error) => {
            let error: serde_json::Error = error;
            errors.push(
                FieldPath::new(track.path().to_string()),
                FieldValueInvalid,
                error.to_string(),
            );
            None
        }
    }
}

/// Reads one `key=value` into `into`; the error is the key and what is wrong.
fn read_set(text: &str, into: &mut Value) -> Result<(), (String, String)> {
    let Some((path, value)) = text.split_once('=') else {
        return Err((text.to_owned(), "expected --set key=value".to_owned()));
    };
    let path = path.trim();
    let Some(key) = KEYS.iter().find(|key| key.path == path) else {
        let message = "is not a key of the configuration; `spawnlet config` lists all";
        return Err((path.to_owned(), message.to_owned()));
    };
    let fault =
        |expected: &str| (path.to_owned(), format!("{}: expected {expected}", shown(value)));
    let value = match key.form {
        Form::Text => Value::String(value.to_owned()),
        Form::Number => value.trim().parse::<u64>().map_err(|_| fault("a whole number"))?.into(),
        Form::Switch => value.trim().parse::<bool>().map_err(|_| fault("true or false"))?.into(),
        Form::List if value.trim_start().starts_with('[') => {
            serde_json::from_str(value).map_err(|_| fault("a JSON list"))?
        }
        Form::List => {
            let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(str::to_owned).collect::<Vec<_>>().into()
        }
        Form::Json => serde_json::from_str(value).map_err(|_| fault("JSON"))?,
    };
    let mut place = into;
    for name in path.split('.') {
        // Known keys only, and no key is the beginning of another: each step is an object.
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[name];
    }
    *place = value;
    Ok(())
}

/// Puts `over` on top of `base`: objects are merged, everything else is replaced.
fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                merge(base.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (base, over) => base.clone_from(over),
    }
}

fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn sets(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    fn faults(file: &Value, set: &[&str]) -> Vec<String> {
        match load(Some(file), &sets(set)) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.0.iter().map(|error| error.field.to_string()).collect(),
        }
    }

    #[test]
    fn every_key_of_the_types_stands_in_the_table_and_every_key_can_be_set() {
        fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(map) => {
                    for (name, value) in map {
                        let path =
                            if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                        leaves(value, &path, found);
                    }
                }
                _ => assert!(found.insert(path.to_owned())),
            }
        }
        let default = serde_json::to_value(Config::default()).unwrap();
        let mut found = BTreeSet::new();
        leaves(&default, "", &mut found);
        let listed: BTreeSet<String> = KEYS.iter().map(|key| key.path.to_owned()).collect();
        assert_eq!(found, listed);
        assert_eq!(listed.len(), KEYS.len());
        for key in KEYS {
            let text = match at(&default, key.path).unwrap() {
                Value::String(text) => text.clone(),
                Value::Null if key.form == Form::List => "/a,/b".to_owned(),
                Value::Null if matches!(key.form, Form::Number | Form::Json) => "1".to_owned(),
                Value::Null => "a".to_owned(),
                value => value.to_string(),
            };
            let loaded = load(None, &[format!("{}={text}", key.path)]).unwrap();
            let entry = loaded.entries().into_iter().find(|entry| entry.key == key.path).unwrap();
            assert_eq!(entry.source, Source::Set, "{}", key.path);
        }
    }

    #[test]
    fn an_empty_configuration_is_the_default() {
        assert_eq!(load(None, &[]).unwrap().config, Config::default());
        assert_eq!(load(Some(&Value::Null), &[]).unwrap().config, Config::default());
        let all = serde_json::to_value(Config::default()).unwrap();
        assert_eq!(load(Some(&all), &[]).unwrap().config, Config::default());
    }

    #[test]
    fn set_goes_over_the_file_and_the_file_over_the_default() {
        let file = json!({
            "limits": {"inbox": 5, "promptBytes": "1Ki"},
            "listen": "127.0.0.1:0",
            "allowedHosts": ["agents.example"],
        });
        let loaded = load(Some(&file), &sets(&["limits.inbox=7", "manifests=/a, /b"])).unwrap();
        assert_eq!(loaded.config.limits.inbox, 7);
        assert_eq!(loaded.config.limits.prompt_bytes.get(), 1024);
        assert_eq!(loaded.config.manifests, Some(vec!["/a".to_owned(), "/b".to_owned()]));
        let sources: Vec<_> = ["limits.inbox", "limits.promptBytes", "limits.maxTtl"]
            .iter()
            .map(|path| loaded.entries().iter().find(|entry| entry.key == *path).unwrap().source)
            .collect();
        assert_eq!(sources, [Source::Set, Source::File, Source::Default]);
        let changes = loaded.changes(&load(None, &[]).unwrap());
        let paths: Vec<_> = changes.iter().map(|key| (key.path, key.needs_restart)).collect();
        assert_eq!(
            paths,
            [
                // Those that SIGHUP takes over would come first.
                ("allowedHosts", false),
                ("listen", true),
                ("manifests", true),
                ("limits.inbox", true),
                ("limits.promptBytes", true),
            ]
        );
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_named() {
        assert_eq!(
            faults(&json!({"limit": 1, "limits": {"inbux": 2}}), &[]),
            ["limit", "limits.inbux"]
        );
        assert_eq!(faults(&json!({"limits": {"inbox": "x"}}), &[]), ["limits.inbox"]);
        assert_eq!(faults(&json!({"http": {"perTokenRate": "5"}}), &[]), ["http.perTokenRate"]);
        assert_eq!(faults(&json!({"listen": "localhost"}), &[]), ["listen"]);
        assert_eq!(faults(&json!({"store": "etcd"}), &[]), ["store"]);
        assert_eq!(faults(&json!({"hooks": [{"event": "a"}]}), &[]), ["hooks[0]"]);
        assert_eq!(faults(&json!([]), &[]), [""]);
        assert_eq!(
            faults(
                &json!({}),
                &[
                    "limits.inbox=x",
                    "nope=1",
                    "limits=1",
                    "listen",
                    "hooks=x",
                    "insecureListen=yes"
                ]
            ),
            ["limits.inbox", "nope", "limits", "listen", "hooks", "insecureListen"]
        );
    }

    #[test]
    fn values_outside_of_their_range_are_named() {
        for (file, key) in [
            (json!({"limits": {"inbox": 0}}), "limits.inbox"),
            (json!({"limits": {"promptBytes": "0"}}), "limits.promptBytes"),
            (json!({"limits": {"defaultChildTtl": "48h"}}), "limits.defaultChildTtl"),
            (json!({"limits": {"maxActiveTurns": 0}}), "limits.maxActiveTurns"),
            (json!({"http": {"perTokenRate": "0/s"}}), "http.perTokenRate"),
            (json!({"fleet": {"defaultTailMessages": 33}}), "fleet.defaultTailMessages"),
            (json!({"fleet": {"selectionTtl": "0s"}}), "fleet.selectionTtl"),
            (json!({"jobs": {"maxOutputBytes": 0}}), "jobs.maxOutputBytes"),
            (json!({"mcp": {"requestBytes": "1Ki"}}), "mcp.requestBytes"),
            (json!({"permissionTimeout": "0"}), "permissionTimeout"),
            (json!({"listen": "0.0.0.0:7420"}), "listen"),
            (json!({"listenTls": "127.0.0.1:7420"}), "listenTls"),
            (json!({"allowedOrigins": ["localhost"]}), "allowedOrigins[0]"),
            (json!({"allowedHosts": ["*"]}), "allowedHosts[0]"),
            (json!({"hooks": [{"event": "a", "command": "a"}]}), "hooks[0].event"),
            (
                json!({"hooks": [{"event": "spawn.created", "command": "a | b"}]}),
                "hooks[0].command",
            ),
            (
                json!({"hooks": [{"event": "spawn.reaped", "command": "a", "timeout": "1h"}]}),
                "hooks[0].timeout",
            ),
            (json!({"notify": [{"event": "a"}]}), "notify[0]"),
            (json!({"notify": [{"event": "a", "webhook": "x"}]}), "notify[0].webhook"),
            (json!({"mcpServers": [{"name": "a", "type": "stdio"}]}), "mcpServers[0].command"),
            (json!({"retention": {"reports": 0}}), "retention.reports"),
        ] {
            assert_eq!(faults(&file, &[]), [key], "{file}");
        }
        assert!(faults(&json!({"listen": "0.0.0.0:1", "insecureListen": true}), &[]).is_empty());
        assert!(faults(&json!({"mcp": {"maxWait": "0"}}), &[]).is_empty());
    }

    #[test]
    fn an_address_that_others_reach_needs_an_explicit_word() {
        for open in [
            "0.0.0.0:7420",
            "[::]:7420",
            "10.0.0.1:0",
            "192.168.1.5:7420",
            "203.0.113.7:80",
            "[2001:db8::1]:7420",
            "[fe80::1]:7420",
            "[::ffff:127.0.0.1]:7420",
        ] {
            assert_eq!(faults(&json!({"listen": open}), &[]), ["listen"], "{open}");
            let set = [format!("listen={open}")];
            assert_eq!(faults(&json!({}), &set.each_ref().map(String::as_str)), ["listen"]);
            let allowed = json!({"listen": open, "insecureListen": true});
            assert!(faults(&allowed, &[]).is_empty(), "{open}");
        }
        for closed in ["127.0.0.1:0", "127.9.9.9:7420", "[::1]:7420"] {
            assert!(faults(&json!({"listen": closed}), &[]).is_empty(), "{closed}");
        }
    }
}
