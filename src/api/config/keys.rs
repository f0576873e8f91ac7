//! The table of keys: what `--set` may name, how its text is read, what a reload can change.

/// How the text of `--set key=value` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it stands: texts, durations, sizes, rates, words of an enumeration.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Switch,
    /// Texts separated by commas, or a JSON list.
    List,
    /// JSON.
    Json,
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The dotted path, `limits.inbox`.
    pub path: &'static str,
    /// How the text of `--set` is read.
    pub form: Form,
    /// Whether a change takes effect only after a restart; the others follow SIGHUP.
    pub needs_restart: bool,
}

const fn live(path: &'static str, form: Form) -> Key {
    Key { path, form, needs_restart: false }
}

const fn restart(path: &'static str, form: Form) -> Key {
    Key { path, form, needs_restart: true }
}

/// Every key, in the order in which they are shown.
pub const KEYS: &[Key] = &[
    // What is bound, opened or watched once, at the start.
    restart("listen", Form::Text),
    restart("listenTls", Form::Text),
    restart("socket", Form::Text),
    restart("insecureListen", Form::Switch),
    live("allowedHosts", Form::List),
    live("allowedOrigins", Form::List),
    restart("manifests", Form::List),
    restart("dataDir", Form::Text),
    live("log.level", Form::Text),
    restart("log.format", Form::Text),
    live("limits.maxActiveTurns", Form::Number),
    live("limits.maxActiveTurnsPerParent", Form::Number),
    live("limits.maxIdleProcessesPerParent", Form::Number),
    live("limits.maxTtl", Form::Text),
    live("limits.defaultChildTtl", Form::Text),
    live("limits.maxChildrenTotalPerRoot", Form::Number),
    live("limits.spawnsPerMinutePerRoot", Form::Number),
    live("limits.inbox", Form::Number),
    live("limits.promptBytes", Form::Text),
    live("http.perTokenRate", Form::Text),
    live("http.perTokenConcurrency", Form::Number),
    restart("http.connections", Form::Number),
    live("mcpServers", Form::Json),
    live("subagent.model", Form::Text),
    live("mcp.maxWait", Form::Text),
    live("mcp.progressEvery", Form::Text),
    live("mcp.requestBytes", Form::Text),
    live("fleet.defaultTailMessages", Form::Number),
    live("fleet.maxTailMessages", Form::Number),
    live("fleet.maxMessageTextChars", Form::Number),
    live("fleet.targetRefTtl", Form::Text),
    live("fleet.selectionTtl", Form::Text),
    live("fleet.maxSelectionsPerCaller", Form::Number),
    live("fleet.replyReceiptTtl", Form::Text),
    live("fleet.maxReplyRecordsPerCaller", Form::Number),
    live("fleet.maxReplyMessages", Form::Number),
    live("fleet.maxReplyTextChars", Form::Number),
    live("fleet.parentControl", Form::Switch),
    live("fleet.allowWider", Form::Switch),
    live("jobs.maxActivePerOwner", Form::Number),
    live("jobs.maxOutputBytes", Form::Number),
    live("permissionTimeout", Form::Text),
    live("hooks", Form::Json),
    live("notify", Form::Json),
    live("retention.reportsPerObject", Form::Number),
    live("retention.reports", Form::Number),
    live("retention.events", Form::Text),
    live("retention.transcripts", Form::Text),
    restart("store", Form::Text),
];
