//! TEMPORARY until acp/options.rs is merged
use crate::api::session::ConfigValue;
use crate::api::turn::ConfigWarning;
use crate::api::{AgentSpec, SessionSpec, TurnSpec};
use serde_json::Value;
use std::fmt;
/// x
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Options {}
impl Options {
    /// x
    pub fn values(&self) -> Vec<ConfigValue> {
        Vec::new()
    }
}
/// x
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// x
    Mode(String),
    /// x
    Option {
        /// x
        id: String,
        /// x
        value: Value,
    },
    /// x
    Model(String),
}
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
/// x
#[derive(Debug)]
pub enum Next {
    /// x
    Set(Setting),
    /// x
    Done {
        /// x
        warnings: Vec<ConfigWarning>,
    },
    /// x
    Required(Vec<Value>),
    /// x
    Failed(String),
    /// x
    Invalid(String),
}
/// x
pub struct Wanted {}
/// x
pub fn wanted(_: &AgentSpec, _: &SessionSpec, _: &TurnSpec) -> Wanted {
    Wanted {}
}
/// x
pub fn next(_: &Wanted, _: &Options, _: &[(Setting, Result<(), String>)]) -> Next {
    Next::Done { warnings: Vec::new() }
}
/// x
pub fn describe(_: &[Value]) -> String {
    String::new()
}
