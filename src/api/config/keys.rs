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
    restart("loginPath", Form::Text),
    restart("log.level", Form::Text),
    restart("log.format", Form::Text),
    restart("limits.maxActiveTurns", Form::Number),
    restart("limits.maxActiveTurnsPerParent", Form::Number),
    restart("limits.maxIdleProcessesPerParent", Form::Number),
    restart("limits.maxTtl", Form::Text),
    restart("limits.defaultChildTtl", Form::Text),
    restart("limits.maxChildrenTotalPerRoot", Form::Number),
    restart("limits.spawnsPerMinutePerRoot", Form::Number),
    restart("limits.maxTokensPerRoot", Form::Number),
    restart("limits.maxCostPerRoot", Form::Json),
    restart("limits.inbox", Form::Number),
    restart("limits.promptBytes", Form::Text),
    live("http.perTokenRate", Form::Text),
    live("http.perTokenConcurrency", Form::Number),
    restart("http.connections", Form::Number),
    restart("mcpServers", Form::Json),
    restart("subagent.model", Form::Text),
    restart("mcp.maxWait", Form::Text),
    restart("mcp.progressEvery", Form::Text),
    restart("mcp.requestBytes", Form::Text),
    restart("fleet.defaultTailMessages", Form::Number),
    restart("fleet.maxTailMessages", Form::Number),
    restart("fleet.maxMessageTextChars", Form::Number),
    restart("fleet.targetRefTtl", Form::Text),
    restart("fleet.selectionTtl", Form::Text),
    restart("fleet.maxSelectionsPerCaller", Form::Number),
    restart("fleet.replyReceiptTtl", Form::Text),
    restart("fleet.maxReplyRecordsPerCaller", Form::Number),
    restart("fleet.maxReplyMessages", Form::Number),
    restart("fleet.maxReplyTextChars", Form::Number),
    restart("fleet.parentControl", Form::Switch),
    restart("fleet.allowWider", Form::Switch),
    restart("jobs.maxActivePerOwner", Form::Number),
    restart("jobs.maxOutputBytes", Form::Number),
    restart("permissionTimeout", Form::Text),
    restart("hooks", Form::Json),
    restart("notify", Form::Json),
    restart("retention.reportsPerObject", Form::Number),
    restart("retention.reports", Form::Number),
    restart("retention.events", Form::Text),
    restart("retention.transcripts", Form::Text),
    restart("store", Form::Text),
];
