//! Validation of specs: what each kind's [`Spec`](super::Spec) methods call.
//!
//! One file per kind, on the checks of `check`. Each fault names its field, the value (never one
//! of a variable or header: those may be secrets) and what is allowed; all faults of a record are
//! found in one go. What depends on other records or on the machine (does the agent exist, does
//! the path) is absent: that is a condition of the live object, not a fault of the record. Absent
//! too: limits that the configuration sets (admission checks those).

pub(super) mod agent;
mod check;
mod column;
pub mod free_path;
mod metadata;
mod not_yet;
pub mod permission;
pub(super) mod role;
pub(super) mod session;
pub(super) mod turn;
pub(super) mod workspace;

#[cfg(test)]
mod coverage;

pub use check::is_dns_label;
pub(super) use check::{http_url, line, mcp_servers, shown};
pub use metadata::metadata;

/// The largest prompt that is kept in a record; a larger one of a turn becomes a blob.
pub const INLINE_PROMPT_BYTES_MAX: usize = 64 * 1024;
/// The longest title or display name in characters: what fits a terminal's table, generously.
pub const TITLE_CHARS_MAX: usize = 256;
/// The longest description in characters: a paragraph, shown to models with every listing.
pub const DESCRIPTION_CHARS_MAX: usize = 2048;
/// The longest option id, model name or MCP server name in characters.
pub const ID_CHARS_MAX: usize = 256;
/// The longest string value of an option, argument, variable or header in bytes (one argument of
/// execve may have 128 KiB, `MAX_ARG_STRLEN`; a quarter leaves room for the rest).
pub const VALUE_BYTES_MAX: usize = 32 * 1024;
/// The longest path in bytes (Linux `PATH_MAX`, without its NUL).
pub const PATH_BYTES_MAX: usize = 4095;
/// The most entries of any list or map of a spec: far above use, and it bounds the work per record.
pub const ENTRIES_MAX: usize = 256;
/// The longest idempotency key in characters.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 255;
